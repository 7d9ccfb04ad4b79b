"""One request on an HTTP connection, as uvicorn has it, and the answers that the connection gives itself."""

from __future__ import annotations

import time
from email.utils import formatdate
from functools import lru_cache
from typing import TYPE_CHECKING

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, RequestResponseCycle

from headrace_serve.errors import error_json

if TYPE_CHECKING:
    from uvicorn._types import ASGISendEvent

__all__ = ["Cycle", "date", "refusal_bytes"]


def date() -> str:
    """Return the value of the header ``Date`` for an answer of now."""
    return _date_of(time.time_ns() // 1_000_000_000)


@lru_cache(maxsize=1)
def _date_of(second: int) -> str:
    return formatdate(second, usegmt=True)


def refusal_bytes(status: int, text: str, code: str, *, retry: bool) -> tuple[bytes, bytes]:
    """Return head and body of an answer that ends its connection: of an error that no application has seen."""
    body = error_json(text, code)
    lines = (
        f"date: {date()}\r\ncontent-type: application/json\r\n"
        f"content-length: {len(body)}\r\nconnection: close\r\n"
    )
    more = "retry-after: 1\r\n" if retry else ""
    return STATUS_LINE[status] + f"{lines}{more}\r\n".encode(), body


class Cycle(RequestResponseCycle):
    """A request and its answer. A connection that ends with the answer stays open while the client sends the rest of a body.

    To close it with unread bytes would reset it, and the client would lose the answer.
    """

    _sends = False

    async def send(self, message: ASGISendEvent) -> None:
        """Send a message of the application."""
        if not self.response_started:
            self._sends = self.more_body and not self.waiting_for_100_continue
        if not self.response_started or self.keep_alive or not (self._sends and self.more_body):
            await super().send(message)
            return
        self.keep_alive = True  # else uvicorn closes
        try:
            await super().send(message)
        finally:
            self.keep_alive = False
        if self.response_complete and not self.more_body:  # the rest came meanwhile
            self.transport.close()
