"""Running the rules over one backend: each rule once, after the rules that it needs."""

from __future__ import annotations

import contextlib
import json
import math
import platform
import warnings
from collections.abc import Mapping
from dataclasses import replace
from numbers import Real
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

import headrace
from headrace.errors import among
from headrace_testing.conformance.backend_rules import (
    batch,
    children,
    classes,
    docs,
    errors,
    interrupts,
    keys,
    leftovers,
    life,
    options,
    process,
    results,
    threads,
)
from headrace_testing.conformance.base import BackendConformance
from headrace_testing.conformance.certificate import Certificate
from headrace_testing.conformance.limit import Limit
from headrace_testing.conformance.outcome import (
    BLOCKED,
    EXPECTED_FAILURE,
    FAILED,
    NOT_APPLICABLE,
    NOT_JUDGED,
    PASSED,
    UNEXPECTED_PASS,
    Broken,
    NotApplicable,
    NotJudged,
    Verdict,
    ends_the_run,
)
from headrace_testing.conformance.settings import SHARED, restore
from headrace_testing.conformance.subject import Subject

if TYPE_CHECKING:
    from collections.abc import Callable

    from typing_extensions import Self

    from headrace_testing.conformance.rule import Rule

_MODULES = (
    classes,
    docs,
    batch,
    results,
    keys,
    errors,
    interrupts,
    children,
    life,
    threads,
    leftovers,
    options,
    process,
)


_CLOSING_S = 10.0
"""How long a backend may take to close at the end, after a rule about it did not end."""


def rules() -> Mapping[str, Rule]:
    """Return all rules by identifier, in the order in which they are judged."""
    by_id = {rule.id: rule for module in _MODULES for rule in module.RULES}
    ordered: dict[str, Rule] = {}

    def put(identifier: str) -> None:
        if identifier not in ordered:
            for needed in by_id[identifier].needs:
                put(needed)
            ordered[identifier] = by_id[identifier]

    for identifier in by_id:
        put(identifier)
    return ordered


def _that_build(rules: Mapping[str, Rule]) -> set[str]:
    """Return the rules that build the backend: `builds`, and all rules that need it."""
    building = {"builds"}
    for identifier, rule in rules.items():  # a rule comes after the rules that it needs
        if building & set(rule.needs):
            building.add(identifier)
    return building


def check_class(cls: type[BackendConformance]) -> None:
    """Check for mistakes in a conformance class that no rule detects.

    Raises:
        TypeError: It is no conformance class, or an attribute has another type than it must have.
        ValueError: ``expected_failures`` names something that is no rule, or gives no reason. A tolerance is
            negative or not finite. ``options`` would put another expression in the place of ``expression``.
    """
    if not (isinstance(cls, type) and issubclass(cls, BackendConformance)):
        raise TypeError(
            "a conformance class is a subclass of headrace_testing.BackendConformance that says "
            f"`expression` and `make_item`; got {cls!r}"
        )
    for name, kind in (
        ("options", Mapping),
        ("expected_failures", Mapping),
        ("rtol", Real),
        ("atol", Real),
        ("limit_s", Real),
        ("model_brings", tuple),
    ):
        value = getattr(cls, name)
        if not isinstance(value, kind):
            meant = {Mapping: "a dict", Real: "a number", tuple: "a tuple of names"}[kind]
            raise TypeError(f"{name} of {cls.__name__} is {meant}, got {value!r}")
    _check_numbers(cls)
    if "backend" in cls.options:
        raise ValueError(
            f"options of {cls.__name__} has the key 'backend': what is certified is `expression`"
        )
    known = rules()
    for identifier, reason in cls.expected_failures.items():
        if identifier not in known:
            problem = (
                f"expected_failures of {cls.__name__} names {identifier!r}, which is no rule. "
            )
            raise ValueError(problem + among(str(identifier), known))
        if not isinstance(reason, str) or not reason.strip():
            raise ValueError(
                f"expected_failures of {cls.__name__} gives no reason for {identifier!r}: "
                "write why the backend cannot keep it"
            )


def _check_numbers(cls: type[BackendConformance]) -> None:
    for name, limit in (("rtol", cls.rtol), ("atol", cls.atol)):
        if not 0 <= limit < math.inf:
            raise ValueError(f"{name} of {cls.__name__} is finite and at least 0, got {limit!r}")
    if not cls.limit_s > 0:
        raise ValueError(f"limit_s of {cls.__name__} is more than 0, got {cls.limit_s!r}")


class ConformanceRun:
    """A run of the rules over one conformance class. Used as a context manager.

    Attributes:
        exits: The file descriptor to which the stacks of all threads are written before the process ends because a
            rule never does and nothing can be interrupted. None to wait on.
        late: The rule that did not end, after which no other one is judged. None while there is none.
        tell: Called with ``"rule"`` and the identifier before a rule is checked, with ``"verdict"`` and each verdict.
    """

    def __init__(
        self,
        cls: type[BackendConformance],
        *,
        promised: type[headrace.Backend] | None = None,
        share: float = 1.0,
    ) -> None:
        check_class(cls)
        self.rules: Mapping[str, Rule] = rules()
        self.subject: Subject = Subject(cls(), promised, share)
        self.expected: dict[str, str] = dict(cls.expected_failures)
        self._inside = None if cls.inside is None else ConformanceRun(cls.inside, share=share)
        self.exits: int | None = 2
        self.tell: Callable[[str, Any], object] = lambda kind, value: None
        self.late: str | None = None
        self._verdicts: dict[str, Verdict] = {}
        self._builds = _that_build(self.rules)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Close all that was built, as far as it ends."""
        with contextlib.suppress(Broken), self._limit(_CLOSING_S if self.late else math.inf)():
            self.subject.close()
        restore(self.subject.settings_before, SHARED)
        if self._inside is not None:
            self._inside.close()

    def verdict(self, identifier: str) -> Verdict:
        """Judge one rule, after the rules that it needs; each rule is judged only once."""
        if identifier not in self._verdicts:
            verdict = self._judge(self.rules[identifier])
            if self._inside is not None and verdict.outcome == NOT_JUDGED:
                verdict = self._inside.verdict(identifier)
                where = f"judged in {self._inside.subject.kit.expression}"
                verdict = replace(verdict, detail=": ".join(filter(None, (where, verdict.detail))))
            self._verdicts[identifier] = verdict
            self.tell("verdict", verdict)
        return self._verdicts[identifier]

    def _judge(self, rule: Rule) -> Verdict:
        lacking = self.subject.unavailable
        if lacking is not None and rule.id in self._builds and not rule.unbuilt:
            return Verdict(rule.id, NOT_JUDGED, rule.reason, lacking, self.expected.get(rule.id))
        needed = [self.verdict(needed_id) for needed_id in rule.needs]
        bad = [verdict for verdict in needed if verdict.outcome in (FAILED, BLOCKED)]
        blocked_by = None
        if self.late is not None:
            outcome, blocked_by = BLOCKED, self.late
            detail = f"it cannot be judged after {self.late!r}, which did not end"
        elif bad:
            outcome, blocked_by = BLOCKED, bad[0].blocked_by or bad[0].id
            detail = f"it cannot be judged before {blocked_by!r} holds"
        else:
            outcome, detail = self._check(rule)
        reason = self.expected.get(rule.id)
        excepted = self._excepted_before(rule) if outcome == FAILED and reason is None else None
        if excepted is not None:
            outcome, blocked_by = BLOCKED, excepted
            detail = (
                f"it cannot be told from the fault of {excepted!r}, which is excepted: {detail}"
            )
        if reason is not None:
            if outcome == FAILED:
                outcome = EXPECTED_FAILURE
            elif outcome not in (BLOCKED, NOT_JUDGED):
                outcome = UNEXPECTED_PASS
                detail = "it is listed in expected_failures, and holds: take it out there"
        return Verdict(rule.id, outcome, rule.reason, detail, reason, blocked_by)

    def _excepted_before(self, rule: Rule) -> str | None:
        """Return a rule that is needed, directly or by others, and whose failure is excepted."""
        for needed in rule.needs:
            if self.verdict(needed).outcome == EXPECTED_FAILURE:
                return needed
            excepted = self._excepted_before(self.rules[needed])
            if excepted is not None:
                return excepted
        return None

    def _limit(self, most_s: float = math.inf) -> Limit:
        module = self.subject.kit.__class__.__module__
        with contextlib.suppress(Exception):  # the rule `resolves` reports what is wrong
            module = self.subject.cls.__module__
        return Limit(min(self.subject.kit.limit_s, most_s), module, self.exits)

    def _check(self, rule: Rule) -> tuple[str, str]:
        """Check a rule; give its outcome and the detail."""
        limit = self._limit()
        self.tell("rule", rule.id)
        try:
            with limit(), warnings.catch_warnings():
                warnings.simplefilter("ignore")  # the rule `warnings-left` listens to them
                return PASSED, rule.check(self.subject) or ""
        except Broken as error:
            self.late = rule.id if limit.over else None
            return FAILED, str(error)
        except NotApplicable as error:
            return NOT_APPLICABLE, str(error)
        except NotJudged as error:
            return NOT_JUDGED, str(error)
        except BaseException as error:
            if ends_the_run(error):
                raise
            # Any other error of a backend breaks the rule, SystemExit and asyncio's CancelledError too.
            return FAILED, f"{type(error).__name__}: {error}"

    def certificate(self) -> Certificate:
        """Judge all rules."""
        certificate = describe(
            self.subject, tuple(self.verdict(identifier) for identifier in self.rules)
        )
        if self._inside is not None:
            certificate = replace(certificate, unavailable=self._inside.subject.unavailable)
        return certificate


def describe(subject: Subject, verdicts: tuple[Verdict, ...]) -> Certificate:
    """Make the certificate of a backend, even when its expression cannot be resolved."""
    kit = subject.kit
    name, distribution, version = kit.expression, "", ""
    with contextlib.suppress(Exception):  # the rule `resolves` reports the problem
        element = subject.element
        name, distribution, version = element.backend, element.distribution, element.version
    values = dict(kit.options)
    with contextlib.suppress(Exception):  # of make_options, which that rule reports as well
        values = subject.options
    options: dict[str, Any] = json.loads(json.dumps(values, default=_as_text))
    return Certificate(
        backend=name,
        distribution=distribution,
        version=version,
        expression=kit.expression,
        options=options,
        headrace=headrace.__version__,
        python=platform.python_version(),
        platform=f"{platform.system()} {platform.machine()}",
        rules=verdicts,
        tolerance=(kit.rtol, kit.atol),
        unavailable=subject.unavailable,
    )


def _as_text(value: object) -> Any:
    return str(value) if isinstance(value, PurePath) else repr(value)


def certify(
    cls: type[BackendConformance], *, promised: type[headrace.Backend] | None = None
) -> Certificate:
    """Judge a backend by all rules.

    Args:
        cls: The conformance class.
        promised: The class that an entry point offers under the backend's name, and that the expression
            must name. None where there is no such entry point.

    Raises:
        TypeError: It is no conformance class, or an attribute has another type than it must have.
        ValueError: ``expected_failures`` names something that is no rule, or gives no reason.
    """
    with ConformanceRun(cls, promised=promised) as run:
        return run.certificate()
