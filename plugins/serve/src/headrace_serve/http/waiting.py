"""Waits for the model of a request that brings it back, behind those who wait for it already."""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs

from headrace.errors import InputError
from headrace_serve.client_input import whole_number
from headrace_serve.errors import BodyTooLargeError
from headrace_serve.http.tensors import HEADER_LENGTH

if TYPE_CHECKING:
    from headrace_serve.http.exchange import Exchange
    from headrace_serve.models.model import Model

__all__ = ["receive", "wait", "wait_for"]

_HEADER_LENGTH = HEADER_LENGTH.encode()


async def receive(exchange: Exchange, model: Model | None, most: int | None) -> tuple[Model, bytes]:
    """Receive a body, and return the model that takes requests by then, and the body.

    Args:
        exchange: The request.
        model: The model that was there before. None: it has yet to come.
        most: See `Exchange.body`.

    Raises:
        HeadraceError: As `wait` and `Exchange.body` raise it.
    """
    if model is None:
        return await wait(exchange)
    body = await exchange.body(most)
    now = exchange.again()
    return await wait(exchange, body) if now is None else (now, body)


async def wait(exchange: Exchange, body: bytes | None = None) -> tuple[Model, bytes]:
    """Wait until the model in the path has come, take a place in its queue then, and return it with the body.

    Args:
        exchange: The request. Who hangs up leaves the queue.
        body: The body, if it was received. None: it is received now, since it may say how long the request may take.

    Raises:
        HeadraceError: As `headrace_serve.models.updates.ModelUpdates.wait` raises it, `Exchange.body` and `Exchange.admit`.
        DisconnectedError: The client went away.
    """
    exchange.give_place_back()
    if body is None:
        body = await exchange.body()
    timeout_us = await _timeout_us(exchange, body)
    name, version = exchange.path["model"], exchange.path.get("version", "")
    model = await wait_for(exchange, name, version, timeout_us)
    exchange.admit(model)
    if len(body) > (most := exchange.limits.max_body_bytes):
        raise BodyTooLargeError(f"the body has {len(body)} bytes, the limit is {most}")
    return model, body


async def wait_for(
    exchange: Exchange, name: str, version: str = "", timeout_us: int | None = None
) -> Model:
    """Wait until a model has come, within its time from the first wait of the request on; as `wait`."""
    line, most_ms = exchange, exchange.service.limits.max_timeout_ms
    times_s = [timeout_us / 1e6] if timeout_us else []
    times_s += [] if most_ms is None else [most_ms / 1e3]
    if times_s and line.until_s is None:
        line.until_s = time.monotonic() + min(times_s)
    waiting = exchange.service.updates
    work = waiting.wait(name, version, exchange.share_key, line.until_s)
    return await exchange.while_connected(work)


async def _timeout_us(exchange: Exchange, body: bytes) -> int | None:
    """Return the parameter ``timeout`` of a query, or of a body that is JSON. What is wrong is refused by who reads it."""
    query = parse_qs(exchange.scope["query_string"].decode("latin-1"))
    timeout_us: Any = whole_number(query["timeout"][-1]) if "timeout" in query else None
    head = bytes(body[: whole_number(exchange.header(_HEADER_LENGTH))])
    if timeout_us is None and b'"timeout"' in head:
        with contextlib.suppress(InputError):
            document: Any = await exchange.parsed(head)
            parts = [document, document.get("parameters")] if isinstance(document, dict) else []
            for part in [each for each in parts if isinstance(each, dict)]:
                timeout_us = part.get("timeout", timeout_us)
    return timeout_us if type(timeout_us) is int and timeout_us > 0 else None
