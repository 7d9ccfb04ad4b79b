"""``headrace worker``: lets containers of other programs and machines have processes here, until Ctrl-C."""

from __future__ import annotations

import signal
import ssl
from typing import TYPE_CHECKING, Annotated

import typer

from headrace.errors import SetupError
from headrace_cli.for_plugins import INTERRUPTED, OK, print_message
from headrace_workers.secret import read_secret
from headrace_workers.worker import Worker

if TYPE_CHECKING:
    from types import FrameType

__all__ = ["worker"]


def worker(
    listen: Annotated[
        str,
        typer.Option("--listen", metavar="HOST:PORT", help="Where to listen; port 0: a free one."),
    ],
    secret_file: Annotated[
        str,
        typer.Option("--secret-file", metavar="FILE", help="The secret: 64 hexadecimal digits."),
    ],
    tls_cert: Annotated[
        str | None, typer.Option("--tls-cert", metavar="FILE", help="The certificate, PEM.")
    ] = None,
    tls_key: Annotated[
        str | None, typer.Option("--tls-key", metavar="FILE", help="Its private key, PEM.")
    ] = None,
    insecure: Annotated[
        bool,
        typer.Option("--insecure", help="Listen beyond the loopback without TLS."),
    ] = False,
) -> int:
    """Let `Host[X]` of other programs, on this machine and others, have processes here, until Ctrl-C or SIGTERM.

    Who has the secret runs code here. Make one with `openssl rand -hex 32`, and copy it to each machine.

    \b
    Examples:
      headrace worker --listen 127.0.0.1:7000 --secret-file secret
      headrace worker --listen 0.0.0.0:7000 --secret-file secret --tls-cert gpu1.pem --tls-key gpu1.key
    """  # noqa: D301 - typer keeps the lines after a backspace character
    held = Worker(listen, read_secret(secret_file), _context(tls_cert, tls_key), insecure=insecure)

    def end(signum: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt(signum)

    before = signal.signal(signal.SIGTERM, end)
    print_message(f"listening at port {held.port}")
    try:
        held.serve()
    except KeyboardInterrupt as interrupt:
        return OK if interrupt.args == (signal.SIGTERM,) else INTERRUPTED
    finally:
        held.close()
        signal.signal(signal.SIGTERM, before)
    return OK


def _context(cert: str | None, key: str | None) -> ssl.SSLContext | None:
    if (cert is None) is not (key is None):
        raise SetupError("--tls-cert and --tls-key go together: name both files, or none")
    if cert is None:
        return None
    made = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    made.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        made.load_cert_chain(cert, key)
    except (OSError, ssl.SSLError) as error:
        raise SetupError(f"{cert}, {key} cannot be used: {error}") from error
    return made
