"""The secret that both sides of a connection have, and how each proves it without sending it.

The listening side sends a nonce; the connecting side answers with a nonce of its own and an HMAC of both; the
listening side checks that and answers with another HMAC. All of it has a fixed length and is read within a time
limit, and nothing else is read before it: no pickle, no length, no text.
"""

from __future__ import annotations

import hmac
import re
import secrets
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.errors import SetupError
from headrace.plugins import read_text
from headrace_workers.tcp import read_exactly

if TYPE_CHECKING:
    import socket

__all__ = ["SECRET_BYTES", "accept", "connect", "read_secret"]

SECRET_BYTES = 32
_MAGIC = b"headrace-1\n"
_NONCE_BYTES = 32
_PROOF_BYTES = 32


class WrongSecretError(Exception):
    """The other side has not proved that it has the secret."""


def read_secret(path: str | Path) -> bytes:
    """Read the file of a secret: 64 hexadecimal digits, as ``openssl rand -hex 32`` writes them.

    Raises:
        SetupError: The file cannot be read, or holds something else.
    """
    hint = "Make one with `openssl rand -hex 32 > FILE`, readable for you alone, and copy it to each machine."
    try:
        text = read_text(path).strip()
    except (OSError, ValueError) as error:
        raise SetupError(f"the secret in {path} cannot be read: {error}", hint=hint) from error
    if re.fullmatch(rf"[0-9A-Fa-f]{{{2 * SECRET_BYTES}}}", text) is None:
        what = f"{path} holds no secret: expected {2 * SECRET_BYTES} hexadecimal digits"
        raise SetupError(what, hint=hint)
    return bytes.fromhex(text)


def _proof(secret: bytes, side: bytes, theirs: bytes, ours: bytes) -> bytes:
    return hmac.digest(secret, _MAGIC + side + theirs + ours, "sha256")


def accept(connection: socket.socket, secret: bytes) -> None:
    """Prove the secret to who has connected, after they have proved it.

    Raises:
        WrongSecretError: They have another secret, or speak something else.
        EOFError: They have closed the connection.
        OSError: The connection is broken, or its time limit has passed.
    """
    ours = secrets.token_bytes(_NONCE_BYTES)
    connection.sendall(_MAGIC + ours)
    answer = read_exactly(connection, _NONCE_BYTES + _PROOF_BYTES)
    theirs, proof = answer[:_NONCE_BYTES], answer[_NONCE_BYTES:]
    if not hmac.compare_digest(proof, _proof(secret, b"connects", ours, theirs)):
        raise WrongSecretError
    connection.sendall(_proof(secret, b"listens", theirs, ours))


def connect(connection: socket.socket, secret: bytes) -> None:
    """Prove the secret to who listens, and let them prove it.

    Raises:
        WrongSecretError: They have another secret, or speak something else.
        EOFError: They have closed the connection, as they do for a wrong proof.
        OSError: The connection is broken, or its time limit has passed.
    """
    greeting = read_exactly(connection, len(_MAGIC) + _NONCE_BYTES)
    if not greeting.startswith(_MAGIC):
        raise WrongSecretError
    theirs, ours = greeting[len(_MAGIC) :], secrets.token_bytes(_NONCE_BYTES)
    connection.sendall(ours + _proof(secret, b"connects", theirs, ours))
    try:
        proof = read_exactly(connection, _PROOF_BYTES)
    except (EOFError, ConnectionResetError) as error:
        raise WrongSecretError from error
    if not hmac.compare_digest(proof, _proof(secret, b"listens", ours, theirs)):
        raise WrongSecretError
