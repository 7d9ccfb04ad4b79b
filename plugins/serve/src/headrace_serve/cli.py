"""``headrace serve``: models from configurations, until a signal ends it."""

from __future__ import annotations

import signal
import threading
from typing import TYPE_CHECKING, Annotated

import typer

from headrace.errors import ConfigError, Problem

if TYPE_CHECKING:
    from headrace_serve.server import Server

__all__ = ["serve"]

_INTERRUPTED = 130


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
    debug_errors: Annotated[
        bool, typer.Option("--debug-errors", help="Tell clients the text of every error.")
    ] = False,
) -> int:
    """Serve pipelines by the Open Inference Protocol, which clients of Triton speak.

    SIGTERM and Ctrl-C let requests end; a second signal ends at once.
    """
    from headrace_serve.entries import read_models
    from headrace_serve.limits import Limits
    from headrace_serve.server import Server

    limits = Limits(
        max_body_bytes=max_body_bytes,
        max_inflight_bytes=max_inflight_bytes,
        max_connections=max_connections,
        receive_timeout_s=receive_timeout,
        max_timeout_ms=max_timeout_ms,
    )
    entries = read_models(models or [], models_file)
    if not entries:
        raise ConfigError(
            Problem(
                "serve", "there is no model to serve", hint="Name a configuration, or --models."
            )
        )
    server = Server(
        entries,
        host=host,
        port=port,
        grpc_port=grpc_port,
        limits=limits,
        debug_errors=debug_errors,
        priority_default=priority_default,
    )
    return _until_signal(server, drain_timeout)


def _until_signal(server: Server, drain_timeout: float) -> int:
    """Run until a signal, drain, and give the exit status."""
    came = threading.Event()
    draining = threading.Event()

    def on_signal(number: int, frame: object) -> None:
        if draining.is_set():
            raise SystemExit(_INTERRUPTED)
        came.set()

    numbers = [signal.SIGINT, signal.SIGTERM]
    before = {number: signal.signal(number, on_signal) for number in numbers}
    try:
        server.start()
        also = "" if server.grpc_port is None else f" and grpc://{server.host}:{server.grpc_port}"
        typer.echo(f"serving {server.url}{also}", err=True)
        if server.is_open_to_others:
            typer.echo("warning: everybody who reaches this address can send requests", err=True)
        while not came.wait(3600.0):
            pass
        draining.set()
        typer.echo("draining", err=True)
        server.close(timeout=drain_timeout)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    return 0
