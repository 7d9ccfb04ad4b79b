"""Asks a server for a text, with its key."""

from __future__ import annotations

import contextlib
import http.client
import ssl
import urllib.error
import urllib.parse
import urllib.request

from headrace.errors import HeadraceError
from headrace.plugins import read_text
from headrace_cli.for_plugins import WrongArgument
from headrace_formats import read_json

__all__ = ["read_key", "read_url"]


def read_key(path: str) -> str:
    """Read the file of a key.

    Raises:
        WrongArgument: It cannot be read, or holds something else.
    """
    try:
        key = read_text(path).strip()
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise WrongArgument(f"--key-file {path}: it cannot be read: {reason}") from None
    if not (key.isascii() and key.isprintable()) or len(key.split()) != 1:
        raise WrongArgument(f"--key-file {path}: expected one key, in one line, and nothing else")
    return key


def read_url(url: str, end: str, key: str | None, hint: str, timeout_s: float) -> str:
    """Ask a server for a text, with the key of one that has keys.

    Args:
        url: The address of the server.
        end: The path below it.
        key: The key, None for none.
        hint: What to do where nobody answers.
        timeout_s: How long to wait for the answer.

    Raises:
        HeadraceError: No server answers at the address, or it refuses.
    """
    address = url if "://" in url else f"http://{url}"
    if not _is_address(address):
        raise HeadraceError(f"expected an address, as http://127.0.0.1:8000, got {url!r}")
    request = urllib.request.Request(  # noqa: S310 - http and https alone
        f"{address.rstrip('/')}{end}"
    )
    if key is not None:  # a server elsewhere, to which this one may redirect, does not get it
        request.add_unredirected_header("Authorization", f"Bearer {key}")
    try:
        with urllib.request.urlopen(request, timeout=timeout_s) as answer:  # noqa: S310
            text: str = answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:  # the error is also the answer, and holds its connection
            raise HeadraceError(f"{url} answers {error.code} {_said_by(error)}") from None
    except (OSError, http.client.HTTPException, UnicodeError) as error:
        reason = getattr(error, "reason", error) or type(error).__name__
        if isinstance(reason, ssl.SSLCertVerificationError):
            hint = "The environment variable SSL_CERT_FILE names a file with the certificates to trust."
        raise HeadraceError(f"{url} does not answer: {reason}\n  {hint}") from error
    return text


def _said_by(error: urllib.error.HTTPError) -> str:
    """Return the text of an answer that is an error: headrace-serve's own, else the reason; what to do about a key."""
    text = str(error.reason)
    with contextlib.suppress(OSError, http.client.HTTPException, ValueError, KeyError, TypeError):
        text = f"{text}: {read_json(error.read(10_000))['error']}"
    if error.code == http.client.UNAUTHORIZED:
        text += "\n  Give a file with a key of the server: --key-file FILE."
    return text


def _is_address(text: str) -> bool:
    """Return whether a text is an address that can be asked over HTTP."""
    try:
        parts = urllib.parse.urlsplit(text)
        return parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False
