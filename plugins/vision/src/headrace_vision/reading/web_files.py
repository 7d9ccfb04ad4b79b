"""What is at an address of HTTP, read by parts: where it ends, its length or its last chunk says."""

from __future__ import annotations

import re
import socket
import urllib.error
from collections.abc import Callable
from contextlib import suppress
from typing import Any
from urllib.parse import quote
from urllib.request import (
    HTTPBasicAuthHandler,
    HTTPDigestAuthHandler,
    HTTPPasswordMgrWithDefaultRealm,
    Request,
)

from headrace_vision.network import login_of, plain_opener, without_password

__all__ = ["WebFile"]

_RANGE = re.compile(r"bytes (\d+)-\d+/(\d+)")
_KEPT = "!#$%&'()*+,/:;=?@[]~"
"""What an address may have as it is (RFC 3986), with the sign of what is encoded already."""


class WebFile:
    """The body of an answer, to read from, and to seek in where the server gives parts of it.

    A connection that closes before the end is an error, and not the end.

    Args:
        address: It. A user and password in it are sent once the server asks for them.
        timeout_s: Seconds of silence after which reading fails.
        connected: Gets what ends the connection, so that whoever reads waits no longer.

    Attributes:
        name: The address without user and password.
        size: How many bytes it has, or None where the server does not say.
        is_over: Whether the end was reached, and the server said that it is the end.
        format: FFmpeg's format that the type of the content says, or None.
        is_flv: Whether it begins as FLV does, as far as its first bytes are there.

    Raises:
        OSError: There is no answer, or another one.

    Source:
        RFC 9112, section 6.3 (where a body ends), and RFC 9110, section 14 (parts).
    """

    def __init__(
        self,
        address: str,
        timeout_s: float,
        connected: Callable[[Callable[[], None]], object] = lambda hang_up: None,
    ) -> None:
        self.name = without_password(address)
        self._address = quote(self.name, safe=_KEPT)
        self._timeout_s = timeout_s
        passwords = HTTPPasswordMgrWithDefaultRealm()
        if (login := login_of(address)) is not None:
            passwords.add_password(None, self._address, *login)
        self._opener = plain_opener(
            HTTPBasicAuthHandler(passwords), HTTPDigestAuthHandler(passwords)
        )
        self.size: int | None = None
        self.is_over = False
        self._has_failed = False
        self._position = 0
        self._answer = self._ask()
        connected(self._hang_up)
        kind = self._answer.headers.get_content_type()
        self.is_flv = b"FLV".startswith(self._answer.peek(3)[:3])
        self.format = "mpjpeg" if kind == "multipart/x-mixed-replace" else None

    def _ask(self) -> Any:
        """Ask for what begins at the position, and note where the answer begins and ends."""
        headers = {"Range": f"bytes={self._position}-"}
        try:
            request = Request(self._address, headers=headers)  # noqa: S310 - the address was checked
            answer = self._opener.open(request, timeout=self._timeout_s)
        except urllib.error.HTTPError as error:
            error.close()
            raise OSError(f"the answer is {error.code} {error.reason}") from error
        part = _RANGE.match(answer.headers.get("Content-Range", ""))
        self._gives_parts = answer.status == 206 and part is not None
        first, size = (int(part[1]), int(part[2])) if part and self._gives_parts else (0, None)
        if first != self._position:
            answer.close()
            raise OSError("the answer is another part than was asked for")
        self.size = answer.length if size is None else size
        self._answer_at = first
        return answer

    def read(self, count: int) -> bytes:
        """Return up to ``count`` bytes as soon as there are some. None at the end.

        Raises:
            OSError, http.client.HTTPException: The connection closed before the end.
        """
        if self._has_failed:
            return b""  # FFmpeg asks again, and PyAV would print the first error
        try:
            return self._read(count)
        except BaseException:
            self._has_failed = True
            raise

    def _read(self, count: int) -> bytes:
        left = None if self.size is None else self.size - self._position
        if left is not None and left <= 0:
            self.is_over = True
            return b""
        if self._answer_at != self._position:
            self._answer.close()
            self._answer = self._ask()
        data: bytes = self._answer.read1(count if left is None else min(count, left))
        if not data and left is not None:
            raise ConnectionError(f"the connection closed {left} bytes before the end")
        # Without a length, a last chunk is the end; a connection that closes tells nothing.
        self.is_over = not data and bool(self._answer.chunked)
        self._position += len(data)
        self._answer_at = self._position
        return data

    def seekable(self) -> bool:
        """Return whether the server gives parts."""
        return self._gives_parts

    def seek(self, offset: int, whence: int = 0) -> int:
        """Go to a position; what is there is asked for when it is read."""
        begin = (0, self._position, self.size or 0)[whence]
        self._position = begin + offset
        return self._position

    def tell(self) -> int:
        """Return the position."""
        return self._position

    def _hang_up(self) -> None:
        with suppress(OSError, ValueError, AttributeError):  # it is closed
            connection = socket.socket(fileno=self._answer.fileno())
            try:
                connection.shutdown(socket.SHUT_RDWR)
            finally:
                connection.detach()

    def close(self) -> None:
        """Close the connection."""
        with suppress(OSError):
            self._answer.close()
