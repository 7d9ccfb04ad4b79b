"""``headrace serve``: serves models from configurations until a signal ends the server."""

from __future__ import annotations

import json
import os
import sys
from typing import Annotated, Any

import typer

from headrace_cli.for_plugins import Json, print_data
from headrace_serve.commands.parameters import from_options, with_options
from headrace_serve.operating.options import Options

__all__ = ["serve"]


@with_options(Options)
def serve(
    *,
    no_fetch: Annotated[
        bool,
        typer.Option(
            "--no-fetch",
            rich_help_panel="Models",
            help="Refuse to fetch files, as HEADRACE_OFFLINE=1 does.",
        ),
    ] = False,
    check: Annotated[
        bool,
        typer.Option(
            "--check",
            rich_help_panel="Logs and errors",
            help="Only check all of it: build, open and need nothing.",
        ),
    ] = False,
    as_json: Json = False,
    **given: Any,
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
    if no_fetch:
        os.environ["HEADRACE_OFFLINE"] = "1"  # for worker processes as well
    from headrace_serve.operating.init_process import below_init, hangups

    with hangups() as early:  # before all that takes its time
        from headrace_serve.operating.logs import printing_logs
        from headrace_serve.operating.running import run
        from headrace_serve.operating.settings import Settings
        from headrace_serve.operating.workers import run_workers

        settings = from_options(Settings, given)
        workers = settings.processes
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
            with printing_logs(settings.log_format, access=settings.access_log):
                if workers > 1:
                    return run_workers(settings, workers, listening)
                return run(settings, listening, early=early)

        return below_init(serving)
