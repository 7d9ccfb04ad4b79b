"""The parts of Headrace's live pages: their style and scripts, and the rule that refuses requests of other pages.

A page is a folder ``page`` of a package with ``index.html`` and files of its own. `Page` finds these, and the shared files
``style.css``, ``server.js``, ``elements.js`` and ``charts.js``. It knows no server: if you serve a page, ask `why_refused`
about each request, send `HEADERS` with each file of the page, and `SANDBOXED` with every other answer.
"""

from __future__ import annotations

import importlib.resources
import re
from ipaddress import ip_address
from typing import TYPE_CHECKING, Final, NamedTuple
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

__all__ = ["HEADERS", "SANDBOXED", "File", "Page", "guarded", "why_refused"]

HEADERS: Final[Mapping[str, str]] = {
    "cache-control": "no-store",
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob: data:; connect-src 'self';"
        " base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
}
"""Headers of the files of a page: whatever it may hold, the browser asks nobody but the page's own server for it."""

SANDBOXED: Final[Mapping[str, str]] = {
    "cache-control": "no-store",
    "content-security-policy": "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'; sandbox",
    "x-content-type-options": "nosniff",
}
"""Headers of every other answer: it is what its type says, and a browser that shows it runs nothing in the server's name."""

_HOST: Final = re.compile(r"(\[[0-9a-f:.]+\]|[^\s\[\]:/?#@\\,]+?)\.?(:[0-9]*)?")
"""The header ``Host`` in lower case: a name or an address, perhaps with the dot of the root, perhaps a port."""

_KINDS: Final = {"html": "text/html", "css": "text/css", "js": "text/javascript"}


def guarded(headers: Mapping[str, str]) -> dict[str, str]:
    """Return the headers of an answer with those of `SANDBOXED`, which are before them and give way to a page's `HEADERS`."""
    return {**SANDBOXED, **headers}


class File(NamedTuple):
    """A file of a page: its ``content``, and the ``Content-Type`` to send with it."""

    content: bytes
    content_type: str


class Page:
    """The files of a page: its own, and those that all pages share.

    Args:
        package: The package with a folder ``page``, which holds ``index.html``.
    """

    def __init__(self, package: str) -> None:
        files = importlib.resources.files
        folders = (files("headrace_formats") / "shared", files(package) / "page")
        paths = (path for folder in folders for path in folder.iterdir())
        self._files = {p.name: p for p in paths if p.name.rpartition(".")[2] in _KINDS}

    def file(self, name: str) -> File | None:
        """Return the file of a name such as ``index.html``; None if the page has none of that name."""
        path = self._files.get(name)
        if path is None:
            return None
        kind = _KINDS[name.rpartition(".")[2]]
        return File(path.read_bytes(), f"{kind}; charset=utf-8")


def why_refused(
    host: str, origin: str = "", *, names: Collection[str] = (), any_host: bool = False
) -> str | None:
    """Return why a request must not be answered, as a sentence for its sender. None: it may be answered.

    A browser lets a page of another site ask a server on its own machine, and read the answer if the name of that site is made to
    lead there (DNS rebinding). The host that is asked for then still has that name.

    Args:
        host: The header ``Host``.
        origin: The header ``Origin``, ``""`` without one.
        names: More names by which the server may be asked for, besides ``localhost`` and addresses of the loopback.
        any_host: Whether it may be asked for by any name, because clients need keys, which no other page has.
    """
    match = _HOST.fullmatch(host.lower())
    name = host if match is None else match[1].strip("[]")
    if not any_host and name not in names and not _is_loopback(name):
        return (
            f"this server is asked by an address of this machine, as http://127.0.0.1 or http://localhost, not by {name[:80]!r}:"
            " a page of another site could have that name lead here"
        )
    if match is None:
        return f"{host[:80]!r} is no host"
    if origin and not _is_from(origin, host):
        return f"a page of {origin[:80]!r} may not ask for this"
    return None


def _is_from(origin: str, host: str) -> bool:
    """Return whether a page of this origin came from the server that is asked."""
    try:
        parts = urlsplit(origin)
    except ValueError:
        return False
    usual = {"http": ":80", "https": ":443"}.get(parts.scheme, ":")  # a browser leaves it out
    return parts.netloc.lower() == host.lower().removesuffix(usual)


def _is_loopback(host: str) -> bool:
    """Return whether a host is this machine, without asking for its name."""
    try:
        address = ip_address(host)
    except ValueError:
        return host == "localhost"
    return (getattr(address, "ipv4_mapped", None) or address).is_loopback
