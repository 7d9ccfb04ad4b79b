"""The plugin's hooks: its command, by the path of a function that is imported at the first use."""

from __future__ import annotations

from headrace.hookspecs import hookimpl

__all__ = ["headrace_commands"]


@hookimpl
def headrace_commands() -> dict[str, str]:
    """Return the commands."""
    return {"video": "headrace_vision.commands:video"}
