"""Outcomes of requests for which no thread waits: futures and coroutines."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError
from functools import partial
from threading import get_ident
from typing import TYPE_CHECKING, Any, cast

from headrace._run.requests.deadlocks import is_endless
from headrace._run.requests.entry import DONE, Entry, refuses_change
from headrace._run.requests.refusals import endless_wait, withdrawn
from headrace._run.steps import threads
from headrace._run.steps.box import ask, is_inside, refuse_inside
from headrace._run.steps.threads import Signal, took_token, warn_in_coroutine
from headrace.keys import Request

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Generator, Sequence

    from headrace._run.node import Node
    from headrace._run.steps.box import Box

_log = logging.getLogger("headrace.callbacks")


class RequestFuture(Future["dict[str, Any]"]):
    """The answer to one submitted request: its dict, or its error.

    ``cancel()`` is True only while the request waits. No thread that runs steps waits for the lock
    of a future: the main thread may hold it while a signal handler, which has interrupted it there,
    waits for that very thread.

    A coroutine may await it: ``await pipe.submit(request)``.
    """

    _condition: Any
    _done_callbacks: list[Any]
    _is_cancelled = False
    _sleepers: list[Signal] | None = None  # None where nobody has to wait
    _entry: Entry | None = None  # while it has no outcome. None for one that never entered
    _parts: Any = None  # where parts of the answer go

    def _expects(self, entry: Entry) -> None:
        """Let the outcome of an entry come here."""
        self._entry = entry
        self._sleepers = []
        entry.then = self._note_outcome

    def _note_outcome(self, entry: Entry) -> None:
        entry_box(entry).later(self._take_outcome, entry)

    def running(self) -> bool:
        """Tell whether a backend runs on the request."""
        entry = self._where()
        return entry is not None and not self.done() and entry.node.running(entry)

    def _where(self) -> Entry | None:
        """Return the entry whose outcome this waits for. None if it has not entered."""
        entry = self._entry
        return None if entry is None or entry.node is None else entry

    def note_waiting(self, thread: int) -> None:
        """Note that a thread, by its identifier, holds an instance until the answer comes.

        So circles of calls are found where the thread does not wait in `result`.
        """
        entry = self._where()
        if entry is not None:
            entry.awaited = thread

    def cancel(self) -> bool:
        """Withdraw the request. False when a backend runs on it, or it is done.

        In a destructor within a step the answer is False, and the request is withdrawn a moment
        later if it waits then.
        """
        if self.done() or self._entry is None:
            return self.cancelled()
        if is_inside():
            entry_box(self._entry).threads.pool.run(self.cancel)
            return False
        if ask(entry_box(self._entry), self._entry.node.cancel, self._entry) is True:
            self._is_cancelled = True
            if self._entry.held is not None:  # a backend has changed its dict
                self._entry.give_back()
            self._entry.leave()
            self._end_parts()
            if super().cancel():
                self.set_running_or_notify_cancel()
            self._wake()
        return self.cancelled()

    def result(self, timeout: float | None = None) -> Request:
        """Wait for the dict; ContractError where this thread holds the instance that it needs."""
        try:
            request: Request = self._wait(super().result, timeout)
            return request
        finally:
            del self  # see `Entry.take_error`

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Wait for the outcome; give its error or None; ContractError as in `result`."""
        error: BaseException | None = self._wait(super().exception, timeout)
        return error

    def _wait(self, wait: Callable[[float | None], Any], timeout: float | None) -> Any:
        try:
            if self._sleepers is None or self.done():
                return wait(timeout)
            self._sleep(self._sleepers, timeout)
            return wait(0)
        finally:
            del self, wait  # see `Entry.take_error`

    def _sleep(self, sleepers: list[Signal], timeout: float | None) -> None:
        warn_in_coroutine()
        # Not on the condition of the base class: Ctrl-C in the midst of its wait may leave it in
        # another's hands.
        until = None if timeout is None else time.monotonic() + timeout
        awaited: Entry | None = None
        signal = Signal()
        sleepers.append(signal)
        try:
            while not self.done():
                entry = self._entry or self._where()
                if entry is not None and entry is not awaited and entry.node is not None:
                    start_wait(entry)
                    awaited = entry
                left_s = None if until is None else until - time.monotonic()
                if left_s is not None and left_s <= 0:
                    break
                signal.sleep(left_s)
        finally:
            if awaited is not None:
                awaited.awaited = 0
            sleepers.remove(signal)

    def _wake(self) -> None:
        for signal in [*(self._sleepers or ())]:
            signal.wake()

    def __await__(self) -> Generator[Any, None, Request]:
        import asyncio

        return asyncio.wrap_future(self).__await__()

    def _take_outcome(self, entry: Entry) -> None:
        """Take the outcome of the entry; in no step."""
        if self._parts is not None:
            self._end_parts()
        try:
            entry.give_back()
        except BaseException as raised:  # the user's dict may raise anything
            entry.error = entry.error or refuses_change(raised)
        error, entry.error = entry.error, None  # see `Entry.take_error`
        if not self._condition.acquire(blocking=False):
            entry_box(entry).threads.pool.run(self._end_and_wake, entry.request, error)
            return
        try:
            self._end(entry.request, error)
        finally:
            self._condition.release()
        self._wake()

    def _end_parts(self) -> None:
        parts, self._parts = self._parts, None
        if parts is not None:
            parts.end()

    def _end_and_wake(self, request: Request, error: BaseException | None) -> None:
        self._end(request, error)
        self._wake()

    def _end(self, request: Request, error: BaseException | None) -> None:
        try:
            if error is None:
                self.set_result(request)
            else:
                self.set_exception(error)
        except InvalidStateError:  # it was cancelled a moment ago
            pass

    def _invoke_callbacks(self) -> None:
        if self._is_cancelled:  # by this thread
            self._call_all()
        elif self._done_callbacks:
            # They may take any time, and the answering thread has other requests to serve.
            node = None if self._entry is None else self._entry.node
            its_threads = threads.current if node is None else node.box.threads
            its_threads.pool.run(self._call_all)

    def _call_all(self) -> None:
        for callback in self._done_callbacks:
            try:
                callback(self)
            except BaseException as error:  # the others are called all the same
                _log.error("a callback raised", exc_info=error)


class RelayFuture(RequestFuture):
    """The future of a request whose answer another future has, now or later.

    For who stands between a caller and a pipeline, as where a model is still to be built, or two
    models run the request and one of them answers. Its caller has what `headrace.Pipeline.submit`
    gives: `cancel` withdraws the request only while it waits, `running` and circles of calls are
    those of the future that it follows, and a coroutine may await it.
    """

    def __init__(self) -> None:
        super().__init__()
        self._sleepers = []
        self._followed: RequestFuture | None = None
        self._thread = 0
        self._token = [None]

    def follow(
        self, future: RequestFuture, then: Callable[[RequestFuture], object] | None = None
    ) -> None:
        """Wait for another future from now on. A relay that was cancelled cancels it.

        Args:
            future: The future, of which nobody else waits for the answer.
            then: Called with it once it has ended, unless it was cancelled. It calls `finish`, or
                `follow`. What it raises is the outcome. None: the outcome is that of the future.
        """
        self._followed = future
        if self._thread:
            future.note_waiting(self._thread)
        if self.done():
            future.cancel()
        self._wake()
        future.add_done_callback(partial(self._note_end, then))

    def _note_end(self, then: Callable[[RequestFuture], object] | None, future: Any) -> None:
        try:
            if future.cancelled():
                self._give_up()
            elif then is not None:
                then(future)
            else:
                self.finish(future.exception() or future.result())
        except BaseException as error:  # of `then`: nobody waits for ever
            self.finish(error)

    def finish(self, outcome: Any) -> bool:
        """End the request: with an exception as its error, else with the finished dict.

        It gives False, and changes nothing, where it has ended.
        """
        if not took_token(self._token):
            return False
        if isinstance(outcome, BaseException):
            self._end({}, outcome)
        else:
            self._end(outcome, None)
        self._wake()
        return True

    def cancel(self) -> bool:
        """Withdraw the request. False when a backend runs on it, or it is done."""
        if self.done():
            return self.cancelled()
        followed = self._followed
        return (followed is None or followed.cancel()) and self._give_up()

    def _give_up(self) -> bool:
        if took_token(self._token):
            self._is_cancelled = True
            Future.cancel(self)
            self.set_running_or_notify_cancel()
            self._wake()
        return self.cancelled()

    def _where(self) -> Entry | None:
        return None if self._followed is None else self._followed._where()

    def note_waiting(self, thread: int) -> None:
        """Note that a thread holds an instance until the answer comes: see `RequestFuture`."""
        self._thread = thread
        if self._followed is not None:
            self._followed.note_waiting(thread)


def entry_box(entry: Entry) -> Box:
    """Return the box of the pipeline of an entry that has entered."""
    return entry.node.box


def start_wait(entry: Entry) -> None:
    """Let it be seen that this thread waits for an entry.

    It raises ContractError where the thread holds what the entry waits for.
    """
    refuse_inside(entry.node.name)
    for waiting in entry.node.waiting_for(entry):
        node = cast("Node", waiting.node)
        holds_instance = not node.free and node.is_held_by_this_thread()
        if holds_instance or is_endless(node, get_ident()):
            raise endless_wait(node.name)
    entry.awaited = get_ident()


class LoopWaker:
    """What one event loop and a pipeline tell each other: one call wakes all that is due there.

    Attributes:
        loop: The event loop.
        comes: Whether the loop is to let enter what it has begun.
        due: What is to be called in the loop.
    """

    __slots__ = ("_calls", "_looks", "_thread", "_token", "comes", "due", "loop")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.comes = False
        self.due: deque[Callable[[], object]] = deque()
        self._token = [None]
        self._thread = get_ident()
        self._calls = self._looks = False

    def wake(self, function: Callable[[], object]) -> None:
        """Have a function called in the loop; in any thread."""
        self.due.append(function)
        if not self._token:
            return
        try:
            self._token.pop()
            if get_ident() == self._thread:
                self.loop.call_soon(self._wake_all)
            else:
                self.loop.call_soon_threadsafe(self._wake_all)
        except IndexError:  # another thread was quicker
            return
        except BaseException as error:  # the loop was not told: who comes next tells it
            self._token[:] = [None]
            if not isinstance(error, RuntimeError):  # a closed loop has no waiting coroutines
                raise

    def _wake_all(self) -> None:
        """Call what is due now. What comes meanwhile is called in a later turn of the loop."""
        self._token[:], self._calls, self._looks = [None], True, False
        try:
            for _ in range(len(self.due)):
                function = self.due.popleft()
                try:
                    function()
                except Exception as error:  # the others are called all the same
                    _log.error("a callback raised", exc_info=error)
        finally:
            self._calls = False
            self.look()

    def look(self) -> None:
        """Have what is due called in a later turn, where Ctrl-C has perhaps hit the loop."""
        if self.due and not self._calls and not self._looks:
            self._looks = True
            self.loop.call_soon(self._wake_all)


class LoopCall:
    """One request begun in an event loop, which is told its outcome: `Pipeline.call_soon`.

    Attributes:
        request: The dict.
        error: Its error once it has ended, None for success.
        entry: Its entry.
        route: Its way through the graph. None without one.
    """

    __slots__ = ("_box", "_done", "_waker", "entry", "error", "request", "route")
    entry: Entry
    _waker: LoopWaker
    route: Any
    error: BaseException | None

    def __init__(self, request: Request, done: Callable[[LoopCall], object]) -> None:
        self.request, self._done, self.error = request, done, None

    def note_entry(self, box: Box, waker: LoopWaker, entry: Entry, route: Any) -> None:
        """Have the loop told when an entry has its outcome."""
        self._box, self._waker, self.entry, self.route = box, waker, entry, route
        entry.then, entry.awaited = self._note_end, get_ident()

    def cancel(self) -> bool:
        """Give the request up, untold. True where a backend still runs on its dict."""
        if self._done is _note_nothing:
            error, self.error = self.error, None  # as `Entry.take_error`
            return getattr(error, "abandoned", False) is True
        entry, self._done = self.entry, _note_nothing
        abandoned = give_up_all(self._box, [entry])
        if not abandoned:
            entry.give_back()
        entry.error = None  # no caller takes this error any more; see `Entry.take_error`
        return abandoned

    def give_error_back(self) -> None:
        """Let the entry have its error again, if it was told: see `Entry.take_error`."""
        if self.error is not None:
            self.entry.error, self.error = self.error, None

    def end(self) -> None:
        """Let go of the request, which was given up: the loop may end before it is told."""
        self._done, self.error, self.request = _note_nothing, None, {}
        del self.entry

    def fail(self, error: BaseException) -> None:
        """End a request that could not enter; in the loop."""
        self.entry.error = error
        self._waker.wake(self._end)

    def _note_end(self, entry: Entry) -> None:
        entry.node.box.after.append((self._waker.wake, (self._end,)))

    def _end(self) -> None:
        done, self._done = self._done, _note_nothing
        if done is not _note_nothing:
            entry = self.entry
            entry.give_back()
            self.error, entry.error = entry.error, None  # see `Entry.take_error`
            done(self)


def _note_nothing(_: LoopCall) -> None:
    """Do nothing: nobody is told any more."""


def give_up(entries: Sequence[Entry]) -> bool:
    """Withdraw all requests that wait; tell whether a backend runs on another; a step."""
    left = False
    for entry in entries:
        node = entry.node
        entry.leave()
        if node is None:  # it has not entered yet, and will not
            entry.state, entry.then = DONE, None
            continue
        if entry.state == DONE:
            # Its caller has not been told yet: a probe still reads its dict.
            left |= entry.then is not None or getattr(entry.error, "abandoned", False) is True
            entry.then = None
            continue
        entry.then = None
        left |= node.fail(entry, withdrawn)
    return left


def give_up_all(box: Box, entries: Sequence[Entry]) -> bool:
    """Do `give_up` from any thread."""
    return ask(box, give_up, entries) is True
