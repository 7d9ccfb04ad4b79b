"""The outcomes of a rule: the exceptions of its check, and the verdict in the certificate."""

from __future__ import annotations

import sys
from dataclasses import dataclass


class Broken(AssertionError):  # noqa: N818 - names what has happened to the rule
    """A rule is broken; the text describes the observation."""


class NotApplicable(Exception):  # noqa: N818 - no error: the contract promises nothing here
    """The contract says that the rule does not hold for this kind of backend."""


class NotJudged(Exception):  # noqa: N818 - no error: something is lacking
    """The rule cannot be judged on this machine, or with these requests; the text says why."""


def ends_the_run(error: BaseException) -> bool:
    """Return whether an exception is meant for whoever runs the rules: Ctrl-C, or what pytest ends a test with."""
    pytest = getattr(sys.modules.get("_pytest.outcomes"), "OutcomeException", KeyboardInterrupt)
    return isinstance(error, (KeyboardInterrupt, pytest))


PASSED = "passed"
FAILED = "failed"
NOT_APPLICABLE = "not_applicable"
BLOCKED = "blocked"
NOT_JUDGED = "not_judged"
EXPECTED_FAILURE = "expected_failure"
UNEXPECTED_PASS = "unexpected_pass"  # noqa: S105 - a word, no password

_GOOD = (PASSED, NOT_APPLICABLE, NOT_JUDGED, EXPECTED_FAILURE)


@dataclass(frozen=True)
class Verdict:
    """The outcome of one rule.

    Attributes:
        id: The identifier of the rule.
        outcome: ``passed``. ``failed``. ``not_applicable`` where the contract promises nothing.
            ``blocked`` where another rule must hold first. ``not_judged`` where this machine lacks
            something that the backend needs, or the kit enough requests. ``expected_failure``. ``unexpected_pass`` of a rule that is
            listed as an expected failure.
        reason: The reason for the rule.
        detail: The observation. Empty if there is none.
        expected: The reason that the author gives for an expected failure, or None.
        blocked_by: The rule because of which a ``blocked`` one cannot be judged: it is broken itself, or did
            not end. None for every other outcome.
    """

    id: str
    outcome: str
    reason: str
    detail: str = ""
    expected: str | None = None
    blocked_by: str | None = None

    @property
    def good(self) -> bool:
        """Whether a backend with this verdict can be certified."""
        return self.outcome in _GOOD
