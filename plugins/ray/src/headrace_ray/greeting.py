"""Both ends of a connection prove to each other that they have the secret, before anything is unpickled.

The secret is made for one actor, and Ray carries it there. The listening end sends a nonce. The connecting end answers
with a nonce and an HMAC of both. The listening end checks it and answers with another HMAC. All messages have a fixed
length.
"""

from __future__ import annotations

import hmac
import secrets
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import socket

__all__ = ["BATCHES", "CONTROL", "SECRET_BYTES", "WrongSecretError", "accept", "connect"]

SECRET_BYTES = 32
_NONCE_BYTES = _PROOF_BYTES = 32

CONTROL, BATCHES = b"control", b"batches"
"""The purpose of a connection. The proof of the connecting end names it."""


class WrongSecretError(Exception):
    """The other end has not proved that it has the secret."""


def _read_exactly(connection: socket.socket, size: int, until: float) -> bytes:
    """Read so many bytes. The time holds for all of them: a byte now and then does not extend it."""
    content = b""
    while len(content) < size:
        connection.settimeout(max(0.001, until - time.monotonic()))
        part = connection.recv(size - len(content))
        if not part:
            raise EOFError("the other end has closed it")
        content += part
    return content


def _proof(secret: bytes, role: bytes, theirs: bytes, ours: bytes) -> bytes:
    return hmac.digest(secret, role + theirs + ours, "sha256")


def accept(connection: socket.socket, secret: bytes, within_s: float) -> bytes:
    """Prove the secret to the connecting end, after it has proved it. Return the purpose of the connection.

    Raises:
        WrongSecretError: The other end has another secret, or speaks another protocol.
        EOFError: The other end has closed the connection.
        OSError: The connection is broken, or its time is over.
    """
    ours = secrets.token_bytes(_NONCE_BYTES)
    connection.sendall(ours)
    answer = _read_exactly(connection, _NONCE_BYTES + _PROOF_BYTES, time.monotonic() + within_s)
    theirs, proof = answer[:_NONCE_BYTES], answer[_NONCE_BYTES:]
    for role in (CONTROL, BATCHES):
        if hmac.compare_digest(proof, _proof(secret, role, ours, theirs)):
            connection.sendall(_proof(secret, b"listens", theirs, ours))
            return role
    raise WrongSecretError("it has another secret")


def connect(connection: socket.socket, secret: bytes, role: bytes, within_s: float) -> None:
    """Prove the secret to the listening end, name the purpose of the connection, and demand a proof of the secret.

    Raises:
        WrongSecretError: The other end has another secret, or speaks another protocol.
        EOFError: The other end has closed the connection, as for a wrong proof.
        OSError: The connection is broken, or its time is over.
    """
    until = time.monotonic() + within_s
    theirs = _read_exactly(connection, _NONCE_BYTES, until)
    ours = secrets.token_bytes(_NONCE_BYTES)
    connection.sendall(ours + _proof(secret, role, theirs, ours))
    proof = _read_exactly(connection, _PROOF_BYTES, until)
    if not hmac.compare_digest(proof, _proof(secret, b"listens", ours, theirs)):
        raise WrongSecretError("it has another secret")
