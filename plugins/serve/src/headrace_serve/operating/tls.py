"""TLS for both protocols, from one set of files, which a reload reads again."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace.errors import ConfigError, Problem

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Certificates", "Tls", "grpc_credentials"]


@dataclass(frozen=True)
class Tls:
    """The files of TLS, in PEM.

    Attributes:
        cert: The path of the server's certificate, followed by its intermediate certificates.
        key: The path of the certificate's private key, without a password.
        client_ca: The path of the root certificates for the clients' certificates. None: clients need no certificate.
    """

    cert: str
    key: str
    client_ca: str | None = None

    @classmethod
    def of(cls, tls: Tls | None) -> Tls | None:
        """Return the argument ``tls``, once it is checked.

        Raises:
            TypeError: It is neither of this class nor None.
        """
        if tls is not None and not isinstance(tls, cls):
            raise TypeError(f"expected headrace_serve.Tls, got {tls!r}")
        return tls

    def read(self) -> Certificates:
        """Read the files.

        Raises:
            ConfigError: A file cannot be read, or certificate and key do not belong together.
        """
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.set_alpn_protocols(["http/1.1"])
        roots = None
        try:
            context.load_cert_chain(self.cert, self.key)
            chain, key = Path(self.cert).read_bytes(), Path(self.key).read_bytes()
        except (OSError, ssl.SSLError) as error:
            raise _unreadable(f"{self.cert}, {self.key}", error) from error
        if self.client_ca is not None:
            try:
                context.load_verify_locations(self.client_ca)
                roots = Path(self.client_ca).read_bytes()
            except (OSError, ssl.SSLError) as error:
                raise _unreadable(self.client_ca, error) from error
            context.verify_mode = ssl.CERT_REQUIRED
        return Certificates(context, chain, key, roots)


@dataclass(frozen=True)
class Certificates:
    """The content of the TLS files, read at one time.

    Attributes:
        context: The context for HTTP.
        chain, key: The bytes of the files of the certificate and its key, for gRPC.
        roots: The root certificates for clients' certificates, PEM. None: clients need no certificate.
    """

    context: ssl.SSLContext
    chain: bytes
    key: bytes
    roots: bytes | None


def grpc_credentials(latest: Callable[[], Certificates]) -> Any:
    """Return gRPC credentials that call ``latest`` at each new connection, for the newest certificates."""
    import grpc

    used = latest()

    def configuration() -> Any:
        return grpc.ssl_server_certificate_configuration([(used.key, used.chain)], used.roots)

    def newer() -> Any:
        nonlocal used
        now = latest()
        if now is used:
            return None
        used = now
        return configuration()

    return grpc.dynamic_ssl_server_credentials(
        configuration(), newer, require_client_authentication=used.roots is not None
    )


def _unreadable(files: str, error: OSError) -> ConfigError:
    reason = error.strerror if type(error) is OSError else str(error)
    return ConfigError(Problem("serve", f"cannot use the files of TLS: {reason}", file=files))
