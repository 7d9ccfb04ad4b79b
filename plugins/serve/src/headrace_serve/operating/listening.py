"""Listening sockets and the event loop."""

from __future__ import annotations

import asyncio
import errno
import socket
import sys
from ipaddress import ip_address

from headrace.errors import ConfigError, Problem, SetupError

__all__ = [
    "BACKLOG", "REUSES_PORTS", "bound", "check_ports", "check_ui", "listen", "new_loop", "not_listening", "reaches_others", "url_of",
]  # fmt: skip

REUSES_PORTS = sys.platform == "linux"
"""Whether the kernel spreads connections over the processes that listen on one port (SO_REUSEPORT)."""

_LAST_PORT = 65535

BACKLOG = 2048
"""The most connections that the system accepts and keeps until the server takes them."""


def check_ports(**ports: int | None) -> None:
    """Check the ports of a server, by the names of its arguments. None: the server does not have that one.

    Raises:
        ValueError: A port is no number from 0 to 65535, or two are one.
    """
    taken: dict[int, str] = {}
    for name, number in ports.items():
        if number is None:
            continue
        if type(number) is not int or not 0 <= number <= _LAST_PORT:
            raise ValueError(f"{name} is a number from 0 to {_LAST_PORT}, got {number!r}")
        if number in taken:
            raise ValueError(f"{taken[number]} and {name} are both {number}")
        if number:
            taken[number] = name


def not_listening(host: str, port: int, error: OSError, option: str = "--port") -> SetupError:
    """Return the error for an address on which `listen` or `bound` has failed; ``option`` sets its port."""
    hint = f"Another program uses this port: end it, or choose another port with {option} (0: a free one)."
    if isinstance(error, socket.gaierror) or error.errno == errno.EADDRNOTAVAIL:
        hint = "--host takes an address or a name of this machine; 0.0.0.0 means all of them."
    elif error.errno == errno.EACCES:
        hint = f"The system reserves ports below 1024 for privileged programs: choose another with {option}."
    why = error.strerror or error
    return SetupError(f"cannot listen on {host} port {port}: {why}", hint=hint)


def reaches_others(host: str) -> bool:
    """Return whether other machines may reach a server that listens on an address."""
    addresses = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    return not all(ip_address(address[4][0]).is_loopback for address in addresses)


def check_ui(host: str, *, served: bool, keyed: bool) -> None:
    """Check that not everybody who reaches a server may use its live page.

    Args:
        host: The address on which the server listens.
        served: Whether there is a live page at all.
        keyed: Whether clients need keys.

    Raises:
        ConfigError: Other machines reach the address, and need no key.
    """
    if served and not keyed and reaches_others(host):
        problem = f"the live page on {host!r} without keys: everybody who reaches this address could run its load test"
        hint = "Give --keys, or leave --host at 127.0.0.1 and reach the page through a tunnel."
        raise ConfigError(Problem("serve", problem, hint=hint))


def new_loop() -> asyncio.AbstractEventLoop:
    """Return a new event loop that can watch sockets: one of uvloop, except on Windows and interpreters other than CPython."""
    if sys.platform != "win32" and sys.implementation.name == "cpython":
        import uvloop

        loop: asyncio.AbstractEventLoop = uvloop.new_event_loop()
        return loop
    return asyncio.SelectorEventLoop()


def run_loop(loop: asyncio.AbstractEventLoop) -> None:
    """Run an event loop in this thread until it is stopped, and close it."""
    asyncio.set_event_loop(loop)
    try:
        loop.run_forever()
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.run_until_complete(loop.shutdown_default_executor())
    finally:
        loop.close()


def url_of(scheme: str, host: str, port: int) -> str:
    """Return the URL of an address."""
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"


def listen(host: str, port: int, option: str = "--port", *, shared: bool = False) -> socket.socket:
    """Return a listening socket, so that a port in use is reported before the event loop starts.

    Args:
        host: The address.
        port: The port. 0 takes a free one.
        option: What sets the port.
        shared: Whether other processes listen on the same port, each with a backlog of its own.

    Raises:
        SetupError: No socket can listen on the address.
    """
    try:
        listener = bound(host, port, shared=shared)
        listener.listen(BACKLOG)
    except OSError as error:
        raise not_listening(host, port, error, option) from error
    listener.setblocking(False)
    return listener


def bound(host: str, port: int, *, shared: bool, left: bool = True) -> socket.socket:
    """Return a socket that is bound to the address but does not listen.

    Args:
        host: The address.
        port: The port. 0 takes a free one.
        shared: Whether other processes listen on the same port.
        left: Whether the port may have connections of a program that has ended.

    Raises:
        OSError: The socket cannot be bound to the address.
    """
    addresses = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    family, kind, protocol, _, address = addresses[0]
    listener = socket.socket(family, kind, protocol)
    try:
        if sys.platform != "win32":
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, int(left))
        if shared:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        listener.bind(address)
    except BaseException:
        listener.close()
        raise
    return listener
