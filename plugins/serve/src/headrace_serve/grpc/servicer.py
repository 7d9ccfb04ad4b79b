"""Carries calls by the server of grpcio."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Any

import grpc

from headrace_formats import joined_headers
from headrace_serve.errors import BodyTooLargeError, NotReceivedError
from headrace_serve.grpc.context import CallError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping
    from typing import NoReturn

    from headrace_serve.grpc.context import Method
    from headrace_serve.service import Service

__all__ = ["add_methods"]


def add_methods(server: Any, methods: Mapping[str, Mapping[str, Method]], service: Service) -> None:
    """Add methods, by the names of their services and their own, to a ``grpc.aio`` server."""
    carrier = _Carrier(service)
    for name, of_service in methods.items():
        handlers = {each: carrier.handler(method) for each, method in of_service.items()}
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(name, handlers),))


class _Receiving:
    """Cancels the tasks of calls whose messages do not arrive in time.

    All calls have the same time limit, so the one that began first is due first. One timer watches that one alone,
    because a timer for each call would cost the event loop one more turn.

    Args:
        seconds: The time.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._due: dict[asyncio.Task[Any], float] = {}
        self._late: set[asyncio.Task[Any]] = set()
        self._timer: asyncio.TimerHandle | None = None

    def begin(self, task: asyncio.Task[Any]) -> None:
        """Start the time of a task; `end` stops it."""
        loop = task.get_loop()
        self._due[task] = loop.time() + self._seconds
        if self._timer is None:
            self._timer = loop.call_later(self._seconds, self._look, loop)

    def is_late(self, task: asyncio.Task[Any]) -> bool:
        """Return whether the task was cancelled here."""
        return task in self._late

    def end(self, task: asyncio.Task[Any]) -> None:
        """Stop the time of a task."""
        self._due.pop(task, None)
        self._late.discard(task)

    def _look(self, loop: asyncio.AbstractEventLoop) -> None:
        self._timer = None
        for task, due in list(self._due.items()):
            left = due - loop.time()
            if left > 0.001:
                self._timer = loop.call_later(left, self._look, loop)
                return
            del self._due[task]
            self._late.add(task)
            task.cancel()


class _Call:
    """A `Context` around that of grpcio."""

    trailing: tuple[tuple[str, str], ...] = ()

    def __init__(self, context: Any, service: Service, receiving: _Receiving | None) -> None:
        self._context, self._service, self._receiving = context, service, receiving
        self.peer = context.peer
        self.left_s = context.time_remaining
        metadata = context.invocation_metadata() or ()
        self.headers = joined_headers((k, v) for k, v in metadata if isinstance(v, str))

    @property
    def is_cancelled(self) -> bool:
        """Whether the client has ended the call."""
        cancelled: bool = self._context.cancelled()
        return cancelled

    async def read(self) -> bytes | None:
        """Receive the next message.

        It is read from the context, not from the iterator of requests. That is an asynchronous generator,
        and asyncio would start a task to close it, because it is left before its end.
        """
        data = await (self._context.read() if self._receiving is None else self._received())
        if data is grpc.aio.EOF:
            return None
        received: bytes = data
        most = self._service.limits.max_body_bytes
        if len(received) > most:
            text = f"the message has {len(received)} bytes, the limit is {most}"
            raise BodyTooLargeError(text)
        self._service.hold(0, len(received))
        return received

    async def _received(self) -> Any:
        task: Any = asyncio.current_task()
        receiving: Any = self._receiving
        receiving.begin(task)
        try:
            return await self._context.read()
        except asyncio.CancelledError:
            if not receiving.is_late(task):
                raise
            if hasattr(task, "uncancel"):  # from Python 3.11 on a task counts its cancellations
                task.uncancel()
            seconds = self._service.limits.receive_timeout_s
            raise NotReceivedError(f"the request was not received within {seconds:g} s") from None
        finally:
            receiving.end(task)


class _Carrier:
    """Makes handlers of grpcio.

    All are registered as ones for a stream of requests. So the arrival of a request has a deadline, and one that
    cannot be parsed is answered with a status of its own.
    """

    def __init__(self, service: Service) -> None:
        self._service = service
        self._receiving = _Receiving(service.limits.receive_timeout_s)

    def handler(self, method: Method) -> Any:
        """Return the handler of a method."""
        if method.streams:
            return grpc.stream_stream_rpc_method_handler(partial(self._stream, method))
        return grpc.stream_unary_rpc_method_handler(partial(self._answer, method))

    async def _answer(self, method: Method, requests: Any, context: Any) -> bytes:
        call = _Call(context, self._service, self._receiving)
        try:
            answer: bytes = await method.respond(call)
        except CallError as error:
            await _abort(context, error)
        context.set_trailing_metadata(call.trailing)
        self._keep(len(answer))
        return answer

    async def _stream(self, method: Method, requests: Any, context: Any) -> AsyncIterator[bytes]:
        call = _Call(context, self._service, None)
        try:
            async for answer in method.respond(call):
                yield answer
        except CallError as error:
            await _abort(context, error)

    def _keep(self, size: int) -> None:
        """Count the bytes of an answer until the client has taken them or gone away: then the task of the call ends.

        A callback of the context would do the same, and leave a cycle of references, from the context to itself.
        """
        service, task = self._service, asyncio.current_task()

        def taken(_: Any) -> None:
            service.note_unsent(-size)

        service.note_unsent(size)
        task.add_done_callback(taken)  # type: ignore[union-attr]


async def _abort(context: Any, error: CallError) -> NoReturn:
    status = getattr(grpc.StatusCode, error.status)
    await context.abort(status, error.text, trailing_metadata=tuple(error.trailing))
    raise error  # never reached: `abort` raises
