"""The plugin's hook: the command `headrace trt`."""

from __future__ import annotations

from headrace.hookspecs import hookimpl

__all__ = ["headrace_commands"]


@hookimpl
def headrace_commands() -> dict[str, str]:
    """Return the tools."""
    return {"trt": "headrace_trt.tools.cli:app"}
