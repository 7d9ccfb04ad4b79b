"""What `headrace conformance` certifies, and the requests it is tried on."""

from __future__ import annotations

from typing import Any

import headrace_testing

__all__ = ["RetryConformance"]


class RetryConformance(headrace_testing.BackendConformance):
    """The rules of Headrace's conformance kit, for `Retry`."""

    expression = "Retry(2)[Identity]"

    def make_item(self, k: int) -> dict[str, Any]:
        """Return the k-th request; the same k gives an equal one."""
        return {"data": [k, k + 1]}
