"""``headrace observe why``: where the time of a request went, and what would have helped."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any
from urllib.parse import quote

import typer

from headrace_cli.for_plugins import OK, Json, counted, print_data, print_message, printing_warnings
from headrace_observe.commands.arguments import KeyFile, writable
from headrace_observe.commands.printing import print_document
from headrace_observe.commands.server import read_key, read_url
from headrace_observe.explain.causes import slowest
from headrace_observe.explain.causes import why as explained
from headrace_observe.explain.cures import cures
from headrace_observe.files import lines_of, write_text
from headrace_observe.memory import parse_dump

__all__ = ["why"]


def why(
    source: Annotated[
        str,
        typer.Argument(
            metavar="SOURCE", help="A server, as http://127.0.0.1:8000, or a file of --save."
        ),
    ],
    request_id: Annotated[
        str | None,
        typer.Argument(metavar="[REQUEST_ID]", help="The request: its X-Request-Id or request_id."),
    ] = None,
    save: Annotated[
        str | None,
        typer.Option(
            "--save",
            metavar="FILE",
            help="Write what the server remembers into a file, which `headrace simulate` and `headrace tune` read.",
        ),
    ] = None,
    key_file: KeyFile = None,
    json: Json = False,
) -> int:
    """Say where the time of a request went, and what would have helped. Without a request: of the slowest ten.

    The pipeline needs `probes = ["Remember(64MiB)"]` under [global]. A server gives the 20,000 runs around the request. What
    would have helped is simulated, with the requests since the pipeline had nothing to do, and the times that batches took. It
    needs the extra `headrace-observe[simulate]`.

    \b
    Examples:
      headrace observe why http://127.0.0.1:8000 7f3a
      headrace observe why http://127.0.0.1:8000 --save monday.jsonl
      headrace observe why monday.jsonl 7f3a --json
    """  # noqa: D301 - typer keeps the lines after a backspace character
    writable(save, "--save", [source])
    if ":" in source and not Path(source).exists():  # as http://127.0.0.1:8000, or without http://
        end = "/v2/memory" + ("" if request_id is None else f"?request_id={quote(request_id)}")
        hint = "It is the address of headrace serve."
        key = None if key_file is None else read_key(key_file)
        lines = read_url(source, end, key, hint, 60).splitlines()
    else:
        lines = lines_of(source, "the dump")
    with printing_warnings():
        memory = parse_dump(lines, source)
    if save is not None:
        write_text(save, "\n".join([*lines, ""]))
    if not memory.by_name:
        ran = counted(len(memory.visits), "run")
        print_message(
            f"{source} remembers {ran}, and no request with a name\n"
            "  A request needs the key `request_id`, or at a server the header X-Request-Id."
        )
    each = slowest(memory) if request_id is None else explained(memory, request_id)
    tried = [] if request_id is None else cures(memory, request_id)
    if json:
        plans: list[dict[str, Any]] = [plan.to_dict() for plan in each]
        print_document({"requests": plans, "cures": [cure._asdict() for cure in tried]})
        return OK
    for plan in each:
        print_data(str(plan) if request_id is not None else f"{plan.request_id}: {plan}")
    for cure in tried[1:]:
        text = f"{cure.ms:.1f} ms" if cure.ms is not None else f"not simulated: {cure.why_not}"
        print_data(f"with {cure.setting}: {text}")
    if tried and tried[0].ms is not None:
        print_data(
            f"Simulated with the {tried[0].requests} requests since the pipeline was idle, which give "
            f"{tried[0].ms:.1f} ms for the settings as they are."
        )
    if tried and tried[0].why_not:
        print_message(f"what would have helped is not known: {tried[0].why_not}")
    return OK
