"""The plugin's hooks: the command `headrace worker`."""

from __future__ import annotations

from headrace.hookspecs import hookimpl

__all__ = ["headrace_commands"]


@hookimpl
def headrace_commands() -> dict[str, str]:
    """Return the command."""
    return {"worker": "headrace_process.command:worker"}
