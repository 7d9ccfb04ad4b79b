"""The plugin's hook: the command `headrace triton`."""

from __future__ import annotations

from headrace.hookspecs import hookimpl

__all__ = ["headrace_commands"]


@hookimpl
def headrace_commands() -> dict[str, str]:
    """Return the command."""
    return {"triton": "headrace_triton.command:triton"}
