"""Closing a pipeline: newcomers are refused, the others end, and all that was built is closed, whatever hangs."""

from __future__ import annotations

import sys
import time
from functools import partial
from math import inf
from threading import get_ident
from typing import TYPE_CHECKING, Any

from headrace._run.box import ask, is_inside
from headrace._run.parts import read_from
from headrace._run.streams import Reader
from headrace._run.teardown import Pass, Watchers
from headrace._run.threads import took_token
from headrace.errors import ClosedError

if TYPE_CHECKING:
    from headrace._run.teardown import Closing

_GRACE_S = 0.8
"""How long processes that hang in their ``close`` are left behind, before they are ended."""


class Closer:
    """Closes one pipeline.

    Attributes:
        error: The error of newcomers. None while the pipeline is open.
        is_over: Whether everything is closed.
    """

    def __init__(self, engine: Any) -> None:
        self._engine = engine
        self._box = engine.box
        self._watchers = Watchers()
        self._passes: list[Pass] = []
        self.error: ClosedError | None = None
        self.is_over = self._has_ended = self._needs_this_thread = False
        self._unfinished = [None]

    def close(self, *, drain: bool, timeout: float) -> None:
        """Close the pipeline; see ``Pipeline.close``."""
        # In the child of a fork, and once the interpreter ends, no thread is left that could close anything.
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
        error = self.error
        self._box.closes = True
        self._box.later(self._start_end, until)
        for node in reversed(self._engine.nodes):
            refuse(node, error, drain=drain)
            for parts in filter(None, map(read_from, node.all_open())):
                reader = parts.root.take
                # While requests are drained others go on reading, and the thread that closes does not.
                if isinstance(reader, Reader) and (not drain or reader.thread == closes):
                    reader.end_wait()
        if not drain and self._engine.graph is not None:
            for one in list(self._engine.graph.open):
                if all(entry.state != "running" for entry in one.open):
                    one.end(error._passing(passes=False))

    def _start_end(self, until: float) -> None:
        try:
            self._box.threads.pool.run(self._end, until)
        except RuntimeError:  # no more threads, or the interpreter ends
            self._needs_this_thread = True

    def _is_quiet(self) -> bool:
        """Tell whether no request waits, runs or is PENDING, between nodes either; in a step."""
        if self._engine.graph is not None and (
            self._engine.graph.open or self._engine.graph.walking
        ):
            return False
        return self._box.is_told and all(node.quiet for node in self._engine.nodes)

    def look_if_quiet(self) -> None:
        """Wake who waits for the last request, if that has ended; in a step."""
        if self.error is not None and self._is_quiet():
            self._watchers.wake()

    def _end(self, until: float) -> None:
        """Wait for the requests that are open, fail those that are left, and close all that was built."""
        self._engine.blueprint.store._end_waits()
        quiet = self._watchers.wait(lambda: ask(self._box, self._is_quiet) or self.is_over, until)
        if self.is_over:
            return
        if not quiet:
            ask(self._box, self._fail_open)
        if not took_token(self._unfinished):  # another thread closes all
            return
        steps, all_idle = self._steps()
        closing = Pass(steps, self._box.threads.pool)
        self._passes.append(closing)
        closing.start(until)
        self.is_over = self._has_ended = (
            True  # the probes are closed, which saw the pipeline closed
        )
        self._watchers.wake()
        if closing.hangs or self._engine.busy():
            self._box.threads.timer.call_at(time.monotonic() + _GRACE_S, self._end_processes)
        if not all_idle:  # what ran a batch then is closed once that has ended
            self._watchers.wait(lambda: ask(self._box, self._is_quiet))
            Pass(self._close_idle()[0], self._box.threads.pool).start(inf)

    def _fail_open(self) -> None:
        text = "the pipeline was closed before the request was done"
        for node in self._engine.nodes:
            fail_open(node, ClosedError(text))
        if self._engine.graph is not None:
            for one in list(self._engine.graph.open):
                one.end(ClosedError(text), frees=True)

    def hangs(self) -> bool:
        """Tell whether something was left behind that has not ended in its ``close``."""
        return any(one.hangs and not one.over for one in self._passes)

    def _end_processes(self) -> None:
        """End the processes of instances that are not closed by now."""
        presences = [one.liveness for node in self._engine.nodes for one in node.instances]
        for end in [end for liveness in presences for end in liveness.killers]:
            end()

    def _steps(self) -> tuple[list[Closing], bool]:
        """Return the steps that close idle instances and nodes, and the probes; and whether all were idle."""
        steps, all_idle = self._close_idle()
        steps.append(("the pipeline", partial(setattr, self, "is_over", True)))
        steps.append(("the probes", lambda: self._engine.probes.close()))
        return steps, all_idle

    def _close_idle(self) -> tuple[list[Closing], bool]:
        """Return the steps that close the idle instances, and the nodes that have no others, in order; and whether all are idle."""
        all_idle = True
        found: list[Closing] = []
        for name, node in reversed(self._engine.built.items()):
            own = node.scheduler.instances
            for index in reversed(range(len(node.instances))):
                if index < len(own) and own[index].busy:
                    all_idle = False
                else:
                    found.append((f"instance {index} of node {name}", node.instances[index].close))
            if all_idle:
                found.append((f"node {name}", node.parts.close))
        if all_idle:
            found.append(("what the nodes share", self._engine.blueprint.store.close))
        return found, all_idle


def refuse(node: Any, error: ClosedError, *, drain: bool) -> None:
    """Refuse newcomers of a node; fail the entries that wait for room, and without ``drain`` those that wait at all; a step."""
    node.special = True
    node.standby.let_in()
    node.refusing = node.refusing or error
    node.short_cut.set_bounds()
    node.drains &= drain
    kept = () if drain else (*node.queue, *node.pending.waiting)
    node.fail_waiting(error, [*node.room.outside, *kept])
    node.note_change()


def fail_open(node: Any, error: ClosedError) -> None:
    """Fail all entries of a node that are still open; a step."""
    node.dead = True
    node.fail_waiting(error, [*node.queue, *node.room.outside])
    for entry in node.all_open():
        node.fail(entry, lambda _, *, running: ClosedError(error.args[0], abandoned=running))
    for instance in node.instances:
        if instance.holder is not None:
            for kill in instance.liveness.killers:
                node.box.later(kill)
