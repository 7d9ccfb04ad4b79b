"""Answers of HTTP, and their heads as bytes."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any

import orjson
from uvicorn.protocols.http.httptools_impl import STATUS_LINE

from headrace_formats.page import guarded
from headrace_serve.admission.codings import WINDOWS
from headrace_serve.errors import CodingError, error_json

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from headrace_serve.errors import Refusal

__all__ = ["Reply", "error_body", "head_of", "head_text"]


@lru_cache(maxsize=256)
def head_of(
    status: int, content_type: str, compressible: bool, *headers: tuple[str, str]
) -> bytes | None:
    """Return status line and headers of an answer as they are sent before the number of its bytes, None where one cannot be."""
    given = {name.lower(): value for name, value in headers}
    lines = guarded({**given, "content-type": content_type})
    if compressible:
        lines["vary"] = "Accept-Encoding" + (f", {given['vary']}" if "vary" in given else "")
    text = head_text(lines)
    return None if text is None else STATUS_LINE[status] + text + b"content-length: "


def head_text(lines: Mapping[str, str]) -> bytes | None:
    """Return headers as they are sent, None where one has a character that would begin another."""
    text = "".join([f"{name.lower()}: {value}\r\n" for name, value in lines.items()])
    if len(text.split("\n")) != len(lines) + 1 or text.count("\r") != len(lines) or "\0" in text:
        return None
    return text.encode("latin-1")


class Reply:
    """An answer of HTTP.

    Attributes:
        status, content_type, headers: The HTTP status, and the headers that are sent.
        parts: The body, in pieces that are sent one after the other.
        compressible: Whether the body may be compressed. Only answers of inferences are, because Triton's client for
            asyncio accepts gzip in every request, but decompresses only these answers. Pictures are compressed already.
    """

    def __init__(
        self,
        status: int,
        parts: Sequence[bytes | memoryview],
        content_type: str = "application/json",
        headers: Mapping[str, str] | None = None,
        *,
        compressible: bool = False,
    ) -> None:
        self.status = status
        self.parts = parts
        self.content_type = content_type
        self.headers = headers or {}
        self.compressible = compressible

    @classmethod
    def of_inference(
        cls,
        parts: Sequence[bytes | memoryview],
        content_type: str,
        headers: Mapping[str, str] | None = None,
    ) -> Reply:
        """Return the answer of an inference."""
        compressible = not content_type.startswith("image/")
        return cls(200, parts, content_type, headers, compressible=compressible)

    @classmethod
    def json(cls, value: Any, status: int = 200) -> Reply:
        """Return an answer of JSON."""
        return cls(status, [orjson.dumps(value)])

    @classmethod
    def refused(cls, why: Refusal, identifier: str, retry_after_s: int) -> Reply:
        """Return the answer for an error; tritonclient reads ``error``."""
        headers = {"retry-after": str(retry_after_s)} if why.retry else {}
        if why.status == 401:
            headers["www-authenticate"] = "Bearer"
        if why.code == CodingError.code:
            headers["accept-encoding"] = ", ".join(WINDOWS)
        return cls(why.status, [error_body(why, identifier)], headers=headers)


def error_body(why: Refusal, identifier: str) -> bytes:
    """Return the JSON of an error, for the request with this id."""
    return error_json(why.text, why.code, why.node, identifier)
