"""The configuration that a bare model file stands for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from headrace_ort.model_file import rows_are_free

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["MAX", "tables_of"]

MAX: Final = 8
"""The most requests of a batch of a model that takes any number of rows."""


def tables_of(path: Path) -> dict[str, Any]:
    """Return the pipeline that runs a model file on tensors; see `headrace.hookspecs`.

    A model gets batches if the first axis of all its inputs is free. An ``.ort`` file does not tell, and gets none.
    """
    tables = {"backend": "OnnxTensor", "model": path.name.replace("${", "$${")}
    return {**tables, "max": MAX} if rows_are_free(path) else tables
