"""Reload: exchanging the instances of a node while requests go on; one at a time, all of it or nothing.

A worker thread builds and closes instances. So the thread that asked can stop waiting at any moment: when its
timeout is over, when the pipeline is closed, and after Ctrl-C.
"""

from __future__ import annotations

import logging
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from headrace._scheduling.cycles import served_here
from headrace._scheduling.threads import Watchers, reentrant, withdrawn_by
from headrace.errors import ClosedError, ContractError, DeadlineExceededError, SetupError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from headrace._engine.engine import Engine
    from headrace._engine.teardown import Retirement

_log = logging.getLogger("headrace.reload")


class _GivenUpError(Exception):
    """Ends the worker's part of a reload that has failed: the thread that asked has the reason already."""


_WAITS, _BUILDS, _IN_PLACE = "waits", "builds", "in place"
_SERVES, _OVER, _FAILED = "serves", "over", "failed"


@dataclass(eq=False)
class _Job:
    """One reload, shared by the thread that asked for it, which waits, and the worker that does it.

    Both change the state under the job's lock. The worker commits when it enters "in place"; another thread
    fails the job (its timeout is over, the pipeline closes, Ctrl-C). The first of the two wins: if the worker
    has committed, `fail` changes nothing; if the job has failed, `enter` raises in the worker.

    Attributes:
        node, changes: The node, and its new keys.
        timeout_s: The seconds that the reload may take.
        inside: Whether the thread that asked runs a batch of the pipeline, is inside a probe or takes a request
            through the nodes, as below a signal handler: it waits for no batch and no request then.
        until: When that timeout is over, in seconds of `time.monotonic`.
        cancel: Lets the thread that builds give up, once there is such a thread.
        state: The job waits for earlier reloads, builds, is in place (the new instances are about to serve),
            serves (they do), is over (all old instances are closed), or has failed.
    """

    node: str
    changes: Mapping[str, Any]
    timeout_s: float
    inside: bool
    state: str = _WAITS
    cancel: Callable[[], None] | None = None
    _error: BaseException | None = None
    _lock: threading.RLock = field(default_factory=threading.RLock)
    _watchers: Watchers = field(default_factory=Watchers)

    def __post_init__(self) -> None:
        self.until = time.monotonic() + self.timeout_s

    @property
    def left_s(self) -> float:
        """How many seconds are left, at least 0."""
        return max(0.0, min(self.until - time.monotonic(), threading.TIMEOUT_MAX))

    # For the thread that asked.

    def wait(self) -> None:
        """Wait until the reload or its timeout is over; raises the error when nothing has changed."""
        ends = (_SERVES, _OVER, _FAILED) if self.inside else (_OVER, _FAILED)
        self._watchers.wait(lambda: self.state in ends or not self.left_s, self.until)
        self.fail(self._late())  # changes nothing where the reload has ended
        if self._error is not None:
            raise self._error
        if self.state not in ends:
            _log.warning("node %s: old instances are closed when their batch ends", self.node)

    def _late(self) -> DeadlineExceededError:
        what = "the new instances were not warm"
        if self.state == _WAITS:
            what = "another reload of this pipeline did not end"
        what += f" within {self.timeout_s:g} s"
        return DeadlineExceededError(f"{what}; nothing has changed", node=self.node)

    # For the worker, and for threads that end the job.

    def fail(self, error: BaseException) -> bool:
        """End the job with nothing changed, unless the new instances are in place; False: no backend is left running."""
        with self._lock:
            ends = self.state in (_WAITS, _BUILDS)
            if ends:
                self.state, self._error = _FAILED, error
        if ends and self.cancel is not None:
            self.cancel()
        self._watchers.wake()
        return False

    def enter(self, state: str) -> None:
        """Enter another state; raises when the job has failed."""
        with self._lock:
            if self.state == _FAILED:
                raise _GivenUpError
            self.state = state
        self._watchers.wake()


class Reloader:
    """The reloads of one pipeline."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._turn = threading.Lock()
        self._jobs: dict[int, _Job] = {}  # by the ident of the worker thread
        engine.closes.append(self._closed)

    @reentrant()
    def reload(self, node: str, changes: Mapping[str, Any], timeout_s: float) -> list[str]:
        """Exchange the instances of a node, see ``Pipeline.reload``; give what is to be said of the changes."""
        self._engine.entrance.check_open()
        if not served_here(threading.get_ident()).isdisjoint(self._jobs.copy()):
            what = "a backend that is being built asked its own pipeline for a reload, which would wait for it"
            name = node if isinstance(node, str) else None
            raise ContractError(what, node=name, hint="Reload from another thread.")
        job = _Job(node, changes, timeout_s, inside=self._engine.needs_this_thread())
        called = f"headrace-reload-{node}"
        thread = threading.Thread(target=self._work, args=(job,), name=called, daemon=True)
        withdrawn_by(partial(job.fail, _GivenUpError()))
        try:
            thread.start()
            job.wait()
        except RuntimeError as error:
            if thread.ident is not None:
                raise
            # The system has no more threads, or the interpreter ends.
            raise SetupError(f"no thread could be started to reload: {error}") from error
        except BaseException as interrupt:
            job.fail(interrupt)
            raise
        changed = {f"{node}.{key}" for key in changes}
        # The user has just written a key that has no effect.
        return [one.render() for one in self._engine.blueprint.warnings if one.path in changed]

    def _closed(self) -> None:
        """Fail the reloads that are not in place when the pipeline begins to close."""
        for job in self._jobs.copy().values():
            job.fail(ClosedError("the pipeline was closed before the new instances were in place"))

    def _work(self, job: _Job) -> None:
        me = threading.get_ident()
        self._jobs[me] = job
        retirement: Retirement | None = None
        try:
            if not self._turn.acquire(timeout=job.left_s):
                return
            try:
                job.enter(_BUILDS)
                retirement = self._exchange(job)
                job.enter(_SERVES)
            finally:
                self._turn.release()
        except BaseException as error:  # noqa: BLE001 - the thread that asked raises it
            job.fail(error)
        finally:
            del self._jobs[me]
        # Each old instance is closed after its batch. When the timeout is over, the thread that asked has left.
        while retirement is not None and not retirement.close_ended():
            retirement.signal.sleep()
        with suppress(_GivenUpError):
            job.enter(_OVER)

    def _exchange(self, job: _Job) -> Retirement | None:
        """Build the new node and put it in place; None for a second door, where nothing retires."""
        self._engine.entrance.check_open()
        change = self._engine.blueprint.change(job.node, job.changes)
        job.cancel = change.cancel
        try:
            job.enter(
                _BUILDS
            )  # raises where the job has failed in the meantime, and has cancelled nothing
            new = self._engine.build_aside(change, job.node)
            return self._engine.put_in_place(change, job.node, new, partial(job.enter, _IN_PLACE))
        except BaseException:
            if job.state != _IN_PLACE:
                change.close()
            raise
