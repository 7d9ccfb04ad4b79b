"""The plugin's hooks: it reads folders of sentence-transformers, and of classifiers of texts."""

from __future__ import annotations

from headrace.hookspecs import hookimpl

__all__ = ["headrace_readers"]


@hookimpl
def headrace_readers() -> dict[str, str]:
    """Return the files by which a folder is known."""
    return dict.fromkeys(
        ("modules.json", "tokenizer_config.json"), "headrace_text.folder:tables_of"
    )
