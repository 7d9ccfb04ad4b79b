"""Answers a request at once: a coroutine that runs until it has to wait, and goes on as soon as what it waits for is there.

A task of asyncio begins in the next turn of the event loop, and goes on in another one. Most requests wait once, for the
pipeline. `Steps` runs these without a task, and makes one where anything else is awaited.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Generator

    from headrace import Pipeline
    from headrace.keys import Request

__all__ = ["Outcome", "Steps"]


class Outcome:
    """A request of a pipeline that was begun with all others of this turn of the event loop: await it.

    Raises:
        RequestError, ClosedError: As ``pipe.call_async`` raises them.
        asyncio.CancelledError: Who awaits it was cancelled. ``abandoned`` says whether a backend still runs on the request.
    """

    _future: asyncio.Future[None] | None = None
    _is_over = False
    steps: Steps | None = None
    """What goes on once the request has ended."""

    def __init__(self, pipe: Pipeline, request: Request, **call: Any) -> None:
        self._call = pipe.call_soon(request, self._end, **call)

    def _end(self, _: Any) -> None:
        self._is_over = True
        if self.steps is not None:
            self.steps.go_on()
        elif self._future is not None and not self._future.done():
            self._future.set_result(None)

    def __await__(self) -> Generator[Any, None, None]:
        try:
            if not self._is_over:
                if _running:
                    yield self
                    if not self._is_over and self.steps is not None:
                        self.steps.check_cancelled()
                else:
                    self._future = asyncio.get_running_loop().create_future()
                    yield from self._future
        except BaseException as error:
            self.steps = None
            error.abandoned = self._call.cancel()  # type: ignore[attr-defined]
            raise
        failure, self._call.error = self._call.error, None  # it will refer to this frame
        if failure is not None:
            try:
                raise failure
            finally:
                del failure


_running: list[Steps] = []
"""The steps that run now, in the one thread of the event loop."""


class Steps(Coroutine[Any, Any, None]):
    """Runs a coroutine.

    Args:
        work: The coroutine.
        among: Where this is, or its task, until the coroutine has ended.
    """

    _task: asyncio.Task[None] | None = None
    _first: Any = None
    _is_cancelled = False

    def __init__(
        self, work: Coroutine[Any, Any, None], among: set[Any], loop: asyncio.AbstractEventLoop
    ) -> None:
        self._work, self._among, self._loop = work, among, loop

    def go_on(self) -> None:
        """Run until something is awaited, or the end."""
        _running.append(self)
        try:
            awaited = self._work.send(None)
        except (StopIteration, asyncio.CancelledError):
            self._among.discard(self)
            return
        except BaseException:
            self._among.discard(self)
            raise
        finally:
            _running.pop()
        if type(awaited) is Outcome:
            self._among.add(self)
            awaited.steps = self
        else:
            self.become_task(awaited)

    def cancel(self) -> None:
        """Raise CancelledError where the coroutine waits."""
        if self._task is not None:
            self._task.cancel()
        elif _running:
            self._loop.call_soon(self.cancel)
        else:
            self._is_cancelled = True  # `Outcome` raises it
            self.go_on()

    def check_cancelled(self) -> None:
        """Raise CancelledError if it was cancelled since the last look."""
        was, self._is_cancelled = self._is_cancelled, False
        if was:
            raise asyncio.CancelledError

    def become_task(self, awaited: Any = None) -> None:
        """Go on as a task of asyncio, with what is awaited already: it knows what else can be."""
        self._first = awaited
        self._task = task = self._loop.create_task(self)
        self._among.discard(self)
        self._among.add(task)
        task.add_done_callback(self._among.discard)

    # As a coroutine, for its task.

    def send(self, value: Any) -> Any:
        """Go on; the first time with what is awaited already."""
        first, self._first = self._first, None
        return self._work.send(value) if first is None else first

    def throw(self, *error: Any) -> Any:
        """Raise an error where the coroutine waits."""
        self._first = None
        return self._work.throw(*error)

    def close(self) -> None:
        """End the coroutine."""
        self._work.close()

    def __await__(self) -> Generator[Any, Any, None]:
        raise TypeError("steps are run, and not awaited")
