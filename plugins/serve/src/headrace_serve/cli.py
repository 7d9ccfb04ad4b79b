"""``headrace serve``: models from configurations, until a signal ends it."""

from __future__ import annotations

import logging
import os
import queue
import signal
import threading
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headrace.errors import ConfigError, HeadraceError, Problem

if TYPE_CHECKING:
    from collections.abc import Callable

    from headrace_serve.server import Server

__all__ = ["serve"]

_INTERRUPTED = 130
_HANGUP: signal.Signals | None = getattr(signal, "SIGHUP", None)


def serve(  # noqa: PLR0913, PLR0917 - options of the command line
    models: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[NAME[:VERSION]=]CONFIG...",
            help="What to serve; the name is else the file's stem, the version 1.",
        ),
    ] = None,
    models_file: Annotated[
        str | None,
        typer.Option("--models", help="A TOML file with a table [models.NAME] for each."),
    ] = None,
    host: Annotated[
        str, typer.Option(help="The address to listen on; 0.0.0.0 for all.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="The port; 0: a free one.")] = 8000,
    grpc_port: Annotated[
        int | None,
        typer.Option(min=0, max=65535, help="The port of gRPC; without it REST alone is served."),
    ] = None,
    keys: Annotated[
        str | None, typer.Option(help="A TOML file with names and hashes of keys; see the page.")
    ] = None,
    tls_cert: Annotated[str | None, typer.Option(help="The certificate, PEM.")] = None,
    tls_key: Annotated[str | None, typer.Option(help="Its key, PEM.")] = None,
    tls_client_ca: Annotated[
        str | None, typer.Option(help="Roots of the certificates that clients must have, PEM.")
    ] = None,
    drain_delay: Annotated[
        float, typer.Option(min=0, help="Seconds to go on accepting after SIGTERM, not ready.")
    ] = 0.0,
    access_log: Annotated[
        bool, typer.Option("--access-log", help="Write a line per request to stderr.")
    ] = False,
    drain_timeout: Annotated[
        float, typer.Option(min=0, help="Seconds for requests to end after SIGTERM.")
    ] = 30.0,
    max_body_bytes: Annotated[
        int, typer.Option(min=1, help="The most bytes of a body, also decompressed.")
    ] = 64 << 20,
    max_inflight_bytes: Annotated[
        int, typer.Option(min=1, help="The most bytes of all bodies at a time.")
    ] = 1 << 30,
    max_connections: Annotated[
        int, typer.Option(min=1, help="The most connections of HTTP at a time.")
    ] = 4096,
    receive_timeout: Annotated[
        float, typer.Option(min=0.001, help="Seconds in which a request must have arrived.")
    ] = 60.0,
    max_timeout_ms: Annotated[
        float | None, typer.Option(min=0.001, help="Milliseconds any request may take.")
    ] = None,
    priority_default: Annotated[
        int, typer.Option(min=1, help="The priority of requests that say none; 1: most urgent.")
    ] = 2,
    cors_origin: Annotated[
        list[str] | None,
        typer.Option(help="An origin, as https://host, whose pages may read answers; * for all."),
    ] = None,
    min_rate: Annotated[
        int, typer.Option(min=1, help="Bytes per second that a client must send, and take.")
    ] = 256,
    allow: Annotated[
        list[str] | None,
        typer.Option(
            help="What is off else: repository (requests load and unload models) or shared-memory."
            " May stand twice."
        ),
    ] = None,
    manager: Annotated[
        str | None,
        typer.Option(help="package.module:object that gives pipelines by name and version."),
    ] = None,
    no_import: Annotated[
        bool, typer.Option("--no-import", help="Run no code that configurations import.")
    ] = False,
    debug_errors: Annotated[
        bool, typer.Option("--debug-errors", help="Tell clients the text of every error.")
    ] = False,
) -> int:
    """Serve pipelines by the Open Inference Protocol, which clients of Triton speak.

    SIGTERM and Ctrl-C let requests end; a second signal ends at once. SIGHUP reads configurations,
    keys and certificates again; what is wrong with them is printed, and the old ones stay.
    """
    from headrace_serve.entries import read_models
    from headrace_serve.keys import Keys
    from headrace_serve.limits import Limits
    from headrace_serve.manager import load_manager
    from headrace_serve.server import Server
    from headrace_serve.tls import Tls

    limits = Limits(
        max_body_bytes=max_body_bytes,
        max_inflight_bytes=max_inflight_bytes,
        max_connections=max_connections,
        receive_timeout_s=receive_timeout,
        min_rate_bytes_s=min_rate,
        max_timeout_ms=max_timeout_ms,
    )
    if manager is not None and (models or models_file is not None):
        raise ConfigError(Problem("serve", "a --manager has all models; name no others"))
    if not models and models_file is None and manager is None:
        hint = "Name a configuration, --models, or --manager."
        raise ConfigError(Problem("serve", "there is no model to serve", hint=hint))
    if (tls_cert is None) != (tls_key is None) or (tls_client_ca and tls_cert is None):
        raise ConfigError(Problem("serve", "TLS needs --tls-cert and --tls-key"))
    tls = None
    if tls_cert is not None and tls_key is not None:
        tls = Tls(tls_cert, tls_key, tls_client_ca)

    def read() -> dict[str, Any]:
        found = None if keys is None else Keys.load(keys)
        given: Any
        if manager is None:
            given = read_models(models or [], models_file)
        else:
            given = load_manager(manager, allow_import=not no_import)
        return {"models": given, "keys": found}

    server = Server(
        **read(),
        tls=tls,
        host=host,
        port=port,
        grpc_port=grpc_port,
        limits=limits,
        debug_errors=debug_errors,
        priority_default=priority_default,
        allow=allow or (),
        cors_origins=cors_origin or (),
        allow_import=not no_import,
    )
    if access_log:
        _print_access_log()

    def reload() -> None:
        server.reload(**read())

    return _until_signal(server, reload, drain_delay, drain_timeout)


def _print_access_log() -> None:
    logger = logging.getLogger("headrace.serve.access")
    logger.setLevel(logging.INFO)
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(asctime)s %(message)s"))
    logger.addHandler(handler)


def _until_signal(
    server: Server, reload: Callable[[], None], drain_delay: float, drain_timeout: float
) -> int:
    """Run until a signal, drain, and give the exit status."""
    came: queue.SimpleQueue[int] = queue.SimpleQueue()
    ending = threading.Event()

    def on_signal(number: int, frame: object) -> None:
        if number != _HANGUP:
            if ending.is_set():
                os._exit(_INTERRUPTED)  # nothing is waited for
            ending.set()
        came.put(number)

    numbers: list[signal.Signals] = [signal.SIGINT, signal.SIGTERM]
    if _HANGUP is not None:
        numbers.append(_HANGUP)
    before = {number: signal.signal(number, on_signal) for number in numbers}
    try:
        server.start()
        also = "" if server.grpc_port is None else f" and grpc://{server.host}:{server.grpc_port}"
        typer.echo(f"serving {server.url}{also}", err=True)
        if server.is_open_to_others:
            typer.echo("warning: everybody who reaches this address can send requests", err=True)
        while came.get() == _HANGUP:
            _reload(reload)
        typer.echo("draining", err=True)
        server.drain()
        threading.Event().wait(drain_delay)
        server.close(timeout=drain_timeout)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    return 0


def _reload(reload: Callable[[], None]) -> None:
    try:
        reload()
    except HeadraceError as error:
        typer.echo(f"error: {error}\nnothing has changed", err=True)
    else:
        typer.echo("reloaded", err=True)
