"""Workers, which run the batches of a node, and how a caller waits for an outcome.

A worker is a thread of the pool, or the one that a backend owns. A caller runs a single request of
its own (`headrace._run.batches.shortcut`), and nothing else.
"""

from __future__ import annotations

import time
from _thread import allocate_lock
from threading import TIMEOUT_MAX, get_ident
from typing import TYPE_CHECKING, Any

from headrace._run.batches.instance import LONG_S
from headrace._run.requests.entry import DONE, RUNNING
from headrace._run.requests.refusals import no_thread_error
from headrace._run.steps.box import Worker, ask, post, refuse_inside
from headrace._run.steps.threads import check_stack
from headrace.errors import BackendError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from headrace._run.batches.instance import Instance
    from headrace._run.node import Node
    from headrace._run.requests.entry import Entry
    from headrace._run.steps.box import Box

PUT_OFF_S = 0.01
"""After this, callers are woken even if no device works on the next batch: a backend may hang."""


class Work:
    """A batch that was formed, with the instance that was claimed for it."""

    __slots__ = ("entries", "instance", "node")

    def __init__(self, node: Node, entries: list[Entry], instance: Instance) -> None:
        self.node, self.entries, self.instance = node, entries, instance

    def assign(self) -> None:
        """Find a worker that runs it; in a step."""
        worker, thread = self.node.box.worker, self.instance.thread
        if thread is not None:  # a step that a caller has put into its jobs comes after this batch
            self.node.token[:] = [None]
        if worker is not None and worker.take(self):
            self.instance.ident = get_ident()
        elif thread is not None:
            self.instance.ident = thread.ident
            thread.post(Worker(thread, self).run)
        else:
            try:
                self.node.box.threads.pool.run(Worker(None, self).run)
            except RuntimeError as error:  # no thread can be started
                self.fail(error)

    def puts_off(self, locks: list[Any]) -> bool:
        """Have callers of the last batch woken once a device computes this one.

        Returns:
            False where that takes long, where no device computes, or where this batch is not full:
            then the next one waits for these callers.
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
        end.rested.extend(locks)
        return True

    def fail(self, error: BaseException) -> None:
        """Fail it, since there is no thread for it, and give its instance back; in a step."""
        for entry in self.entries:
            if entry.state == RUNNING:
                failure = no_thread_error(self.node.name, "run the batch", error)
                self.node.settle(entry, failure, self.instance)
        self.node.give_back(self.instance)
        self.node.note_change()  # who has come meanwhile found no instance

    def run(self, worker: Worker) -> None:
        """Run it in this thread. Then, in one turn at the box, end it and take the next batch."""
        node, instance = self.node, self.instance
        instance.ident = get_ident()
        errors = node.events.run(instance, self.entries, node)
        if instance.batch_end is not None:
            instance.batch_end.wake()  # who still sleeps, if the backend refused the batch
        instance.ident = 0  # this thread holds it no more, whoever runs the step
        node.box.work(worker, node.end_batch, self, errors, worker)
        errors = None  # see `Entry.take_error`


class Waiter:
    """A caller with several requests of its own.

    Attributes:
        ident: Its thread.
        lock: What it sleeps on.
        deadline: The deadline of its requests, at which it wakes up by itself. None for none.
        pending: How many of its requests have no outcome yet. Changed in steps.
    """

    __slots__ = ("deadline", "ident", "lock", "pending")

    def __init__(self, entries: Sequence[Entry] = ()) -> None:
        deadline = max([entry.deadline or 0.0 for entry in entries], default=0.0)
        self.deadline, self.ident, self.pending = deadline or None, get_ident(), 0
        self.lock = new_lock()
        self.expects(entries)

    def note_taken(self, entry: Entry) -> None:
        """Count one outcome; in a step."""
        self.pending -= 1
        if not self.pending:
            entry.node.box.locks.append(self.lock)

    def expects(self, entries: Sequence[Entry]) -> None:
        """Let the outcomes of entries come here, of which none has entered."""
        for entry in entries:
            if entry.state != DONE:
                entry.waiter, entry.then = self, self.note_taken
                self.pending += 1


def new_lock() -> Any:
    """Make a lock for a caller to sleep on, until `wake`."""
    lock = allocate_lock()
    lock.acquire()
    return lock


def seconds_until(deadline: float) -> float:
    """Return the seconds that are left until a time, as a lock takes them."""
    return min(max(0.0, deadline - time.monotonic()), TIMEOUT_MAX)


def wait_for(node: Node, entries: Sequence[Entry]) -> None:
    """Let requests of the calling thread in, and wait for all. Each then holds its outcome.

    An interrupt cancels those that wait, and goes on without those that run (``abandoned``).
    """
    refuse_inside(node.name)
    check_stack()
    node.start(entries)
    wait(node.box, Waiter(entries), entries, node.send, entries, get_ident())


def wait(
    box: Box, waiter: Waiter, entries: Sequence[Entry], begin: Callable[..., Any], *args: Any
) -> None:
    """Wait for the outcomes of entries, which ``begin(*args)`` lets enter if any has none."""
    try:
        if waiter.pending:
            begin(*args)
            if waiter.deadline is None:
                waiter.lock.acquire()
            elif not waiter.lock.acquire(True, seconds_until(waiter.deadline)):
                post(box, expire, entries)  # from here on they are done, or will be in a moment
                waiter.lock.acquire()
    except BaseException as raised:  # Ctrl-C
        raised.abandoned = ask(box, withdraw, entries)  # type: ignore[attr-defined]
        raise
    finally:
        for entry in entries:
            entry.give_back()


def expire(entries: Sequence[Entry]) -> None:
    """Fail entries whose caller has slept until their deadline; in a step."""
    for entry in entries:
        if entry.node is not None and entry.deadline is not None:
            entry.node.fail_late(entry)


def withdraw(entries: Sequence[Entry]) -> bool:
    """Cancel entries for which nobody waits any more, in a step.

    Returns:
        Whether a backend still runs on any of them.
    """

    def interrupted_error(node: Node, *, running: bool) -> BackendError:
        return BackendError("the caller was interrupted", node=node.name, abandoned=running)

    left = [
        entry.node.fail(entry, interrupted_error) for entry in entries if entry.node is not None
    ]
    return True in left
