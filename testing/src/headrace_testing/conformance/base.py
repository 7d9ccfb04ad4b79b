"""What the author of a backend writes to have it certified."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from headrace.keys import Request

__all__ = ["BackendConformance"]


class BackendConformance:
    """Subclass it with an expression and a factory of requests to have a backend certified.

    pytest collects every subclass that a test module defines or imports, whatever its name, one
    test per rule. For ``headrace conformance`` it is offered as an entry point of the group
    ``headrace.conformance`` under the name of the backend.

    Attributes:
        expression: What is certified: the expression of a backend, children included; rules about
            a class judge that of the outermost name.
        options: Node keys and options that go beside it in the configuration.
        expected_failures: Per rule that the backend does not keep, the reason, which the
            certificate shows. A rule listed here that is kept is itself a failure.
        inside: For a backend that works only as a part of another expression, the conformance class
            of that expression: rules that build or run it are judged there.
        rtol, atol: How far numbers with fractions in two results may differ and still count as
            equal: ``abs(a - b) <= atol + rtol * abs(b)``. Everything else is compared exactly.
    """

    expression: str = ""
    options: Mapping[str, Any] = {}
    expected_failures: Mapping[str, str] = {}
    inside: type[BackendConformance] | None = None
    rtol: float = 1e-5
    atol: float = 1e-6

    def unavailable(self) -> str | None:
        """Say what this machine lacks to run the backend (``"no CUDA device"``), None for nothing.

        The rules about the class, its options, docstring, imports and requests are judged all the
        same; those that build or run it have the outcome ``not_judged`` with this reason (pytest
        skips them), and the backend is not certified.
        """
        return None

    def make_item(self, k: int) -> Request:
        """Give the request number ``k``, a new dict: 0, 1, 2, ...; the same ``k`` an equal one.

        Requests should differ, so that results that are mixed up are seen.
        """
        raise NotImplementedError(f"{type(self).__name__} has no make_item(self, k)")
