"""The configuration that a bare engine stands for."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["tables_of"]


def tables_of(path: Path) -> dict[str, Any]:
    """Return the pipeline that runs an engine on tensors; see `headrace.hookspecs`.

    Only the library can tell the sizes of batches from an engine. Where it has the sidecar that Headrace writes beside what
    it builds, they are those of the first profile.
    """
    tables: dict[str, Any] = {"backend": "TensorrtTensor", "model": path.name.replace("${", "$${")}
    try:
        sidecar = path.with_name(f"{path.name}.json").read_text(encoding="utf-8")
        profile = json.loads(sidecar)["profiles"][0]
        sizes = {key: {shapes[key][0] for shapes in profile.values()} for key in ("min", "max")}
        sizes_of = {key: int(*values) for key, values in sizes.items()}
    except (OSError, ValueError, TypeError, LookupError, AttributeError):
        return tables  # none of ours, or inputs that have no common first axis
    return {**tables, **{key: size for key, size in sizes_of.items() if size > 1}}
