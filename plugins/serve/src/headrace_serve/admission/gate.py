"""The gate: whose requests are answered at all, over both protocols. It comes before keys, limits and routes."""

from __future__ import annotations

from ipaddress import ip_address
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import urlsplit

from headrace_formats.page import why_refused
from headrace_serve.admission.allowing import check_hosts
from headrace_serve.errors import NotAllowedError

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

__all__ = ["Gate"]

_HINT = ". Whoever runs the server can name more hosts by --allow-host, pages by --cors-origin, or give clients keys."

_MOST_PASSED = 64
"""So many hosts that may be asked for are remembered, so that most requests cost a look into a set."""


class Asks(Protocol):
    """What a request asks for, as far as the gate has to know: see `headrace_serve.http.rest.Endpoint`."""

    @property
    def own(self) -> bool: ...
    @property
    def costs(self) -> bool: ...
    @property
    def probe(self) -> bool: ...


class Gate:
    """Checks the host that a request names, and the page that sends it.

    A browser lets the page of another site ask a server on its own machine, and read the answers if the name of that
    site is made to lead there (DNS rebinding). So a server that only this machine reaches, and that needs no keys, is
    asked by a name of this machine alone.

    Args:
        allow_hosts: More hosts that may be asked for. If there are any, no others may, wherever the server listens.
        origins: Origins whose pages may do what only the server's own pages may, besides those of the allowed hosts. ``"*"``: all.
    """

    def __init__(self, allow_hosts: Sequence[str], origins: Collection[str]) -> None:
        self._allowed = check_hosts(allow_hosts)
        self._origins = origins
        self._passed: set[str] = set()
        self._local: bool | None = None
        self._own_name = ""

    def listens(self, name: str = "", *, local: bool) -> None:
        """Note where the server listens, without it another server does, and says the address with each request.

        Args:
            name: The name by which it was told to listen, which may be asked for.
            local: Whether only this machine reaches the address.
        """
        self._own_name, self._local = name.lower(), local

    def check(self, scope: Any, route: Asks, *, keyed: bool) -> None:
        """Check a request of HTTP.

        Args:
            scope: Its scope of ASGI.
            route: What is asked for.
            keyed: Whether clients need keys.

        Raises:
            NotAllowedError: The request must not be answered.
        """
        # Two headers are joined, as HTTP joins the values of any header, and so name no host and no page.
        host, origin = _joined(scope, b"host"), ""
        posts = route.own or scope["method"] == "POST"
        if (posts or route.costs) and not keyed and "*" not in self._origins:
            origin = _joined(scope, b"origin") or ""
            if origin in self._origins or _host_of(origin) in self._allowed:
                origin = ""
            elif "cross-site" in (_joined(scope, b"sec-fetch-site") or ""):
                origin = f"another site {origin}"
            elif not posts:  # the browser keeps the answer from such a page
                origin = ""
        server = scope.get("server") or ("",)
        probed = route.probe and bool(self._allowed) and _is_address(host or "")
        self._check(host, origin, server[0], keyed, any_host=probed)

    def check_call(self, host: str, *, keyed: bool) -> None:
        """Check a call of gRPC by its metadatum ``host``, which a gateway may pass on; ``""``: it has none.

        Raises:
            NotAllowedError: The call must not be answered.
        """
        self._check(host or None, "", "", keyed)

    def _check(
        self, host: str | None, origin: str, server: str | None, keyed: bool, any_host: bool = False
    ) -> None:
        local = _is_loopback(server or "") if self._local is None else self._local
        # Who names no host is no browser: the checks of load balancers do so, by HTTP/1.0.
        named = host is not None and (bool(self._allowed) or (local and not keyed)) and not any_host
        if (not named or host in self._passed) and not origin:
            return
        names = {*self._allowed, self._own_name}
        why = why_refused(host or "", origin, names=names, any_host=not named)
        if why is not None:
            raise NotAllowedError(why + _HINT)
        if named and host is not None and len(self._passed) < _MOST_PASSED:
            self._passed.add(host)


def _joined(scope: Any, wanted: bytes) -> str | None:
    """Return the values of a header of a request as one, None without it."""
    values = [value for name, value in scope["headers"] if name == wanted]
    return b", ".join(values).decode("latin-1") if values else None


def _host_of(origin: str) -> str | None:
    """Return the host of an origin, None where it has none."""
    try:
        return urlsplit(origin).hostname
    except ValueError:
        return None


def _is_address(host: str) -> bool:
    """Return whether a host is no name but an address, perhaps with a port: no page has one for its name."""
    try:
        ip_address(urlsplit(f"//{host}").hostname or "")
    except ValueError:
        return False
    return True


def _is_loopback(address: str) -> bool:
    try:
        return ip_address(address.partition("%")[0]).is_loopback
    except ValueError:  # a path, or none
        return False
