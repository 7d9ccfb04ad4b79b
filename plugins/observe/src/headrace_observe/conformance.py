"""What ``headrace conformance headrace-observe`` judges: an expression and requests per backend."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace_testing import BackendConformance

if TYPE_CHECKING:
    from collections.abc import Mapping

    from headrace.keys import Request

__all__ = ["BenchmarkConformance"]


class BenchmarkConformance(BackendConformance):
    """Measurements of the word `Identity`.

    Times are never the same twice, so tolerances are wide: only keys, counts and texts of the figures are compared.
    """

    expression = "Benchmark(clients=2,total=4,warm_up=1)[Identity]"
    rtol = 1e9
    atol = 1e9
    expected_failures: Mapping[str, str] = {
        "bad-item-alone": "the figures are of all samples, so those beside a bad one count it as failed"
    }

    def make_item(self, k: int) -> Request:
        """Return a number."""
        return {"data": k}
