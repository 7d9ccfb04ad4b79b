"""The last step of the pipeline that headrace-serve serves; see `benchmarks.servers.with_headrace_serve`."""

from __future__ import annotations

from typing import Any

import headrace


@headrace.register("NumberOfClass")
def number_of_class(scores: Any) -> int:
    """Return the number of the greatest of ``float32 [classes]``."""
    return int(scores.argmax())
