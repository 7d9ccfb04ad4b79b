"""The class that the author of a backend writes to have the backend certified."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from headrace.keys import Request

__all__ = ["BackendConformance"]


class BackendConformance:
    """Base of conformance classes: a subclass gives the expression of a backend, and makes its requests.

    pytest collects every subclass that a test module defines or imports, whatever its name, with one
    test per rule beside the test methods of its own. For ``headrace conformance`` a distribution offers it as
    an entry point of the group ``headrace.conformance`` under the name of the backend.

    Attributes:
        expression: The expression of the backend that is certified, children included. Rules about a class
            judge the class of the outermost name. One that is `not_callable` by its `place` is written into the key ``init``. It
            has ``inside`` as well.
        options: Node keys and options beside the expression in the configuration.
        expected_failures: The rules that the backend does not keep, each with the reason, which the
            certificate shows. If a rule listed here is kept, that is itself a failure.
        inside: For a backend that works only as a part of another expression, the conformance class
            of that expression: rules that build or run the backend are judged there.
        rtol, atol: How far numbers with fractions in two results may differ and still count as
            equal: ``abs(a - b) <= atol + rtol * abs(b)``. All other values are compared exactly.
        model_brings: Names of distributions that the model of `options` needs, and others do not: a pickled model
            brings the library of its estimator, say. `imports-lazily` lets `init` load them.
        limit_s: How long one rule may take, in seconds, before it is broken because it did not end. What is
            stuck in the main thread is interrupted as by Ctrl-C. Where that is impossible, since a library waits
            with the interpreter's lock held, the stacks of all threads are printed and the process ends.
            ``math.inf`` for no limit.
    """

    expression: str = ""
    options: Mapping[str, Any] = {}
    expected_failures: Mapping[str, str] = {}
    inside: type[BackendConformance] | None = None
    rtol: float = 1e-5
    atol: float = 1e-6
    limit_s: float = 600.0
    model_brings: tuple[str, ...] = ()

    def unavailable(self) -> str | None:
        """Return what this machine lacks to run the backend (``"no CUDA device"``). None if nothing.

        The rules about the class, its options, docstring, imports and requests are judged all the
        same. The rules that build or run the backend have the outcome ``not_judged`` with this reason
        (pytest skips them), and the backend is not certified.
        """
        return None

    def make_options(self) -> Mapping[str, Any]:
        """Return more of `options`, for those that need a file: write it here. It is called once in a run."""
        return {}

    def expected(self, k: int) -> Any:
        """Return the right ``result`` of request ``k``, by another library or by hand.

        Without it the kit knows only that results agree with each other, and `right-answers` does not apply.
        """
        raise NotImplementedError

    def make_item(self, k: int) -> Request:
        """Return the request number ``k`` (0, 1, 2, ...): a new dict each time, equal for the same ``k``.

        Requests should differ, so that the kit can see when results are mixed up.
        """
        raise NotImplementedError(f"{type(self).__name__} has no make_item(self, k)")
