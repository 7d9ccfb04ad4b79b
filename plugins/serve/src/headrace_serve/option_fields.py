"""Fields of dataclasses that are options of ``headrace serve``: name, bounds and help stand beside the default."""

from __future__ import annotations

from dataclasses import field
from typing import Any, Final

__all__ = ["BYTES", "OPTION", "PEM", "PORT", "REQUESTS", "SECONDS", "option"]

OPTION: Final = "headrace serve"
"""The key of a field's metadata that has the arguments of `typer.Option`."""

BYTES: Final[Any] = {"metavar": "BYTES", "min": 1}
PEM: Final[Any] = {"metavar": "FILE.PEM"}
PORT: Final[Any] = {"min": 0, "max": 65535}
SECONDS: Final[Any] = {"metavar": "SECONDS"}

REQUESTS: Final = "Limits of requests"
"""A group of options of several dataclasses."""


def option(default: Any, panel: str, *names: str, **shown: Any) -> Any:
    """Return a field of a dataclass that is an option of the command, too.

    The option of a field that is true by default makes it false. That of a tuple may be repeated. A time without a greatest
    value may not be infinite.

    Args:
        default: The default of the field and of its option.
        panel: The group of options in the help.
        names: The option. None: the name of the field, with dashes.
        shown: Further arguments of `typer.Option`. ``words`` are the values that stand for true and false. ``last``
            puts the option behind all others of its group.
    """
    about = {"rich_help_panel": panel, "names": names, **shown}
    return field(default=default, metadata={OPTION: about})
