"""Makes the changes that requests ask for in all worker processes: models that load and unload.

A server with one process makes a change itself. A worker process asks the supervisor, which has every worker process
make the change (`headrace_serve.operating.shared_changes`). The messages between the two are lines of JSON.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from typing import TYPE_CHECKING, Any, Protocol

from headrace.errors import HeadraceError, InputError, OverloadedError
from headrace_serve.errors import Refusal, RelayedError, UnavailableError, refusal

if TYPE_CHECKING:
    from collections.abc import Callable

    from headrace_serve.monitoring.health_changes import HealthChanges

    Message = dict[str, Any]

__all__ = ["WorkerChanges"]

logger = logging.getLogger("headrace.serve")

_MOST_ASKED = 16
_MOST_BYTES = 32 << 10
"""The most bytes of a change as JSON. Its texts come from requests, and are sent to every worker process."""


class Changed(Protocol):
    """The part of `Service` that a change needs."""

    debug_errors: bool
    starting: bool
    changes: HealthChanges

    async def make_change(self, change: Message) -> None:
        """Make a change in this process."""


class WorkerChanges:
    """One worker process's side of the changes that all worker processes make.

    The event loop of the process calls it. `take` and `end` may be called in any thread.

    Args:
        send: Sends a message to the supervisor.
    """

    def __init__(self, send: Callable[[Message], None]) -> None:
        self._send = send
        self._loop: asyncio.AbstractEventLoop | None = None
        self._ended = False
        self._asked: dict[int, asyncio.Future[Refusal | None]] = {}
        self._number = 0
        self._tasks: set[asyncio.Task[None]] = set()

    async def join(self, service: Changed) -> None:
        """Make the changes from before this process was started. From now on it makes every change.

        Raises:
            UnavailableError: The supervisor has ended.
        """
        loop = asyncio.get_running_loop()
        self._service = service
        self._turn = asyncio.Lock()
        self._joined: asyncio.Future[None] = loop.create_future()
        # A race with the thread that calls `end`. This thread stores `_loop` first and then reads `_ended`; the other
        # thread stores `_ended` first and then reads `_loop`. If `_loop` is stored first, `end` sees it and wakes
        # this loop; if `_ended` is stored first, it is read here. So the end of the supervisor is never missed, and
        # the await below does not last for ever.
        self._loop = loop
        if self._ended:
            raise _gone()
        self._send({"join": True})
        await self._joined

    async def ask(self, change: Message) -> None:
        """Have all worker processes make a change, including this one.

        Raises:
            InputError: The change is too long.
            OverloadedError: Too many changes of this process wait for their turn.
            RelayedError: A worker process could not make the change.
            UnavailableError: The supervisor has ended, or this process has not built its models yet.
        """
        if self._ended:
            raise _gone()
        if self._loop is None:
            raise UnavailableError("the models are being loaded")
        if len(json.dumps(change)) > _MOST_BYTES:
            raise InputError("the request", expected=f"at most {_MOST_BYTES} bytes of names")
        if len(self._asked) >= _MOST_ASKED:
            problem = "other changes are being made"
            raise OverloadedError(problem, queue_size=_MOST_ASKED, waiting=len(self._asked))
        self._number += 1
        number, answer = self._number, asyncio.get_running_loop().create_future()
        self._asked[number] = answer
        try:
            self._send({"ask": number, "change": change})
            refused = await asyncio.shield(answer)
        finally:
            if answer.done():
                self._asked.pop(number, None)
        if refused is not None:
            raise RelayedError(refused)

    def take(self, message: Message) -> None:
        """Take a message of the supervisor; called in any thread."""
        loop: Any = self._loop  # not None: the supervisor sends nothing before `join` asks it
        with contextlib.suppress(RuntimeError):  # the loop is closed at the end of the process
            loop.call_soon_threadsafe(self._take, message)

    def end(self) -> None:
        """Make `join` and `ask` fail, because the supervisor has ended and will not answer. Called in any thread."""
        self._ended = True
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._fail)

    def _fail(self) -> None:
        if not self._joined.done():
            self._joined.set_exception(_gone())
        while self._asked:
            _, answer = self._asked.popitem()
            answer.set_result(refusal(_gone()))

    def _take(self, message: Message) -> None:
        if "served" in message:
            self._service.starting = False
            self._service.changes.notify()
            self._send(message)
            return
        if "ping" in message:
            # The event loop answers: if it does not, nor does the process answer any request.
            self._send({"pong": True})
            return
        if "answer" in message:
            refused = message["refusal"]
            answer = self._asked.pop(message["answer"])
            answer.set_result(None if refused is None else Refusal(**refused))
            return
        task = asyncio.get_running_loop().create_task(self._make_all(message))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _make_all(self, message: Message) -> None:
        """Make the changes of one message, after the changes of all messages before it."""
        async with self._turn:
            if "change" in message:
                self._send({"made": await self._made(message["change"])})
                return
            for change in message["before"]:
                await self._made(change)
            self._joined.set_result(None)

    async def _made(self, change: Message) -> Message | None:
        """Make a change; give the answer for the client if the change fails, else None."""
        try:
            await self._service.make_change(change)
        except Exception as error:
            if not isinstance(error, HeadraceError):
                logger.exception("a change that a request asked for failed in the server")
            return vars(refusal(error, debug=self._service.debug_errors))
        return None


def _gone() -> UnavailableError:
    return UnavailableError("the server is shutting down")
