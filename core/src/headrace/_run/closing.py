"""Closing a pipeline: newcomers are refused, the others end, and all is closed, whatever hangs."""

from __future__ import annotations

import logging
import sys
import time
from collections import deque
from contextlib import suppress
from functools import partial
from math import inf
from threading import get_ident
from typing import TYPE_CHECKING

from headrace._run.requests.entry import RUNNING
from headrace._run.requests.parts import read_from
from headrace._run.requests.streams import Reader
from headrace._run.steps.box import ask, is_inside
from headrace._run.steps.threads import Pool, Signal, took_token
from headrace.errors import ClosedError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from headrace._run.engine import Engine
    from headrace._run.node import Node

    Closing = tuple[str, Callable[[], object]]
    """What is closed, for the log, and the function that closes it."""

_log = logging.getLogger("headrace.close")

_GRACE_S = 0.8
"""How long processes that hang in their ``close`` are left behind, before they are ended."""


class Closer:
    """Closes one pipeline.

    Attributes:
        error: The error of newcomers. None while the pipeline is open.
        is_over: Whether everything is closed.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._box = engine.box
        self._watchers = Watchers()
        self._pass: Pass | None = None
        self.error: ClosedError | None = None
        self.is_over = self._has_ended = self._needs_this_thread = False
        self._unfinished = [None]

    def close(self, *, drain: bool, timeout: float) -> None:
        """Close the pipeline; see ``Pipeline.close``."""
        # In the child of a fork, and once the interpreter ends, no thread is left for this.
        if self._engine.forked or sys.is_finalizing():
            return
        until = time.monotonic() + timeout
        # One step, which also sees to the end: Ctrl-C comes before it or after it.
        ask(self._box, self._refuse, drain, get_ident(), until)
        if self._needs_this_thread:
            self._end(until)
        if not is_inside() and not self._engine.needs_this_thread():
            self._watchers.wait(lambda: self._has_ended, max(until, time.monotonic() + 0.2) + 0.4)

    def _refuse(self, drain: bool, closes: int, until: float) -> None:
        if self.error is None:
            self.error = ClosedError()
            self._engine.entrance.close(self.error)
            self._engine.entrance.enter_begun()
        error = self.error
        self._box.closes = True
        self._box.later(self._start_end, until)
        for node in reversed(self._engine.nodes):
            refuse(node, error, drain=drain)
            for parts in map(read_from, node.all_open()):
                reader = None if parts is None else parts.root.take
                # While requests are drained, all but the thread that closes go on reading.
                if isinstance(reader, Reader) and (not drain or reader.thread == closes):
                    reader.end_wait()
        if not drain and self._engine.graph is not None:
            for request in list(self._engine.graph.open):
                if all(entry.state != RUNNING for entry in request.open):
                    request.end(error._passing(passes=False))

    def _start_end(self, until: float) -> None:
        try:
            self._box.threads.pool.run(self._end, until)
        except RuntimeError:  # no more threads, or the interpreter ends
            self._needs_this_thread = True

    def _is_quiet(self) -> bool:
        """Tell whether no request waits, runs or is PENDING, between nodes either; in a step."""
        graph = self._engine.graph
        if graph is not None and (graph.open or graph.walking):
            return False
        return self._box.is_told and all(node.quiet for node in self._engine.nodes)

    def look_if_quiet(self) -> None:
        """Wake who waits for the last request, if that has ended; in a step."""
        if self.error is not None and self._is_quiet():
            self._watchers.wake()

    def _end(self, until: float) -> None:
        """Wait for open requests, fail those that are left, and close all that was built."""
        self._engine.blueprint.store._end_waits()
        quiet = self._watchers.wait(lambda: ask(self._box, self._is_quiet) or self.is_over, until)
        if self.is_over:
            return
        if not quiet:
            ask(self._box, self._fail_open)
        if not took_token(self._unfinished):  # another thread closes all
            return
        steps, all_idle = self._close_idle()
        steps.append(("the pipeline", partial(setattr, self, "is_over", True)))
        steps.append(("the probes", lambda: self._engine.probes.close()))
        self._pass = Pass(steps, self._box.threads.pool)
        self._pass.start(until)
        # The probes are closed, which saw the pipeline closed.
        self.is_over = self._has_ended = True
        self._watchers.wake()
        if self._engine.busy():
            self._box.threads.timer.call_at(time.monotonic() + _GRACE_S, self._end_processes)
        if not all_idle:  # what ran a batch then is closed once that has ended
            self._watchers.wait(lambda: ask(self._box, self._is_quiet))
            Pass(self._close_idle()[0], self._box.threads.pool).start(inf)

    def _fail_open(self) -> None:
        text = "the pipeline was closed before the request was done"
        for node in self._engine.nodes:
            fail_open(node, ClosedError(text))
        if self._engine.graph is not None:
            for request in list(self._engine.graph.open):
                request.end(ClosedError(text), frees=True)

    def hangs(self) -> bool:
        """Tell whether something has not ended in its ``close``."""
        return self._pass is not None and self._pass.current is not None

    def _end_processes(self) -> None:
        """End the processes of instances that are not closed by now."""
        instances = [instance for node in self._engine.nodes for instance in node.instances]
        for kill in [kill for instance in instances for kill in instance.liveness.killers]:
            kill()

    def _close_idle(self) -> tuple[list[Closing], bool]:
        """Return the steps that close what is idle, and whether all is.

        Nodes come in the reverse order of building, each after its instances.
        """
        all_idle = True
        steps: list[Closing] = []
        for name, built in reversed(self._engine.built.items()):
            instances = built.node.instances
            for index, close in reversed([*enumerate(built.close_instances)]):
                if index < len(instances) and instances[index].busy:
                    all_idle = False
                else:
                    steps.append((f"instance {index} of node {name}", close))
            if all_idle:
                steps.append((f"node {name}", built.close))
        if all_idle:
            steps.append(("what the nodes share", self._engine.blueprint.store.close))
        return steps, all_idle


def refuse(node: Node, error: ClosedError, *, drain: bool) -> None:
    """Refuse newcomers of a node, in a step.

    Entries that wait for room fail, and without ``drain`` all that wait.
    """
    node.take_in()
    node.special = True
    node.refusing = node.refusing or error
    node.short_cut.set_bounds()
    node.drains &= drain
    waiting = () if drain else (*node.queue, *node.pending.waiting)
    node.fail_waiting(error, [*node.room.outside, *waiting])
    node.note_change()


def fail_open(node: Node, error: ClosedError) -> None:
    """Fail all entries of a node that are still open; a step."""
    node.take_in()
    node.dead = True
    node.fail_waiting(error, [*node.queue, *node.room.outside])
    for entry in node.all_open():
        node.fail(entry, lambda _, *, running: ClosedError(error.args[0], abandoned=running))
    for instance in node.instances:
        if instance.holder is not None:
            for kill in instance.liveness.killers:
                node.box.later(kill)


# Step by step, for a thread that waits no longer than its timeout.

_AT_LEAST_S = 0.2
"""How long the steps may take at least, where waiting for batches has used up the timeout."""


class Watchers(list[Signal]):
    """The threads that sleep until a condition holds.

    Each adds its signal first, and then looks at the condition.
    """

    def wait(self, is_so: Callable[[], bool], until: float | None = None) -> bool:
        """Sleep until ``is_so()``; False when ``until``, a time in seconds, came first."""
        signal = Signal()
        self.append(signal)
        try:
            while not is_so():
                left = None if until is None else until - time.monotonic()
                if left is not None and left <= 0:
                    return False
                signal.sleep(left)
            return True
        finally:
            self.remove(signal)

    def wake(self) -> None:
        """Wake all threads, which then look again."""
        for signal in self.copy():
            signal.wake()


class Pass:
    """One run over closing steps, in a thread of the pool. A step that hangs is left behind.

    Each thread takes its steps out of one deque. So one that comes back from a step which was left
    behind finds none.

    Attributes:
        current: The step that has begun last. None once all have ended.
    """

    def __init__(self, steps: Iterable[Closing], pool: Pool) -> None:
        self._pool = pool
        self._steps = deque(steps)
        self._ended = Signal()
        self.current: str | None = "the pipeline"

    def start(self, until: float) -> None:
        """Take the steps, and wait for them.

        After ``until`` another thread goes on behind the step that hangs.
        """
        until = max(until, time.monotonic() + _AT_LEAST_S)
        try:
            self._pool.run(self._run)
        except RuntimeError:  # no more threads
            self._run()
        self._ended.sleep(until - time.monotonic())
        current = self.current
        if current is not None:
            message = "closing %s has not ended in time; it is left behind, "
            _log.warning(message + "the rest is closed without it", current)
            self._pool.run(Pass(self._take_steps(), self._pool)._run)

    def _take_steps(self) -> Iterator[Closing]:
        """Give the steps that are left, each to one thread alone."""
        with suppress(IndexError):
            while True:
                yield self._steps.popleft()

    def _run(self) -> None:
        for name, close in self._take_steps():
            self.current = name
            try:
                close()
            except BaseException as error:  # the others must be closed as well
                _log.warning("closing %s failed", name, exc_info=error)
        self.current = None
        self._ended.wake()
