"""How a command's help shows arguments and options: by their meaning, not by Python's types."""

from __future__ import annotations

import re
from typing import Any

_SHOWN = {
    "bool": "true|false",
    "directory": "FOLDER",
    "file": "FILE",
    "float": "N",
    "int": "N",
    "path": "PATH",
    "str": "TEXT",
}
"""The text that help shows instead of a type that typer would name."""

_TYPE = re.compile(r"<(?:list\[)?([^<>\]]*?)\]?(?: range)?>")
"""How typer writes a type behind a name: ``<list[str]>``, ``<float range>``, ``<a|b>``."""


_WHOLE = 1000
"""More characters than a first sentence has."""


def readable(command: Any) -> Any:
    """Remove Python's types from the help of a command and of those below it; return the command.

    A group lists each command with its whole first sentence, which click would cut off at the end of a line.
    """
    for parameter in command.params:
        if parameter.param_type_name == "argument":
            _name_argument(parameter)
        else:
            _name_option(parameter)
    for inner in getattr(command, "commands", {}).values():
        readable(inner)
        if not inner.deprecated:
            inner.short_help = inner.get_short_help_str(_WHOLE)
    return command


def _name_argument(argument: Any) -> None:
    """Show an argument as its ``metavar`` says, in the usage and in the list."""
    name = argument.metavar or argument.name.upper()
    many = "..." if argument.nargs != 1 and not name.endswith("...") else ""
    usage = name if argument.required or name.startswith("[") else f"[{name}]"
    record = argument.get_help_record

    def shown(ctx: Any) -> tuple[str, str] | None:
        row = record(ctx)
        return row and (name + many, row[1])

    argument.get_help_record = shown
    argument.get_usage_pieces = lambda ctx: [usage + many]


def _name_option(option: Any) -> None:
    """Show the value of an option without ``metavar`` as N, TEXT, FILE, or its choices."""
    record = option.get_help_record

    def shown(ctx: Any) -> tuple[str, str] | None:
        row = record(ctx)
        return row and (_TYPE.sub(lambda match: _SHOWN.get(match[1], match[1]), row[0]), row[1])

    option.get_help_record = shown
