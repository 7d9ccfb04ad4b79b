"""The certificate: the findings of a run of the kit about one backend, and whether it is certified."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass
from typing import Any

from headrace_testing.conformance.outcome import EXPECTED_FAILURE, Verdict


@dataclass(frozen=True)
class Certificate:
    """The findings of a run of the kit about one backend.

    Attributes:
        backend: Its name, as in the expression.
        distribution, version: The distribution that brings it. For a registered class its module or file,
            and an empty version.
        expression: The expression of the conformance class.
        options: The keys beside it in the configuration, as text or plain data.
        headrace, python: The versions that ran.
        platform: Operating system and machine.
        rules: A verdict per rule, in order.
        problem: Why no rule could be judged, or None.
        unavailable: What this machine lacks to run the backend, or None.
        tolerance: ``(rtol, atol)`` of comparisons of numbers with fractions.
    """

    backend: str
    distribution: str
    version: str
    expression: str
    options: dict[str, Any]
    headrace: str
    python: str
    platform: str
    rules: tuple[Verdict, ...] = ()
    problem: str | None = None
    tolerance: tuple[float, float] = (0.0, 0.0)
    unavailable: str | None = None

    @property
    def certified(self) -> bool:
        """Whether every rule passes, does not apply, lacks requests to judge it, or fails for a reason that the author gives."""
        judged = self.problem is None and self.unavailable is None and bool(self.rules)
        return judged and all(verdict.good for verdict in self.rules)

    @property
    def blocked(self) -> dict[str, int]:
        """By each rule because of which others cannot be judged, the number of these."""
        return dict(Counter(v.blocked_by for v in self.rules if v.blocked_by is not None))

    @property
    def expected_failures(self) -> dict[str, str]:
        """The expected failures, each with the reason that the author gives."""
        return {v.id: v.expected or "" for v in self.rules if v.outcome == EXPECTED_FAILURE}

    def to_dict(self) -> dict[str, Any]:
        """Return the certificate as plain data for JSON."""
        return {
            "unavailable": self.unavailable,
            "backend": self.backend,
            "distribution": self.distribution,
            "version": self.version,
            "certified": self.certified,
            "problem": self.problem,
            "expression": self.expression,
            "options": self.options,
            "tolerance": {"rtol": self.tolerance[0], "atol": self.tolerance[1]},
            "headrace": self.headrace,
            "python": self.python,
            "platform": self.platform,
            "rules": [asdict(verdict) for verdict in self.rules],
            "expected_failures": self.expected_failures,
            "blocked": self.blocked,
        }
