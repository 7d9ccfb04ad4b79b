"""ModelStreamInfer: the requests of one call, several at a time, with one response or many each.

The responses come in the order of the requests. Those of a decoupled model, the parts of an answer, come as they are
made, after the ones of other models that were asked before.
"""

from __future__ import annotations

import asyncio
import contextlib
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from headrace.errors import HeadraceError
from headrace_serve.errors import NotAllowedError, UnauthenticatedError, UnavailableError
from headrace_serve.grpc.calls import parsed
from headrace_serve.grpc.messages import message
from headrace_serve.grpc.tensors import RESPONSE, as_streamed, read_message, write_response
from headrace_serve.inference.messages import Answer
from headrace_serve.inference.parameters import FINAL, flag
from headrace_serve.inference.tensors import elements_in
from headrace_serve.monitoring.access_log import AccessLine
from headrace_serve.threads import call_by_size

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine

    from headrace_serve.grpc.calls import Calls
    from headrace_serve.grpc.context import Context
    from headrace_serve.grpc.front import Front
    from headrace_serve.grpc.tensors import Received
    from headrace_serve.models.model import Model
    from headrace_serve.service import Service

__all__ = ["stream_of_inferences"]

_STREAMED: Final = 64
"""The most requests of one stream that run at a time."""

_STREAMED_ANSWER: Final = message("inference.ModelStreamInferResponse")

_IS_FINAL: Final = "triton_final_response"


def stream_of_inferences(
    front: Front, calls: Calls, service: Service
) -> Callable[[Context], AsyncIterator[bytes]]:
    """Return what answers ModelStreamInfer, for the context of a call."""

    async def stream(context: Context) -> AsyncIterator[bytes]:
        try:
            calls.authenticate(context, "infer")
        except (NotAllowedError, UnauthenticatedError) as error:
            raise calls.refused("ModelStreamInfer", context, error) from None
        call = _Stream(front, calls, service, context)
        async with contextlib.aclosing(call.answers()) as answers:
            async for answer in answers:
                yield answer
        if service.draining:
            why = UnavailableError("the server is shutting down")
            raise calls.refused("ModelStreamInfer", context, why)

    return stream


def _read(error: Exception | None, data: bytes) -> Received:
    if error is not None:
        raise error
    return read_message(data)


class _Stream:
    """One call of ModelStreamInfer.

    Args:
        front: Answers its requests.
        calls: Checks keys and sizes, and makes errors answers.
        service: What is served.
        context: That of the call.
    """

    def __init__(self, front: Front, calls: Calls, service: Service, context: Context) -> None:
        self._front, self._calls, self._service = front, calls, service
        self._context = context
        self._unsent_bytes, self._is_over = 0, False
        self._responses: asyncio.Queue[asyncio.Task[bytes] | bytes | None]
        self._responses = asyncio.Queue(_STREAMED)
        self._tasks: set[asyncio.Task[Any]] = set()
        self._taken = asyncio.Event()
        self._in_parts: set[asyncio.Task[Any]] = set()

    async def answers(self) -> AsyncGenerator[bytes]:
        """Give the responses; who closes this cancels the requests."""
        reader = asyncio.create_task(self._read())
        ender = asyncio.create_task(self._end(reader))
        try:
            while (response := await self._responses.get()) is not None:
                answer = response if isinstance(response, bytes) else await response
                if answer:
                    yield answer
                    self._count_unsent(-len(answer))
                    self._taken.set()
            if reader.done() and not reader.cancelled():
                reader.result()  # what came before was answered
        finally:
            self._count_unsent(-self._unsent_bytes)
            self._is_over = True
            for left in (reader, ender, *self._tasks):
                left.cancel()

    def _count_unsent(self, size: int) -> None:
        """Count bytes of answers until the client has taken them, or the stream has ended."""
        if not self._is_over:
            self._service.unsent_bytes += size
            self._unsent_bytes += size

    async def _read(self) -> None:
        try:
            while True:
                try:
                    data = await self._context.read()
                except HeadraceError as error:
                    await self._responses.put(self._begin(self._answer(b"", error)))
                    continue
                if data is None:
                    break
                await self._responses.put(self._begin(self._answer(data)))
                while len(self._in_parts) >= _STREAMED:
                    await asyncio.wait(self._in_parts, return_when=asyncio.FIRST_COMPLETED)
        except Exception:
            await self._last()  # else who waits for answers waits for ever
            raise
        await self._last()

    async def _end(self, reader: asyncio.Task[None]) -> None:
        """Read nothing more once the server is about to shut down."""
        await self._service.ending.wait()
        reader.cancel()
        await self._last()

    async def _last(self) -> None:
        while self._tasks:
            await asyncio.wait(self._tasks)
        await self._responses.put(None)

    def _begin(self, work: Coroutine[Any, Any, bytes]) -> asyncio.Task[bytes]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _answer(self, data: bytes, error: Exception | None = None) -> bytes:
        """Answer one request. An error becomes an answer, and the stream goes on.

        Args:
            data: The message, whose bytes are held.
            error: Why there is none.

        Returns:
            The response. ``b""`` for a decoupled model, whose responses `_answer_in_parts` gives.
        """
        line = AccessLine("ModelStreamInfer", self._service.counters.begin("grpc"))
        line.peer = self._context.peer
        line.received(len(data))
        request: Any = None
        response, price = b"", 0
        in_parts = False
        try:
            self._service.check_unsent()
            price = await self._calls.price(data)
            request = parsed(partial(_read, error), data)
            line.key = self._calls.check_key(self._context, "infer", request)
            model = await self._model_of(request, line)
            in_parts = model.decoupled
            if in_parts:
                task = self._begin(self._answer_in_parts(request, line))
                task.add_done_callback(lambda _: self._calls.release(data, price))
                self._in_parts.add(task)
                task.add_done_callback(self._in_parts.discard)
                return b""
            answer = await self._front.infer_with(model, request, self._context, line)
            line.answered("OK")
            response = as_streamed(answer)
        except Exception as raised:  # noqa: BLE001 - every error is an answer
            response = self._failed(raised, request, line)
        finally:
            if not in_parts:
                self._calls.release(data, price)
                line.sent_bytes = len(response)
                self._count_unsent(len(response))
                self._ended(line, request)
        return response

    async def _model_of(self, request: Received, line: AccessLine) -> Model:
        model = self._front.find(request, self._context)
        return await self._front.wait(request, self._context, line) if model is None else model

    async def _answer_in_parts(self, request: Received, line: AccessLine) -> bytes:
        """Answer one request with a response for each part, and one for the result, unless that is None.

        The last response has the parameter ``triton_final_response``. A client that asks for an empty response where no
        other can have it gets every part at once. For others each part waits until it is known whether more follows, and
        no response comes where there is neither part nor result.
        """
        held: Answer | None = None
        try:
            model = await self._model_of(request, line)  # it may have left since
            with self._front.admitted(model, request, self._context, line) as asked:
                at_once = flag(FINAL, asked.parameters)
                each = self._service.answers(model, asked, line)
                async with contextlib.aclosing(each) as answers:
                    async for is_last, answer in answers:
                        if answer is None:
                            continue
                        if held is not None:
                            await self._give(held, line)
                        held = answer if is_last or not at_once else None
                        if held is None:
                            await self._give(answer, line)
            line.answered("OK")
            last, held = held or (Answer(model, asked.id, []) if at_once else None), None
            if last is not None:
                await self._give(last, line, is_final=True)
        except Exception as error:  # noqa: BLE001 - every error is an answer
            if held is not None:
                await self._give(held, line)
            await self._put(self._failed(error, request, line, is_final=True), line)
        finally:
            self._ended(line, request)
        return b""

    async def _give(self, answer: Answer, line: AccessLine, *, is_final: bool = False) -> None:
        """Send one of the responses of a request."""
        answer.parameters[_IS_FINAL] = is_final
        response = await call_by_size(elements_in(answer.outputs), write_response, answer)
        await self._put(as_streamed(response), line)

    async def _put(self, response: bytes, line: AccessLine) -> None:
        """Queue a response; while clients do not take theirs, only once this one has taken all of its own."""
        most = self._service.limits.max_inflight_bytes // 2
        while self._service.unsent_bytes >= most and not self._responses.empty():
            self._taken.clear()
            await self._taken.wait()
        line.sent_bytes += len(response)
        self._count_unsent(len(response))
        await self._responses.put(response)

    def _failed(
        self,
        error: Exception,
        request: Received | None,
        line: AccessLine,
        *,
        is_final: bool = False,
    ) -> bytes:
        """Return the response for an error."""
        refused = self._calls.refusal_of(error, line)
        name, identifier = ("", "") if request is None else (request.model_name, request.id)
        failed = RESPONSE(model_name=name, id=identifier)
        for key, value in (("code", refused.code), ("node", refused.node)):
            if value is not None:
                failed.parameters[key].string_param = value
        if is_final:
            failed.parameters[_IS_FINAL].bool_param = True
        response = _STREAMED_ANSWER(error_message=refused.text, infer_response=failed)
        written: bytes = response.SerializeToString()
        return written

    def _ended(self, line: AccessLine, request: Received | None) -> None:
        line.status = line.status or "CANCELLED"
        self._calls.end(line, request)
