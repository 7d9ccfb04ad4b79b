"""What answers the requests of a route, from the gate to the last byte of the answer.

A request that becomes one request of a pipeline goes one way, whatever its route: bytes, plan, views of its arrays, pipeline,
bytes. Where all of it is there, and it is like an earlier one, no coroutine is made: it begins in the turn of the event loop in
which it was read, and is answered where the pipeline tells of its end. What has to be waited for before or behind the pipeline,
such as a body in pieces, a large text of JSON, a model that is loaded first, or compression, is a coroutine around the same
functions, those of a `Direct`.
"""

from __future__ import annotations

import asyncio
import logging
import time
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import orjson

from headrace.errors import ClosedError, OverloadedError, RequestError
from headrace.keys import REQUEST_ID
from headrace_serve.errors import DisconnectedError
from headrace_serve.http.replies import Reply
from headrace_serve.inference.outcomes import run_soon
from headrace_serve.inference.parameters import telling_unit

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from headrace_serve.admission.keys import Right
    from headrace_serve.http.exchange import Exchange
    from headrace_serve.models.model import Model
    from headrace_serve.service import Service

    Request = dict[str, Any]
    Handler = Callable[[Exchange], Awaitable[Reply | None]]

__all__ = ["Direct", "Endpoint", "completed"]

logger = logging.getLogger("headrace.serve")


class Direct(NamedTuple):
    """How a route makes one request of a pipeline of a body, and an answer of its result.

    Attributes:
        reads: Gives the request for an exchange, its model and the whole body, and notes ``identifier``, ``parameters`` and
            ``form`` of the exchange. None where that has to be waited for, or needs several requests.
        writes: Gives the answer of a request that has ended, which it counts. None where ``finishes`` is to make it.
        finishes: Makes it.
        finds: Gives the model for an exchange and the whole body, where the path does not say it. None as that of ``reads``.
        fails: Gives the error that the client is told for that of the pipeline. None: the same.
    """

    reads: Callable[[Any, Model, bytes], Request | None]
    writes: Callable[[Any, Request], Reply | None]
    finishes: Callable[[Any, Request], Awaitable[Reply]]
    finds: Callable[[Any, bytes], Model | None] | None = None
    fails: Callable[[Any], BaseException] | None = None


def _prepared(exchange: Exchange, request: Request) -> Any:
    """Complete a request of the pipeline by what its client has told beside it, and return the arguments of its call."""
    if identifier := exchange.identifier or exchange.header_id:
        request.setdefault(REQUEST_ID, identifier)
    exchange.began_ns = time.perf_counter_ns()
    service, limits = exchange.service, exchange.limits
    return service.prepared(exchange.model, request, exchange.parameters, exchange, limits)


async def completed(exchange: Exchange, request: Request, direct: Direct) -> Reply:
    """Run a request of the pipeline, and return its answer: the way of what had to be waited for.

    Raises:
        DisconnectedError: The client went away.
        HeadraceError: As ``pipe.call_async`` raises it, and what makes the answer.
    """
    exchange.watch()
    try:
        call = _prepared(exchange, request)
        with telling_unit(exchange.parameters):
            await run_soon(exchange.model.pipe, request, **call)
    except BaseException as error:
        exchange.service.note_failed(exchange.model, error, exchange, exchange.began_ns)
        if isinstance(error, asyncio.CancelledError):
            exchange.check_connected()
        raise
    exchange.is_watched = False
    return direct.writes(exchange, request) or await direct.finishes(exchange, request)


@dataclass(frozen=True)
class Endpoint:
    """Answers the requests of one route: asks the gate, then for the key. Every error becomes an answer.

    Args:
        service: The service.
        name: The name of the route.
        handler: Answers a request that may come in.
        right: The right that the key must have. None: no key is needed.
        own: Whether, without keys, only the server's own pages may use it.
        costs: Whether, without keys, pages of other sites may not ask for it, even if they cannot read the answer.
        probe: Whether it may be asked for by any host: a probe comes by the address of a pod.
        later: Whether the handler checks the key for each model.
        error: Makes the body of a refusal for its status, code and text. None: it is that of the protocol.
        direct: How a request is answered without waiting. None: ``handler`` answers each.
    """

    service: Service
    name: str
    handler: Handler
    right: Right | None
    own: bool = False
    costs: bool = True
    probe: bool = False
    later: bool = False
    error: Any = None
    direct: Direct | None = None

    def begin(self, exchange: Any) -> None:
        """Begin to answer a request of a connection of ours, and go on as far as nothing is waited for."""
        exchange.begin(self.service, exchange.plan)
        work, request = None, None
        if self.direct is not None:
            try:
                request = self._read_now(exchange, self.direct)
            except Exception as error:  # noqa: BLE001 - each is answered
                work = _raised(exchange, error)
        if request is None:
            self._go_on(exchange, work)
            return
        exchange.connection.tasks.add(exchange)
        exchange.is_watched = True
        try:
            call = _prepared(exchange, request)
            exchange.call = exchange.model.pipe.call_soon(
                request, partial(self._ended, exchange), **call
            )
        except Exception as error:  # noqa: BLE001 - each is answered
            self.fail(exchange, error)

    def _read_now(self, exchange: Any, direct: Direct) -> Request | None:
        """Return the request of the pipeline where all of the request is there, and like an earlier one; None for any other."""
        plan, service, pieces = exchange.plan, self.service, exchange.pieces
        if (
            not plan.passed
            or exchange.more_body
            or len(pieces) != 1
            or plan.is_coded
            or exchange.disconnected
            or service.unsent_bytes
            or _TIMING in exchange.varying
        ):
            return None
        self._check_key(exchange)
        body: bytes = pieces[0]
        if len(body) > service.limits.max_body_bytes:
            return None
        exchange.hold(len(body))
        exchange.note_received(len(body))
        model = plan.model if plan.catalogue is service.models else None
        if direct.finds is not None:
            model = direct.finds(exchange, body)
        if model is None or model.unloaded or model.inside >= model.queue_size:
            return None
        if model.limits:
            exchange.limits = service.limits.narrowed(model.limits)
            if len(body) > exchange.limits.max_body_bytes:
                return None
        exchange.model = model
        request = direct.reads(exchange, model, body)
        if request is None:
            exchange.model = None
            return None
        exchange.take_place(model)
        return request

    def _check_key(self, exchange: Exchange) -> None:
        keys, model = self.service.keys, exchange.path.get("model")
        if keys is not None and self.right is not None:
            exchange.key = keys.check(exchange.headers, self.right, model, later=self.later)

    def _ended(self, exchange: Any, call: Any) -> None:
        """Answer a request whose pipeline has told of its end."""
        error, call.error = call.error, None
        if error is not None:
            self.fail(exchange, error)
            return
        exchange.call, exchange.is_watched = None, False
        exchange.connection.tasks.discard(exchange)
        direct: Any = self.direct
        try:
            reply = direct.writes(exchange, call.request)
            if reply is None:
                work = direct.finishes(exchange, call.request)
            elif exchange.reply_now(reply):
                exchange.end()
                return
            else:
                work = _given(reply)
        except Exception as raised:  # noqa: BLE001 - each is answered
            work = _raised(exchange, raised)
        self._go_on(exchange, work)

    def fail(self, exchange: Any, error: BaseException) -> None:
        """Answer a request whose pipeline has failed, or that was given up."""
        exchange.call, exchange.is_watched = None, False
        exchange.connection.tasks.discard(exchange)
        self.service.note_failed(exchange.model, error, exchange, exchange.began_ns)
        self._go_on(exchange, _raised(exchange, error, self.direct and self.direct.fails))

    def _go_on(self, exchange: Any, work: Awaitable[Reply | None] | None) -> None:
        """Answer a request by what may wait."""
        connection = exchange.connection
        exchange.task = task = connection.loop.create_task(self.answer(exchange, work))
        connection.tasks.add(task)
        task.add_done_callback(connection.tasks.discard)

    async def answer(self, exchange: Exchange, work: Awaitable[Reply | None] | None = None) -> None:
        """Answer a request, to the last byte of the answer.

        Args:
            exchange: The request.
            work: Gives the answer. None: what the handler makes of it, if it may come in.
        """
        try:
            try:
                reply = await (self._reply(exchange) if work is None else work)
                if reply is None:  # it was sent, event by event
                    return
            except DisconnectedError:
                raise
            except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001 - each is answered
                reply = self._failed(exchange, error)
            try:
                if not exchange.reply_now(reply):
                    await exchange.reply(reply)
            except OverloadedError as error:  # answers that clients do not take use all the room
                await exchange.reply(self._failed(exchange, error))
        except DisconnectedError:
            return
        except Exception:
            logger.exception("the answer of %s could not be sent", self.name)
            exchange.abort()
        finally:
            exchange.end()

    def _reply(self, exchange: Exchange) -> Awaitable[Reply | None]:
        """Ask the gate, unless it has let in such a request, and for the key; then give what makes the answer."""
        plan = exchange.plan
        if not plan.passed:
            self.service.gate.check(plan.scope, self, keyed=self.service.keys is not None)
            plan.passed = True
            if plan.keep is not None:
                plan.keep()
        self._check_key(exchange)
        return self.handler(exchange)

    def _failed(self, exchange: Exchange, error: BaseException) -> Reply:
        """Return the answer for an error."""
        refused = exchange.refused(error)
        after = self.service.retry_after_s(exchange.model, error) if refused.retry else 0
        reply = Reply.refused(refused, exchange.identifier or exchange.header_id, after)
        if self.error is not None:
            reply.parts = [orjson.dumps(self.error(refused.status, refused.code, refused.text))]
        return reply


_TIMING = b"x-timing"


async def _raised(
    exchange: Exchange,
    error: BaseException,
    fails: Callable[[Any], BaseException] | None = None,
) -> Reply:
    """Raise the error of a request, as who awaits it would meet it."""
    if isinstance(error, asyncio.CancelledError):
        exchange.check_connected()
    try:
        with telling_unit(exchange.parameters):
            raise error
    except (RequestError, ClosedError):
        if fails is None:
            raise
        raise fails(error) from error
    finally:
        del error


async def _given(reply: Reply) -> Reply:
    return reply
