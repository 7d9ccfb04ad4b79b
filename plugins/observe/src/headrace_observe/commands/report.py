"""``headrace observe report``: one HTML page from the JSON of other commands."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from headrace_cli.for_plugins import FORMATS, OK, Json, print_message
from headrace_observe.commands.shared import print_document, writable
from headrace_observe.files import read_json, write_whole
from headrace_observe.reporting import as_page

__all__ = ["report"]


def report(
    files: Annotated[
        list[str],
        typer.Argument(metavar="FILE...", help="JSON of headrace bench, simulate, tune or trace."),
    ],
    output: Annotated[
        str, typer.Option("--output", "-o", metavar="FILE", help="The page.")
    ] = "report.html",
    json: Json = False,
) -> int:
    """Make one HTML page, readable offline: graph, figures, frontier, histograms, environment.

    Pictures of bench, simulate and tune need matplotlib: the extra `headrace-observe[plot]`.

    \b
    Examples:
      headrace bench line.toml photos/ --json > bench.json
      headrace observe report bench.json trace.json -o report.html
    """  # noqa: D301 - typer keeps the lines after a backspace character
    writable(output, "--output", files)
    page = as_page([(path, read_json(path)) for path in files], FORMATS["svg"])
    write_whole(output, lambda part: part.write_text(page, "utf-8", "xmlcharrefreplace"))
    if json:
        print_document({"report": output, "bytes": Path(output).stat().st_size})
    else:
        print_message(f"the report is in {output}")
    return OK
