"""For ``headrace conformance headrace-process``: an expression and requests."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from headrace_testing import BackendConformance

if TYPE_CHECKING:
    from headrace.keys import Request

__all__ = ["ProcessConformance"]


class ProcessConformance(BackendConformance):
    """`Process`, whose child lives in a process of its own."""

    expression = "Process[Identity]"

    def make_item(self, k: int) -> Request:
        """Return a request whose numbers no other request has."""
        return {"data": [k, k + 1], "mask": k + 2}

    def expected(self, k: int) -> Any:
        """Return what came."""
        return self.make_item(k)["data"]
