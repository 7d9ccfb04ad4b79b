"""TLS for both protocols, from one set of files, which a reload reads again."""

from __future__ import annotations

import ssl
from dataclasses import dataclass

from headrace.errors import ConfigError, Problem

__all__ = ["Certificates", "Tls"]


_PROTOCOLS = ("http/1.1", "h2")
"""What is spoken on the port of HTTP, and on that of gRPC, as ALPN calls it."""


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
        contexts = [ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER) for _ in _PROTOCOLS]
        try:
            for context, protocol in zip(contexts, _PROTOCOLS, strict=True):
                context.minimum_version = ssl.TLSVersion.TLSv1_2
                context.set_alpn_protocols([protocol])
                context.load_cert_chain(self.cert, self.key)
        except (OSError, ssl.SSLError) as error:
            raise _unreadable(f"{self.cert}, {self.key}", error) from error
        if self.client_ca is not None:
            try:
                for context in contexts:
                    context.load_verify_locations(self.client_ca)
                    context.verify_mode = ssl.CERT_REQUIRED
            except (OSError, ssl.SSLError) as error:
                raise _unreadable(self.client_ca, error) from error
        return Certificates(*contexts)


@dataclass(frozen=True)
class Certificates:
    """The content of the TLS files, read at one time.

    Attributes:
        context, grpc_context: The contexts for HTTP and for gRPC.
    """

    context: ssl.SSLContext
    grpc_context: ssl.SSLContext


def _unreadable(files: str, error: OSError) -> ConfigError:
    reason = error.strerror if type(error) is OSError else str(error)
    return ConfigError(Problem("serve", f"cannot use the files of TLS: {reason}", file=files))
