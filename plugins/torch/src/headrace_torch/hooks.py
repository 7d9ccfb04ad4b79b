"""The plugin's hooks: model files may stand where a configuration does."""

from __future__ import annotations

from headrace.hookspecs import hookimpl

__all__ = ["headrace_readers"]


@hookimpl
def headrace_readers() -> dict[str, str]:
    """Return the suffix of programs of torch.export and of AOTInductor packages."""
    return {".pt2": "headrace_torch.reading:tables_of"}
