"""What `headrace conformance` certifies, and the requests it is tried on."""

from __future__ import annotations

import json
from typing import Any

from headrace_testing import BackendConformance

__all__ = ["FileTypeConformance"]


class FileTypeConformance(BackendConformance):
    """The rules of Headrace's conformance kit, for `FileType`."""

    expression = "FileType(allowed=[json,python,txt])"

    def make_item(self, k: int) -> dict[str, Any]:
        """Return the k-th request; the same k gives an equal one.

        One in four is told apart by Magika's model, in some 10 ms, and the others are too short for
        it: the rules are judged on a thousand files.
        """
        if k % 4:
            return {"data": f"{k}\n".encode()}
        if k % 8:
            rows = [{"name": f"row {i}", "value": i * k} for i in range(20)]
            return {"data": json.dumps(rows, indent=2).encode()}
        lines = [f"def function_{i}(x):\n    return x * {i + k}\n" for i in range(20)]
        return {"data": ("import sys\n\n" + "\n\n".join(lines)).encode()}
