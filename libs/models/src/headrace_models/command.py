"""``headrace models``: builds all models of a folder and shows their states; with ``--watch`` until Ctrl-C."""

from __future__ import annotations

import sys
import threading
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headrace_cli.for_plugins import (
    CLOSE_S,
    INTERRUPTED,
    OK,
    Json,
    NoImport,
    print_data,
    print_json,
    print_message,
    printing_warnings,
)
from headrace_models.models import Models

if TYPE_CHECKING:
    from headrace_models.changes import Change

__all__ = ["models"]

_COLUMNS = ("state", "device", "reason")


def models(
    folder: Annotated[
        str,
        typer.Argument(metavar="DIR", help="A folder with NAME.toml and NAME/VERSION.toml."),
    ],
    watch: Annotated[
        bool,
        typer.Option(
            "--watch", help="Run until Ctrl-C: apply each change of the files, and print it."
        ),
    ] = False,
    json: Json = False,
    no_import: NoImport = False,
) -> int:
    """Build all models of a folder side by side as a server would, and show which versions are ready, and where.

    With --watch, changed files are updates, deleted files unloads, and new files loads. Each change of a state is
    printed as a line, with --json as an object. Ctrl-C ends it with the exit status 130.

    \b
    Examples:
      headrace models served
      headrace models served --json
    """  # noqa: D301 - typer keeps the lines after a backspace character
    with printing_warnings():
        held = Models(folder, watch=watch, allow_import=not no_import)
        try:
            states = held.status()
            if json:
                print_json(states)
            else:
                _print_table(states)
            if not states:
                print_message(
                    f"there is no model in {folder!r}: no NAME.toml, no NAME/VERSION.toml"
                )
            if watch:
                _watch(held, json=json)
                return INTERRUPTED
        finally:
            held.close(timeout=CLOSE_S)
    return OK


def _watch(held: Models, *, json: bool) -> None:
    def tell(change: Change) -> None:
        line = {
            "model": change.name,
            "version": change.version,
            "state": change.state,
            "replaces": change.replaces,
            "reason": change.reason,
        }
        if json:
            print_json(line)
        else:
            reason = f"  {change.reason}" if change.reason else ""
            print_data(f"{change.name}:{change.version}  {change.state}{reason}")
        sys.stdout.flush()

    held.subscribe(tell)
    print_message("watching; Ctrl-C ends it")
    try:
        threading.Event().wait()
    except KeyboardInterrupt:
        return


def _print_table(states: dict[str, dict[str, Any]]) -> None:
    rows = [("model", *_COLUMNS)]
    for name, said in states.items():
        if "shares" in said:
            shares = ", ".join(f"{target} {share:.0%}" for target, share in said["shares"].items())
            rows.append(
                (name, said["state"], "", "; ".join(filter(None, (shares, said["reason"]))))
            )
        else:
            versions = said["versions"].items()
            rows += [(f"{name}:{n}", *(each[key] for key in _COLUMNS)) for n, each in versions]
    widths = [max(len(row[at]) for row in rows) for at in range(len(rows[0]))]
    for row in rows:
        cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        print_data("  ".join(cells).rstrip())
