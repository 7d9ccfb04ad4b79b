"""What this plugin brings: the command `headrace serve`."""

from __future__ import annotations

from headrace.hookspecs import hookimpl

__all__ = ["headrace_commands"]


@hookimpl
def headrace_commands() -> dict[str, str]:
    """Give the command."""
    return {"serve": "headrace_serve.cli:serve"}
