"""TLS between a program and its actors: where Ray uses it, with the same certificates."""

from __future__ import annotations

import os
import ssl

from headrace.errors import SetupError

__all__ = ["context"]


def context(*, server: bool) -> ssl.SSLContext | None:
    """Return what both sides of a connection need. None where Ray has no TLS.

    Both show the certificate of ``RAY_TLS_SERVER_CERT``, and believe the roots of ``RAY_TLS_CA_CERT``.

    Args:
        server: Whether it is for the side that listens.

    Raises:
        SetupError: A file cannot be used.
    """
    if os.environ.get("RAY_USE_TLS", "0").lower() not in ("1", "true"):
        return None
    certificate, key, roots = (
        os.environ.get(f"RAY_TLS_{name}", "") for name in ("SERVER_CERT", "SERVER_KEY", "CA_CERT")
    )
    try:
        tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if server else ssl.PROTOCOL_TLS_CLIENT)
        tls.verify_mode = ssl.CERT_REQUIRED
        tls.load_verify_locations(roots)
        tls.load_cert_chain(certificate, key)
        if server:
            tls.num_tickets = 0  # else the other side finds something to read which is no message
    except (OSError, ssl.SSLError) as error:
        problem = f"RAY_USE_TLS is set, and the certificates cannot be used: {error}"
        hint = "Ray reads RAY_TLS_SERVER_CERT, RAY_TLS_SERVER_KEY and RAY_TLS_CA_CERT."
        raise SetupError(problem, hint=hint) from error
    return tls
