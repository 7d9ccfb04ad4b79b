"""``headrace serve``: serves models from configurations until a signal ends the server."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import fields
from functools import partial
from typing import Annotated, Any, Literal

import typer

from headrace_cli.for_plugins import Json, print_data

__all__ = ["serve"]

_LONGEST = 1e9
"""The greatest number of seconds, or milliseconds, that an option takes; so infinity is refused."""

_PEM = "FILE.PEM"


def _limited(value: float | None) -> float | None:
    """Check a time; `typer.Option(max=...)` would show a limit in help that nobody reaches."""
    if value is not None and not value <= _LONGEST:
        raise typer.BadParameter(f"expected at most {_LONGEST:.0f}, got {value}")
    return value


# The groups of options in the help, in this order.
_models = partial(typer.Option, rich_help_panel="Models")
_listening = partial(typer.Option, rich_help_panel="Where it listens")
_callers = partial(typer.Option, rich_help_panel="Who may call")
_pages = partial(typer.Option, rich_help_panel="Pages in browsers")
_processes = partial(typer.Option, rich_help_panel="Processes and shutdown")
_limits = partial(typer.Option, rich_help_panel="Limits of requests")
_connections = partial(typer.Option, rich_help_panel="Connections")
_logs = partial(typer.Option, rich_help_panel="Logs and errors")


_FIELDS = {
    "drain_delay": "drain_delay_s", "drain_timeout": "drain_timeout_s", "receive_timeout": "receive_timeout_s",
    "min_rate": "min_rate_bytes_s", "max_connection_age": "max_connection_age_s", "grpc_keepalive": "grpc_keepalive_s",
    "grpc_keepalive_timeout": "grpc_keepalive_timeout_s", "grpc_min_ping_interval": "grpc_min_ping_interval_s",
    "cors_origin": "cors_origins", "allow_host": "allow_hosts", "api": "apis",
}  # fmt: skip
"""The fields of `Settings` and `Limits` whose options have other names."""

_LISTS = ("models", "allow", "cors_origins", "allow_hosts", "apis")

_BYTES: Any = {"metavar": "BYTES", "min": 1}
_PORT: Any = {"min": 0, "max": 65535}
_SECONDS: Any = {"metavar": "SECONDS", "callback": _limited}


def serve(  # noqa: PLR0913, PLR0917 - options of the command line
    models: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[NAME[:VERSION]=]CONFIG...",
            help="What to serve; default: the file's stem as name, 1 as version. A folder: all models in it.",
        ),
    ] = None,
    models_file: Annotated[
        str | None,
        _models("--models", metavar="FILE", help="A TOML file with tables [models.NAME]."),
    ] = None,
    manager: Annotated[
        str | None,
        _models(
            metavar="MODULE:OBJECT",
            help="An object with pipelines by name and version: package.module:object.",
        ),
    ] = None,
    watch: Annotated[
        bool,
        _models("--watch", help="Update models whose files change, and load new ones of a folder."),
    ] = False,
    exit_on_error: Annotated[
        Literal["true", "false"],
        _models(help="false: if a model fails, the others serve, as always with --watch."),
    ] = "true",
    no_import: Annotated[
        bool, _models("--no-import", help="Refuse to import code for configurations.")
    ] = False,
    no_fetch: Annotated[
        bool, _models("--no-fetch", help="Refuse to fetch files, as HEADRACE_OFFLINE=1 does.")
    ] = False,
    host: Annotated[
        str, _listening(metavar="ADDRESS", help="The address to listen on; 0.0.0.0 for all.")
    ] = "127.0.0.1",
    port: Annotated[int, _listening(**_PORT, help="The port; 0: a free one.")] = 8000,
    grpc_port: Annotated[
        int | None, _listening(**_PORT, help="The port of gRPC; without it only REST is served.")
    ] = None,
    admin_port: Annotated[
        int | None,
        _listening(**_PORT, help="Another port, for health, metrics and the repository alone."),
    ] = None,
    api: Annotated[
        list[str] | None,
        _listening(
            metavar="NAME",
            help="Also answer clients of another server: openai, tei, kserve-v1, sagemaker, or a plugin's. May be repeated.",
        ),
    ] = None,
    server_name: Annotated[
        str,
        _listening(metavar="NAME", help="The name in the metadata; some clients ask for triton."),
    ] = "headrace-serve",
    keys: Annotated[
        str | None,
        _callers(metavar="FILE", help="A TOML file, a table [NAME] per key: sha256 = its hash."),
    ] = None,
    tls_cert: Annotated[str | None, _callers(metavar=_PEM, help="The certificate, PEM.")] = None,
    tls_key: Annotated[str | None, _callers(metavar=_PEM, help="Its key, PEM.")] = None,
    tls_client_ca: Annotated[
        str | None,
        _callers(metavar=_PEM, help="Roots of the certificates that clients then need, PEM."),
    ] = None,
    cors_origin: Annotated[
        list[str] | None,
        _pages(
            metavar="ORIGIN",
            help="An origin, as https://host, whose pages may read answers; * for all. May be repeated.",
        ),
    ] = None,
    allow_host: Annotated[
        list[str] | None,
        _pages(
            metavar="NAME",
            help="A host that requests may name beside those of this machine, as a proxy's; then no others may. May be repeated.",
        ),
    ] = None,
    allow: Annotated[
        list[str] | None,
        _callers(
            metavar="WHAT",
            help="Turn on what is off by default: repository (clients load and unload models).",
        ),
    ] = None,
    ui: Annotated[
        bool,
        _pages("--ui", help="A live page at /ui. Needs --keys, or an address of this machine."),
    ] = False,
    workers: Annotated[
        int,
        _processes(
            min=1, help="Processes that share the ports, each with all models and bounds; on Linux."
        ),
    ] = 1,
    worker_healthcheck_s: Annotated[
        float,
        _processes(**_SECONDS, min=0.1, help="Seconds for a worker to answer, or it is replaced."),
    ] = 5.0,
    switch_interval_ms: Annotated[
        float,
        _processes(metavar="MS", min=0.01, max=1000, help="Of the interpreter; Python has 5."),
    ] = 1.0,
    drain_delay: Annotated[
        float,
        _processes(**_SECONDS, min=0, help="Seconds to go on serving after SIGTERM, not ready."),
    ] = 0.0,
    drain_timeout: Annotated[
        float, _processes(**_SECONDS, min=0, help="Seconds for requests to end after SIGTERM.")
    ] = 30.0,
    max_body_bytes: Annotated[
        int, _limits(**_BYTES, help="The most bytes of a body, also decompressed.")
    ] = 64 << 20,
    max_json_bytes: Annotated[
        int, _limits(**_BYTES, help="The same of JSON, where each of [ { , : counts 56 bytes more.")
    ] = 64 << 20,
    max_inflight_bytes: Annotated[
        int,
        _limits(**_BYTES, help="The most bytes of all bodies in flight, and of answers that wait."),
    ] = 1 << 30,
    max_timeout_ms: Annotated[
        float | None,
        _limits(metavar="MS", min=0.001, callback=_limited, help="Milliseconds for any request."),
    ] = None,
    priority_default: Annotated[
        int, _limits(min=1, help="The priority of requests that give none; 1: most urgent.")
    ] = 2,
    receive_timeout: Annotated[
        float, _connections(**_SECONDS, min=0.001, help="Seconds for a request to arrive.")
    ] = 60.0,
    min_rate: Annotated[int, _limits(min=1, help="The least bytes per second of a client.")] = 256,
    max_connections: Annotated[
        int, _connections(min=1, help="The most connections at a time, of each protocol.")
    ] = 4096,
    max_connection_age: Annotated[
        float | None,
        _connections(**_SECONDS, min=1, help="Seconds until gRPC reconnects; 300 with --workers."),
    ] = None,
    grpc_keepalive: Annotated[
        float | None,
        _connections(**_SECONDS, min=0.001, help="Idle seconds until gRPC pings; default: never."),
    ] = None,
    grpc_keepalive_timeout: Annotated[
        float, _connections(**_SECONDS, min=0.001, help="Seconds to answer such a ping.")
    ] = 20.0,
    grpc_min_ping_interval: Annotated[
        float,
        _connections(**_SECONDS, min=0.001, help="The least seconds between a client's pings."),
    ] = 300.0,
    metrics: Annotated[
        Literal["default", "server"], _logs(help="default: /metrics has what code registers, too.")
    ] = "default",
    access_log: Annotated[bool, _logs("--access-log", help="Log each request to stderr.")] = False,
    log_format: Annotated[
        Literal["text", "json"],
        _logs("--log-format", help="Of messages and logs on stderr; json: an object a line."),
    ] = "text",
    debug_errors: Annotated[
        bool, _logs("--debug-errors", help="Send clients the text of every error.")
    ] = False,
    check: Annotated[
        bool, _logs("--check", help="Only check all of it: build, open and need nothing.")
    ] = False,
    as_json: Json = False,
) -> int:
    """Serve pipelines by the Open Inference Protocol, which clients of Triton speak.

    SIGTERM and Ctrl-C let requests end (exit status 0 and 130). A second signal ends at once. SIGHUP reads
    configurations, sizes of [memory], keys and certificates again. If that fails, the errors are printed and the
    old ones stay. With --workers the signals reach all processes, and one that dies or answers nothing is started
    again. With --json a line on stdout has the addresses once all listen, or the errors. --check exits with 0, or
    with 2 and all errors.

    \b
    Examples:
      headrace serve line.toml
      headrace serve size=size.toml --port 8000 --grpc-port 8001
      headrace serve served --watch
      headrace serve --models serve.toml --check
      headrace serve --models serve.toml --host 0.0.0.0 --workers 4 --access-log
    """  # noqa: D301 - typer keeps the lines after a backspace character
    given = dict(locals())
    if no_fetch:
        os.environ["HEADRACE_OFFLINE"] = "1"  # for worker processes as well
    for name in ("as_json", "no_import", "no_fetch", "workers", "check"):
        del given[name]
    from headrace_serve.operating.init_process import below_init, hangups

    with hangups() as early:  # before all that takes its time
        from headrace_serve.admission.limits import Limits
        from headrace_serve.operating.logs import printing_logs
        from headrace_serve.operating.running import run
        from headrace_serve.operating.settings import Settings
        from headrace_serve.operating.workers import run_workers

        named = {_FIELDS.get(name, name): value for name, value in given.items()}
        of_limits = {field.name for field in fields(Limits)} & {*named}
        named["limits"] = Limits(**{name: named.pop(name) for name in of_limits})
        named |= {name: tuple(named[name] or ()) for name in _LISTS}
        named["exit_on_error"] = exit_on_error == "true"
        settings = Settings(**named, allow_import=not no_import, processes=workers)
        if check:
            titles = settings.check()
            told = {"ok": True, "problems": [], "models": titles}
            print_data(json.dumps(told) if as_json else f"ok: {', '.join(titles)}")
            return 0

        def listening(addresses: dict[str, str | None]) -> None:
            if as_json:
                print_data(json.dumps({"ok": True, **addresses, "workers": workers}))
                sys.stdout.flush()

        def serving() -> int:
            with printing_logs(settings.log_format, access=access_log):
                if workers > 1:
                    return run_workers(settings, workers, listening)
                return run(settings, listening, early=early)

        return below_init(serving)
