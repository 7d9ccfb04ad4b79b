"""What `headrace conformance` certifies, and the requests it is tried on."""

from __future__ import annotations

from typing import Any

import numpy as np
from headrace_testing import BackendConformance

__all__ = ["DenoiseConformance"]


class DenoiseConformance(BackendConformance):
    """The rules of Headrace's conformance kit, for `Denoise`."""

    # The rules hold after a few iterations as after all, and are judged on thousands of pictures.
    expression = "Denoise(max_iterations=5)"

    def make_item(self, k: int) -> dict[str, Any]:
        """Return the k-th request; the same k gives an equal one."""
        image = np.random.default_rng(k).integers(0, 256, (8, 6 + k % 3, 3), dtype=np.uint8)
        return {"data": image}
