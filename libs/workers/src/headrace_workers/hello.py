"""What both sides of a connection say before the first batch: JSON, of a bounded length, after the secret."""

from __future__ import annotations

import json
import struct
import sys
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

from headrace_workers.tcp import read_exactly

if TYPE_CHECKING:
    import socket
    from collections.abc import Mapping

__all__ = ["differing", "read", "say", "split_address"]

_SIZE = struct.Struct("<I")
_MOST_BYTES = 1 << 16


def say(connection: socket.socket, **what: Any) -> None:
    """Send a table of plain values."""
    content = json.dumps(what).encode()
    connection.sendall(_SIZE.pack(len(content)) + content)


def read(connection: socket.socket) -> dict[str, Any]:
    """Read what the other side says.

    Raises:
        ValueError: It is no such table, or longer than 64 KiB.
        EOFError: The connection has ended.
        OSError: The connection is broken, or its time limit has passed.
    """
    (size,) = _SIZE.unpack(read_exactly(connection, _SIZE.size))
    if size > _MOST_BYTES:
        raise ValueError(
            f"the other side announces {size} bytes, where at most {_MOST_BYTES} may come"
        )
    found = json.loads(read_exactly(connection, size))
    if not isinstance(found, dict):
        raise ValueError("the other side says what is no table")  # noqa: TRY004 - it is data, no argument
    return found


def differing(wanted: Mapping[str, str]) -> list[str]:
    """Return what is installed here in another version than is wanted, a sentence each.

    Args:
        wanted: Versions by distribution, as `headrace.isolation.ChildPlan.requires` has them; ``python`` among them.
    """
    found: list[str] = []
    for name, there in wanted.items():
        try:
            here = "{}.{}".format(*sys.version_info) if name == "python" else version(name)
        except PackageNotFoundError:
            here = "not installed"
        if here != there:
            found.append(f"{name} is {there} at the caller's, {here} at the worker's")
    return found


def split_address(text: str) -> tuple[str, int]:
    """Return host and port of ``HOST:PORT``; of an IPv6 address the host stands in ``[ ]``.

    Raises:
        ValueError: It is no such text.
    """
    host, colon, port = text.rpartition(":")
    if not (colon and host and port.isdecimal() and int(port) < 1 << 16):
        raise ValueError(f"{text!r} is no address: expected HOST:PORT, as 'gpu1:7000'")
    return host.removeprefix("[").removesuffix("]"), int(port)
