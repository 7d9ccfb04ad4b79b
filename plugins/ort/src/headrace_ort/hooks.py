"""The plugin's hooks: model files may stand where a configuration does."""

from __future__ import annotations

from headrace.hookspecs import hookimpl

__all__ = ["headrace_readers"]


@hookimpl
def headrace_readers() -> dict[str, str]:
    """Return the suffixes of model files."""
    return dict.fromkeys((".onnx", ".ort"), "headrace_ort.reading:tables_of")
