"""The plugin's hooks: it reads Triton's model repositories, and has the command `headrace triton`."""

from __future__ import annotations

from headrace.hookspecs import hookimpl

__all__ = ["headrace_commands", "headrace_readers"]


@hookimpl
def headrace_commands() -> dict[str, str]:
    """Return the command."""
    return {"triton": "headrace_triton.command:triton"}


@hookimpl
def headrace_readers() -> dict[str, str]:
    """Return the file by which a repository is known."""
    return {"*/config.pbtxt": "headrace_triton.repository:tables_of"}
