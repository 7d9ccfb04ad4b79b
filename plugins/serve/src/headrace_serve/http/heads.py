"""What a parsed head must be, before anything of it is answered."""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["HeadError", "check_head", "too_large", "without_upgrade"]

_OF_UPGRADE = (b"upgrade", b"http2-settings")
"""Headers and values of ``Connection`` with which a client asks for another protocol."""

_VERSIONS = ("1.1", "1.0")


class HeadError(Exception):
    """Refuses a request by its head, with status, text and code; the parser passes it on."""


def too_large(most: int) -> tuple[int, str, str]:
    """Return status, text and code for a head of more than so many bytes."""
    return 431, f"the headers have more than {most} bytes", "headers_too_large"


def check_head(parser: Any, url: bytes, headers: Sequence[tuple[bytes, bytes]], most: int) -> str:
    """Return the version of HTTP of a request whose head may be read.

    Args:
        parser: Has method and version.
        url: The target.
        headers: The headers.
        most: The most bytes that target and headers may have.

    Raises:
        HeadError: It is refused.
    """
    if parser.get_method() == b"CONNECT":
        raise HeadError(501, "this server is no proxy, and has no CONNECT", "unsupported")
    if len(url) + sum(map(len, chain.from_iterable(headers))) > most:
        raise HeadError(*too_large(most))
    version = parser.get_http_version()
    if version not in _VERSIONS:
        raise HeadError(505, f"HTTP {version}: this server has 1.1 and 1.0", "http")
    hosts = [name for name, _ in headers].count(b"host")
    if hosts > 1 or (hosts == 0 and version == "1.1"):  # RFC 9112, 3.2
        raise HeadError(400, f"a request has one header Host, this one has {hosts}", "http")
    return str(version)


def without_upgrade(parser: Any, url: bytes, headers: Sequence[tuple[bytes, bytes]]) -> bytes:
    """Return a head without the headers that ask for another protocol. A server may ignore them."""
    method, version = parser.get_method(), parser.get_http_version().encode()
    lines = [b"%b %b HTTP/%b" % (method, url, version)]
    for name, value in headers:
        if name == b"connection":
            kept = [token.strip() for token in value.lower().split(b",")]
            value = b", ".join(token for token in kept if token not in _OF_UPGRADE)
        if value and name not in _OF_UPGRADE:
            lines.append(name + b": " + value)
    return b"\r\n".join([*lines, b"", b""])
