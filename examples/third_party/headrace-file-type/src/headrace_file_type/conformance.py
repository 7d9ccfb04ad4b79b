"""What `headrace conformance` certifies, and the requests it is tried on."""

from __future__ import annotations

import json
from typing import Any

from headrace_testing import BackendConformance

__all__ = ["FileTypeConformance"]


class FileTypeConformance(BackendConformance):
    """The rules of Headrace's conformance kit, for `FileType`."""

    expression = "FileType(allowed=[json,python])"

    def make_item(self, k: int) -> dict[str, Any]:
        """Give the k-th request; the same k gives an equal one."""
        if k % 2:
            rows = [{"name": f"row {i}", "value": i * k} for i in range(20)]
            return {"data": json.dumps(rows, indent=2).encode()}
        lines = [f"def function_{i}(x):\n    return x * {i + k}\n" for i in range(20)]
        return {"data": ("import sys\n\n" + "\n\n".join(lines)).encode()}
