"""What `headrace conformance` certifies, and the requests it is tried on."""

from __future__ import annotations

from typing import Any

import numpy as np
from headrace_testing import BackendConformance

__all__ = ["{{ cookiecutter.backend }}Conformance"]


class {{ cookiecutter.backend }}Conformance(BackendConformance):
    """The rules of Headrace's conformance kit, for `{{ cookiecutter.backend }}`."""

    expression = "{{ cookiecutter.backend }}"

    def make_item(self, k: int) -> dict[str, Any]:
        """Give the k-th request; the same k gives an equal one."""
        image = np.random.default_rng(k).integers(0, 256, (8, 6 + k % 3, 3), np.uint8)
        return {"data": image}
