"""Which addresses may be opened: none, unless their host is listed."""

from __future__ import annotations

import base64
import urllib.request
from collections.abc import Iterable, Sequence
from typing import Any
from urllib.parse import unquote, urlsplit

from headrace.errors import InputError

__all__ = [
    "FILE_PROTOCOLS",
    "FORMATS",
    "authorization",
    "check_address",
    "is_address",
    "login_of",
    "plain_opener",
    "without_password",
]

SCHEMES = ("rtsp", "rtsps", "rtmp", "rtmps", "http", "https")
"""What may be opened over the network."""

FILE_PROTOCOLS = "file"
"""FFmpeg's protocols for a file: it cannot open an address."""

FORMATS = (
    "mov,mp4,m4a,3gp,3g2,mj2,matroska,webm,avi,mpegts,mpeg,mpegvideo,m4v,flv,live_flv,ogg,asf,gif,apng,mjpeg,"
    "mpjpeg,h264,hevc,obu,av1,ivf,mxf,nut,wtv,dv,rm"
)
"""FFmpeg's formats that are read: none is a list of other files or addresses, and none opens one."""


def is_address(text: str) -> bool:
    """Return whether a text is an address (``scheme://...``) and no path."""
    return "://" in text


def check_address(text: str, hosts: Iterable[str], schemes: Sequence[str] = SCHEMES) -> None:
    """Refuse an address whose kind or host is not allowed.

    Raises:
        InputError: It must not be opened. The text says what to write to allow it.
    """
    parts = urlsplit(text)
    expected = f"an address that begins with {', '.join(schemes[:-1])} or {schemes[-1]}"
    if parts.scheme.lower() not in schemes:
        raise InputError("this kind of address is not opened", expected=expected, got=parts.scheme)
    allowed = {host.lower() for host in hosts}
    host = (parts.hostname or "").lower()
    if not host or host not in allowed:
        expected, got = "a host listed in network", f"network = {sorted(allowed)}"
        hint = f'Write network=["{host}"] if this address is to be opened.' if host else None
        raise InputError(f"the host {host!r} is not allowed", expected=expected, got=got, hint=hint)


def without_password(address: str) -> str:
    """Return an address without the user and password in it, for names, logs and errors."""
    parts = urlsplit(address)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()


def login_of(address: str) -> tuple[str, str] | None:
    """Return the user and password in an address, or None."""
    parts = urlsplit(address)
    return (
        None if parts.username is None else (unquote(parts.username), unquote(parts.password or ""))
    )


def authorization(address: str) -> dict[str, str]:
    """Return the header with the user and password in an address (RFC 7617), or none."""
    login = login_of(address)
    credentials = base64.b64encode(":".join(login or ()).encode()).decode()
    return {"Authorization": f"Basic {credentials}"} if login else {}


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: Any) -> None:
        """Follow nothing: another host would not be an allowed one."""


def plain_opener(*handlers: urllib.request.BaseHandler) -> urllib.request.OpenerDirector:
    """Return what opens addresses over HTTP without a proxy, and follows no redirect."""
    return urllib.request.build_opener(urllib.request.ProxyHandler({}), _NoRedirect, *handlers)
