"""The script that the conformance kit runs: it counts down by calls of its own node."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from headrace_flow import call

if TYPE_CHECKING:
    from collections.abc import Generator

    from headrace.keys import Request


def count(request: Request) -> Generator[Any, Any, list[Any]]:
    """Return the numbers from ``data`` down to 0; what is no number above 0 alone."""
    data: Any = request["data"]
    if not isinstance(data, int) or data <= 0:
        return [data]
    (below,) = yield [call("main", data - 1)]
    return [data, *below]
