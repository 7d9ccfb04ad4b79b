"""TLS for both protocols, from one set of files that can be read again while serving."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headrace.errors import ConfigError, Problem

__all__ = ["Tls"]


@dataclass(frozen=True)
class Tls:
    """The files of TLS, in PEM.

    Attributes:
        cert: The certificate, with those between it and its root.
        key: Its key, without a password.
        client_ca: Roots of the certificates that clients must have; None: they need none.
    """

    cert: str
    key: str
    client_ca: str | None = None

    def context(self) -> ssl.SSLContext:
        """Read the files for HTTP.

        Raises:
            ConfigError: One cannot be read, or they do not belong together.
        """
        made = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        made.minimum_version = ssl.TLSVersion.TLSv1_2
        made.set_alpn_protocols(["http/1.1"])
        self.load_into(made)
        if self.client_ca is not None:
            try:
                made.load_verify_locations(self.client_ca)
            except (OSError, ssl.SSLError) as error:
                raise _unreadable(self.client_ca, error) from error
            made.verify_mode = ssl.CERT_REQUIRED
        return made

    def load_into(self, context: ssl.SSLContext) -> None:
        """Read certificate and key; new connections use them.

        Raises:
            ConfigError: One cannot be read, or they do not belong together.
        """
        try:
            context.load_cert_chain(self.cert, self.key)
        except (OSError, ssl.SSLError) as error:
            raise _unreadable(f"{self.cert}, {self.key}", error) from error

    def grpc_credentials(self) -> Any:
        """Give credentials of gRPC, which read the files again when they have changed."""
        import grpc

        def read() -> Any:
            roots = None if self.client_ca is None else Path(self.client_ca).read_bytes()
            pair = (Path(self.key).read_bytes(), Path(self.cert).read_bytes())
            return grpc.ssl_server_certificate_configuration([pair], roots)

        return grpc.dynamic_ssl_server_credentials(
            read(), read, require_client_authentication=self.client_ca is not None
        )


def _unreadable(files: str, error: OSError) -> ConfigError:
    reason = error.strerror if type(error) is OSError else str(error)
    return ConfigError(Problem("serve", f"cannot use the files of TLS: {reason}", file=files))
