"""The plugin's hooks: it reads Triton's model repositories."""

from __future__ import annotations

from headrace.hookspecs import hookimpl

__all__ = ["headrace_readers"]


@hookimpl
def headrace_readers() -> dict[str, str]:
    """Return the file by which a repository is known."""
    return {"*/config.pbtxt": "headrace_triton.repository:tables_of"}
