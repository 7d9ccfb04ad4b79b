"""The configuration that a bare model file stands for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["tables_of"]


def tables_of(path: Path) -> dict[str, Any]:
    """Return the pipeline that runs a model file on tensors; see `headrace.hookspecs`.

    Each request runs alone: how many rows a model takes is known once torch has loaded it.
    """
    return {"backend": "TorchModule", "model": path.name.replace("${", "$${")}
