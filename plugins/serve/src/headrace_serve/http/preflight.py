"""Pages of other origins: what their browsers ask before a request, and the headers of answers that let them read."""

from __future__ import annotations

import re
from functools import partial
from typing import TYPE_CHECKING, Any

from starlette.datastructures import Headers
from starlette.middleware.cors import CORSMiddleware

from headrace_formats.page import SANDBOXED
from headrace_serve.errors import error_json
from headrace_serve.http.replies import Reply
from headrace_serve.http.tensors import HEADER_LENGTH
from headrace_serve.inference.parameters import TRACE

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from headrace_serve.http.exchange import Exchange
    from headrace_serve.service import Service

__all__ = ["Origins"]

_SENT_HEADERS = (
    "Authorization", "X-API-Key", "Content-Type", "Content-Encoding", HEADER_LENGTH, "X-Request-Id",
    "X-Timing", *TRACE,
)  # fmt: skip
"""Headers that a page of an allowed origin may send."""

_OF_CLIENTS = re.compile(r"x-stainless-[a-z-]+")
"""Headers with which OpenAI's client tells of itself. They change nothing."""


class Origins:
    """Says for a head what Starlette's class says for a request."""

    def __init__(self, service: Service) -> None:
        nothing: Any = None
        self._cors = CORSMiddleware(
            nothing,
            allow_origins=service.cors_origins,
            allow_methods=["GET", "POST"],
            allow_headers=_SENT_HEADERS,
            expose_headers=[HEADER_LENGTH, "Retry-After", "X-Request-Id"],
        )

    def read(
        self, scope: Any, headers: Mapping[bytes, bytes]
    ) -> tuple[Callable[[Exchange], Awaitable[Reply]] | None, dict[str, str]]:
        """Return what answers a preflight request, None for any other request, and the headers that its answers have."""
        origin = headers.get(b"origin")
        if origin is None:
            return None, {}
        if scope["method"] == "OPTIONS" and b"access-control-request-method" in headers:
            return partial(_preflight, self._cors), {}
        cors, text = self._cors, origin.decode("latin-1")
        added = dict(cors.simple_headers)
        if not cors.allow_all_origins and cors.is_allowed_origin(text):
            added["Access-Control-Allow-Origin"] = text
            added["Vary"] = "Origin"
        return None, added


async def _preflight(cors: CORSMiddleware, exchange: Exchange) -> Reply:
    """Answer a preflight request, which has the method OPTIONS and needs no key."""
    headers = Headers(raw=exchange.scope["headers"])
    wanted = headers.get("access-control-request-headers", "")
    others = [name for name in wanted.split(",") if _OF_CLIENTS.fullmatch(name.strip().lower())]
    if others:
        kept = ",".join(name for name in wanted.split(",") if name not in others)
        headers = Headers({**headers, "access-control-request-headers": kept})
    answer = cors.preflight_response(headers)
    if others and answer.status_code == 200:
        also = "".join(f", {name.strip()}" for name in others)
        answer.headers["access-control-allow-headers"] += also
    text = answer.body.decode() if isinstance(answer.body, bytes) else ""
    sent = {k: v for k, v in answer.headers.items() if k not in ("content-type", "content-length")}
    if answer.status_code == 200:
        return Reply(200, [text.encode()], answer.headers["content-type"], {**sent, **SANDBOXED})
    exchange.code = "not_allowed"
    body = [error_json(text, "not_allowed")]
    return Reply(answer.status_code, body, headers={**sent, **SANDBOXED})
