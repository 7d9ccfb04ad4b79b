"""The preflight requests that browsers send before a page of another origin may send a request."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from starlette.middleware.cors import CORSMiddleware

from headrace_formats.page import SANDBOXED
from headrace_serve.errors import NotAllowedError, error_json

if TYPE_CHECKING:
    from starlette.datastructures import Headers
    from starlette.responses import Response
    from starlette.types import ASGIApp, Receive, Scope, Send

    from headrace_serve.service import Service

__all__ = ["Origins"]


class Origins(CORSMiddleware):
    """Starlette's answers for pages of other origins, counted, and with errors in the form of all others.

    Args:
        app: The application behind it.
        service: Has the gate, and counts the preflight requests.
        settings: The arguments of Starlette's class.
    """

    def __init__(self, app: ASGIApp, *, service: Service, **settings: Any) -> None:
        super().__init__(app, **settings)
        self._service = service

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a preflight request, or have the application answer, as it does what the gate refuses."""
        if scope["type"] == "http":
            try:
                self._service.gate.check(scope, keyed=self._service.keys is not None)
            except NotAllowedError:
                await self.app(scope, receive, send)
                return
        await super().__call__(scope, receive, send)

    def preflight_response(self, request_headers: Headers) -> Response:
        """Answer a preflight request, which has the method OPTIONS and needs no key."""
        made = super().preflight_response(request_headers)
        code = ""
        if made.status_code != 200:
            code = "not_allowed"
            text = made.body.decode() if isinstance(made.body, bytes) else ""
            made.body = error_json(text, code)
            made.headers["content-type"] = "application/json"
            made.headers["content-length"] = str(len(made.body))
        made.headers.update(SANDBOXED)
        self._service.counters.note_unread(str(made.status_code), code, len(made.body))
        return made
