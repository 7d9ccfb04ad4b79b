"""The preflight requests that browsers send before a page of another origin may send a request."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import orjson
from starlette.middleware.cors import CORSMiddleware

if TYPE_CHECKING:
    from starlette.datastructures import Headers
    from starlette.responses import Response
    from starlette.types import ASGIApp

    from headrace_serve.counters import Counters

__all__ = ["Origins"]


class Origins(CORSMiddleware):
    """Starlette's answers for pages of other origins, counted, and with errors in the form of all others.

    Args:
        app: The application behind it.
        counters: Count the preflight requests.
        settings: The arguments of Starlette's class.
    """

    def __init__(self, app: ASGIApp, *, counters: Counters, **settings: Any) -> None:
        super().__init__(app, **settings)
        self._counters = counters

    def preflight_response(self, request_headers: Headers) -> Response:
        """Answer a preflight request, which has the method OPTIONS and needs no key."""
        made = super().preflight_response(request_headers)
        code = ""
        if made.status_code != 200:
            code = "not_allowed"
            text = made.body.decode() if isinstance(made.body, bytes) else ""
            made.body = orjson.dumps({"error": text, "code": code, "node": None, "id": ""})
            made.headers["content-type"] = "application/json"
            made.headers["content-length"] = str(len(made.body))
        self._counters.note_unread(str(made.status_code), code, len(made.body))
        return made
