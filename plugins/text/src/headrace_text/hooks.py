"""The plugin's hooks: it reads folders of sentence-transformers."""

from __future__ import annotations

from headrace.hookspecs import hookimpl

__all__ = ["headrace_readers"]


@hookimpl
def headrace_readers() -> dict[str, str]:
    """Return the file by which a folder of sentence-transformers is known."""
    return {"modules.json": "headrace_text.folder:tables_of"}
