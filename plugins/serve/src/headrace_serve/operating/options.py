"""The settings of a server that are options of ``headrace serve``, each with its default, its bounds and its help."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from headrace_serve.admission.limits import Limits
from headrace_serve.option_fields import PEM, PORT, REQUESTS, SECONDS, option

__all__ = ["Options"]

# The groups of options in the help.
_MODELS = "Models"
_LISTENING = "Where it listens"
_CALLERS = "Who may call"
_PAGES = "Pages in browsers"
_PROCESSES = "Processes and shutdown"
_LOGS = "Logs and errors"


@dataclass(frozen=True)
class Options:
    """The arguments of the command, in the order of its help. Files are given by path."""

    models: tuple[str, ...] = option(
        (),
        "",
        metavar="[NAME[:VERSION]=]CONFIG...",
        help="What to serve; default: the file's stem as name, 1 as version. A folder: all models in it.",
    )
    models_file: str | None = option(
        None, _MODELS, "--models", metavar="FILE", help="A TOML file with tables [models.NAME]."
    )
    manager: str | None = option(
        None,
        _MODELS,
        metavar="MODULE:OBJECT",
        help="An object with pipelines by name and version: package.module:object.",
    )
    watch: bool = option(
        False, _MODELS, help="Update models whose files change, and load new ones of a folder."
    )
    exit_on_error: bool = option(
        True,
        _MODELS,
        words=Literal["true", "false"],
        help="false: if a model fails, the others serve, as always with --watch.",
    )
    allow_import: bool = option(
        True, _MODELS, "--no-import", help="Refuse to import code for configurations."
    )
    host: str = option(
        "127.0.0.1",
        _LISTENING,
        metavar="ADDRESS",
        help="The address to listen on; 0.0.0.0 for all.",
    )
    port: int = option(8000, _LISTENING, **PORT, help="The port; 0: a free one.")
    grpc_port: int | None = option(
        None, _LISTENING, **PORT, help="A port for gRPC alone, the only one with TLS."
    )
    admin_port: int | None = option(
        None, _LISTENING, **PORT, help="Another port, for health, metrics and the repository alone."
    )
    apis: tuple[str, ...] = option(
        (),
        _LISTENING,
        "--api",
        metavar="NAME",
        help="Also answer clients of another server: openai, tei, kserve-v1, sagemaker, or a plugin's. "
        "May be repeated.",
    )
    server_name: str = option(
        "headrace-serve",
        _LISTENING,
        metavar="NAME",
        help="The name in the metadata; some clients ask for triton.",
    )
    keys: str | None = option(
        None,
        _CALLERS,
        metavar="FILE",
        help="A TOML file, a table [NAME] per key: sha256 = its hash.",
    )
    tls_cert: str | None = option(None, _CALLERS, **PEM, help="The certificate, PEM.")
    tls_key: str | None = option(None, _CALLERS, **PEM, help="Its key, PEM.")
    tls_client_ca: str | None = option(
        None, _CALLERS, **PEM, help="Roots of the certificates that clients then need, PEM."
    )
    cors_origins: tuple[str, ...] = option(
        (),
        _PAGES,
        "--cors-origin",
        metavar="ORIGIN",
        help="An origin, as https://host, whose pages may read answers; * for all. May be repeated.",
    )
    allow_hosts: tuple[str, ...] = option(
        (),
        _PAGES,
        "--allow-host",
        metavar="NAME",
        help="A host that requests may name beside those of this machine, as a proxy's; then no others may. "
        "May be repeated.",
    )
    allow: tuple[str, ...] = option(
        (),
        _CALLERS,
        metavar="WHAT",
        help="Turn on what is off by default: repository (clients load and unload models).",
    )
    ui: bool = option(
        False, _PAGES, help="A live page at /ui. Needs --keys, or an address of this machine."
    )
    examples: str | None = None
    processes: int = option(
        1,
        _PROCESSES,
        "--workers",
        min=1,
        help="Processes that share the ports, each with all models and bounds; on Linux.",
    )
    worker_healthcheck_s: float = option(
        5.0,
        _PROCESSES,
        **SECONDS,
        min=0.1,
        help="Seconds for a worker to answer, or it is replaced.",
    )
    switch_interval_ms: float = option(
        1.0, _PROCESSES, metavar="MS", min=0.01, max=1000, help="Of the interpreter; Python has 5."
    )
    drain_delay_s: float = option(
        0.0,
        _PROCESSES,
        "--drain-delay",
        **SECONDS,
        min=0,
        help="Seconds to go on serving after SIGTERM, not ready.",
    )
    drain_timeout_s: float = option(
        30.0,
        _PROCESSES,
        "--drain-timeout",
        **SECONDS,
        min=0,
        help="Seconds for requests to end after SIGTERM.",
    )
    limits: Limits = field(default_factory=Limits)
    priority_default: int = option(
        2, REQUESTS, min=1, help="The priority of requests that give none; 1: most urgent."
    )
    metrics: Literal["default", "server"] = option(
        "default", _LOGS, help="default: /metrics has what code registers, too."
    )
    access_log: bool = option(False, _LOGS, help="Log each request to stderr.")
    log_format: Literal["text", "json"] = option(
        "text", _LOGS, help="Of messages and logs on stderr; json: an object a line."
    )
    debug_errors: bool = option(False, _LOGS, help="Send clients the text of every error.")
