"""``headrace ui``: the live page of one pipeline, for the machine on which it runs."""

from __future__ import annotations

import threading
import webbrowser
from typing import Annotated

import typer

__all__ = ["ui"]


def ui(
    config: Annotated[
        str,
        typer.Argument(
            metavar="[NAME=]CONFIG",
            help="The configuration of the pipeline; the file's stem is its name.",
            show_default=False,
        ),
    ],
    port: Annotated[int, typer.Option(min=0, max=65535, help="The port; 0: a free one.")] = 8000,
    open_browser: Annotated[
        bool, typer.Option("--open", help="Open the page in a browser once it is there.")
    ] = False,
    examples: Annotated[
        str | None,
        typer.Option(metavar="FOLDER", help="Offer pictures and texts of this folder to click."),
    ] = None,
    no_import: Annotated[
        bool, typer.Option("--no-import", help="Refuse to import code for the configuration.")
    ] = False,
) -> int:
    """Show a pipeline live in a browser: its graph with figures, a form, a load test.

    It is served as `headrace serve CONFIG --ui --debug-errors` does, on 127.0.0.1 alone. The page asks no other host. Ctrl-C
    ends it.

    \b
    Examples:
      headrace ui line.toml
      headrace ui line.toml --open
      headrace ui page=examples/ocr/page.toml --port 0
      headrace ui examples/ocr/page.toml --examples examples/ocr/made/pages
    """  # noqa: D301 - typer keeps the lines after a backspace character
    from headrace_serve.operating.init_process import hangups
    from headrace_serve.operating.logs import printing_logs
    from headrace_serve.operating.running import run
    from headrace_serve.operating.settings import Settings

    settings = Settings(
        models=(config,),
        port=port,
        allow_import=not no_import,
        debug_errors=True,
        ui=True,
        examples=examples,
    )
    with hangups() as early, printing_logs("text", access=False):
        return run(settings, _open_in_browser if open_browser else None, early=early)


def _open_in_browser(addresses: dict[str, str | None]) -> None:
    """Open the page in a thread of its own: a browser in the terminal lasts until its user leaves it."""
    from headrace_serve.operating.logs import say

    page = f"{addresses['url']}/ui"

    def work() -> None:
        if not webbrowser.open(page):
            say(f"no browser opened: open {page} yourself")

    threading.Thread(target=work, name="headrace-serve-browser", daemon=True).start()
