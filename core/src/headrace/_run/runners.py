"""Who runs a batch: the thread that runs the steps if it may, else the pool.

An event loop runs none.
"""

from __future__ import annotations

import time
from threading import get_ident
from typing import TYPE_CHECKING, Any

from headrace._run import batch
from headrace._run.box import Worker, ask, main, post, refuse_inside
from headrace._run.entry import DONE, RUNNING
from headrace._run.instance import FAST_S, LEADS_S, LONG_S
from headrace._run.parts import are_read
from headrace._run.refusals import no_thread_error
from headrace._run.threads import Signal, check_stack, took_token
from headrace.errors import BackendError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from headrace._run.box import Box
    from headrace._run.entry import Entry
    from headrace._run.instance import Instance
    from headrace._run.node import Node

PUT_OFF_S = 0.01
"""Callers that are woken once a device works are woken after this in any case: a backend may hang."""


class Work:
    """A batch that was formed, with the instance that was claimed for it.

    Attributes:
        unbegun: The token of who runs it, or fails it for lack of a thread. None where it waits for nobody.
    """

    __slots__ = ("entries", "instance", "node", "unbegun")
    instance: Instance

    def __init__(self, node: Node, entries: list[Entry], instance: Instance | None = None) -> None:
        self.node, self.entries = node, entries
        if instance is not None:
            self.instance = instance
        self.unbegun: list[None] | None = None

    def assign(self) -> None:
        """Find a thread that runs it; in a step."""
        runner, thread = self.node.box.runner, self.instance.thread
        if runner is not None and runner.take(self):
            self.instance.ident = get_ident()
        elif thread is not None:
            self.instance.ident = thread.ident
            thread.post(self.serve)
        else:
            self.node.box.threads.pool.run(self.serve)

    def serve(self) -> None:
        """Run it in a thread of ours, and the batches that this thread is given afterwards."""
        if self.unbegun is not None and not took_token(self.unbegun):
            return  # it was given up
        worker = Worker(self.instance.thread)
        worker.work = self
        while worker.work is not None:
            work, worker.work = worker.work, None
            work.run(worker)

    def puts_off(self, rested: list[Signal]) -> bool:
        """Have callers of the last batch woken once a device computes this one; False where that takes long, or none does.

        Nor where the batch is not full: then the next one waits for them.
        """
        end, most = self.instance.batch_end, self.node.max
        if end is None or end.launch_s >= LONG_S or most is None:
            return False
        if self.instance.running_weight < most:
            return False
        try:
            if not end.is_watched:
                timer = self.node.box.threads.timer
                timer.call_at(self.node.box.threads.clock() + PUT_OFF_S, end.look)
        except RuntimeError:  # no thread can be started
            return False
        end.is_watched = True
        end.rested.extend(rested)
        return True

    def fail_unbegun(self, error: BaseException) -> None:
        """Fail it, unless a thread has begun it; in a step."""
        if self.unbegun and took_token(self.unbegun) and self.instance.holder is self:
            self.fail(error)

    def fail(self, error: BaseException) -> None:
        """Fail it, since there is no thread for it, and give its instance back; in a step."""
        for entry in self.entries:
            if entry.state == RUNNING:
                failure = no_thread_error(self.node.name, "run the batch", error)
                self.node.settle(entry, failure, self.instance)
        self.node.give_back(self.instance)
        self.node.note_change()  # who has come meanwhile found no instance

    def run(self, runner: Any) -> None:
        """Run it in this thread, and put its outcomes into the box."""
        node, instance = self.node, self.instance
        instance.ident = get_ident()
        reporter = node.reporter
        run = batch.run if reporter is None else reporter.run
        errors = run(instance, self.entries, node)
        if instance.batch_end is not None:
            instance.batch_end.wake()  # who still sleeps, if the backend refused the batch
        instance.ident = 0  # this thread holds it no more, whoever runs the step
        if type(runner) is Waiter:
            runner.asleep = True
        post(node.box, node.end_batch, self, errors, runner, runner=runner)
        errors = None  # see `Entry.take_error`


class Waiter:
    """A caller that waits for its own requests, and may run batches meanwhile.

    Attributes:
        node: The node whose batches it may run. It may hold instances of other nodes, for which such a batch cannot wait
            where no node calls itself. None: only batches with a request of its own.
        runs: Whether the thread may run batches: not the main thread, nor one deep in its calls, nor where a request has a deadline.
        deadline: The deadline of its requests, at which it wakes up by itself. None for none.
        pending: How many of its requests have no outcome yet. Changed in steps.
        asleep: Whether it may be given work: it sleeps, or is about to. Cleared in a step, by who wakes it.
        work: The batch that it is to run next.
    """

    __slots__ = (
        "asleep",
        "deadline",
        "ident",
        "node",
        "pending",
        "runs",
        "signal",
        "until",
        "work",
    )

    def __init__(self, node: object = None, deadline: float | None = None) -> None:
        is_deep = check_stack()  # what others send may need more than is left
        self.node, self.deadline = node, deadline
        self.ident = get_ident()
        self.runs = deadline is None and self.ident != main and not is_deep
        self.pending = 0
        self.asleep = True
        self.work: Work | None = None
        self.until: float | None = None
        self.signal = Signal()

    def take(self, work: Work) -> bool:
        """Take a batch that this thread may run, while it runs the steps. False where it may not.

        While it waits for a request of its own it takes any. Its own answer there, it goes on for `LEADS_S` where batches are
        shorter than it takes to wake another thread: without that, chains at 10 clients and 60 us at 40 lose 5 to 30 %.
        A batch of which somebody reads parts may wait for that reader, who may be this thread, or wait for it.
        """
        if not self.runs or self.work is not None or work.instance.thread is not None:
            return False
        if are_read(work.entries):
            return False
        if work.node is not self.node and all(entry.waiter is not self for entry in work.entries):
            return False
        if not self.pending:
            if work.instance.mean_s >= FAST_S:
                return False
            now = time.perf_counter()
            if self.until is None:
                self.until = now + LEADS_S
            if now >= self.until:
                return False
        self.asleep, self.work = False, work
        return True

    def note_taken(self, entry: Entry) -> None:
        """Count one outcome; in a step."""
        self.pending -= 1
        if not self.pending:
            self.rest(entry.node.box)

    def rest(self, box: Box) -> None:
        """Let the thread go if it has all outcomes; in a step."""
        if not self.pending and self.asleep:
            self.asleep = False
            if box.starts_first:
                box.rested.append(self.signal)
            else:
                self.signal.wake()

    def expects(self, entries: Sequence[Entry]) -> None:
        """Let the outcomes of entries come here, of which none has entered."""
        for entry in entries:
            if entry.state != DONE:
                entry.waiter, entry.then = self, self.note_taken
                self.pending += 1

    def wait_late(self, expire: Callable[[], object]) -> None:
        """Wait for outcomes, and call ``expire()`` once the deadline has passed."""
        until = self.deadline
        while self.asleep:
            left_s = None if until is None else until - time.monotonic()
            if left_s is not None and left_s <= 0:
                until, left_s = None, None
                expire()  # from here on they are done, or will be in a moment
            if self.asleep:
                self.signal.sleep(left_s)


def wait_for(node: Node, entries: Sequence[Entry], *, internal: bool = False) -> None:
    """Run entries for the calling thread and wait for them. Each then holds its outcome.

    An interrupt cancels the requests that wait, and goes on without those that run (``abandoned``).
    """
    refuse_inside(node.name)
    node.start(entries)
    waiter = Waiter(node, max([entry.deadline or 0.0 for entry in entries], default=0.0) or None)
    waiter.expects(entries)
    if waiter.pending:
        wait(node.box, waiter, entries, _start, node, entries, internal, waiter)
    for entry in entries:
        entry.give_back()


def _start(node: Node, entries: Sequence[Entry], internal: bool, waiter: Waiter) -> None:
    if len(entries) > 1 or waiter.runs or not node.short_cut.hand_over(entries[0]):
        post(node.box, node.enter, entries, internal, waiter.ident, runner=waiter)


def wait(
    box: Box, waiter: Waiter, entries: Sequence[Entry], begin: Callable[..., Any], *args: Any
) -> None:
    """Wait for the outcomes of entries, which ``begin(*args)`` lets enter, and run the batches that the thread is given."""
    try:
        begin(*args)
        if waiter.deadline is not None:
            waiter.wait_late(lambda: post(box, expire, entries))
            return
        while True:  # here, since calls of nodes nest: each call of Python more would make them a tenth less deep
            while waiter.asleep:
                waiter.signal.sleep()
            work, waiter.work = waiter.work, None
            if work is None:
                return
            work.run(waiter)
    except BaseException as raised:  # Ctrl-C, or a backend raised what is no Exception
        raised.abandoned = ask(box, withdraw, entries)  # type: ignore[attr-defined]
        for entry in entries:
            entry.give_back()
        raise


def expire(entries: Sequence[Entry]) -> None:
    """Fail the entries whose deadline has passed; in a step."""
    for entry in entries:
        node = entry.node
        if node is not None and entry.deadline is not None and entry.deadline <= node.clock():
            node.fail_late(entry)


def withdraw(entries: Sequence[Entry]) -> bool:
    """Cancel entries for which nobody waits any more; True if a backend still runs on any of them; in a step."""

    def interrupted_error(node: Node, *, running: bool) -> BackendError:
        return BackendError("the caller was interrupted", node=node.name, abandoned=running)

    left = [
        entry.node.fail(entry, interrupted_error) for entry in entries if entry.node is not None
    ]
    return True in left
