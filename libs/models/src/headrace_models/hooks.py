"""The plugin's hook: the command `headrace models`, which is imported at its first use."""

from __future__ import annotations

from headrace.hookspecs import hookimpl

__all__ = ["headrace_commands"]


@hookimpl
def headrace_commands() -> dict[str, str]:
    """Return the command."""
    return {"models": "headrace_models.command:models"}
