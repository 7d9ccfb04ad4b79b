"""Which requests are those of one client."""

from __future__ import annotations

import os
from functools import lru_cache
from hashlib import blake2b
from ipaddress import ip_address
from typing import Final
from urllib.parse import unquote

__all__ = ["client_digest"]

_SECRET: Final = os.urandom(16)
"""Keeps addresses from being found by a digest of each."""

_KNOWN: Final = 4096
"""The digests of so many clients are remembered."""


def client_digest(key: str, address: str) -> str:
    """Return a text that tells the client of a request from others, in this process alone.

    Args:
        key: The name of its key. ``""``: it has none.
        address: Its address with a port, as ``AccessLine.client`` of ``headrace_serve.monitoring.access_log`` has it.

    Returns:
        16 hexadecimal digits: of the key, else of the address without its port, of one of IPv6 the network of 64 bits. All
        without key and address of IP are one client.
    """
    return _digest(f"key {key}" if key else _network_of(address.rpartition(":")[0]))


@lru_cache(_KNOWN)
def _digest(client: str) -> str:
    return blake2b(client.encode(), key=_SECRET, digest_size=8).hexdigest()


@lru_cache(_KNOWN)
def _network_of(host: str) -> str:
    """Return the part of an address that a client cannot choose; ``""`` of what is no address."""
    plain = unquote(host.removeprefix("ipv4:").removeprefix("ipv6:")).strip("[]")
    try:
        address = ip_address(plain.partition("%")[0])
    except ValueError:
        return ""
    mapped = getattr(address, "ipv4_mapped", None) or address
    return mapped.exploded if mapped.version == 4 else mapped.exploded[:19]
