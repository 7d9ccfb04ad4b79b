"""How pytest collects conformance classes: as a node per class, with a test per rule."""

from __future__ import annotations

import contextlib
import inspect
import sys
from typing import TYPE_CHECKING, Any

import pytest

from headrace_testing.conformance.outcome import BLOCKED, EXPECTED_FAILURE, FAILED, NOT_JUDGED
from headrace_testing.conformance.run import ConformanceRun, check_class, rules

if TYPE_CHECKING:
    from collections.abc import Iterator

    from headrace_testing.conformance.base import BackendConformance
    from headrace_testing.conformance.outcome import Verdict
    from headrace_testing.conformance.rule import Rule


class RuleBroken(Exception):  # noqa: N818 - shown as a failure of a test
    """A rule is broken; pytest shows its text without a traceback."""


class ConformanceCollector(pytest.Collector):
    """One conformance class; its backend is built at its first test and closed after its last."""

    def __init__(self, *, conformance: type[BackendConformance], **rest: Any) -> None:
        super().__init__(**rest)
        self.conformance = conformance
        for mark in _marks(conformance):
            self.add_marker(mark)
        self._run: ConformanceRun | None = None

    @property
    def run(self) -> ConformanceRun:
        """The run that the tests of the class share."""
        if self._run is None:
            self._run = ConformanceRun(
                self.conformance, share=self.config.getoption("conformance_share")
            )
            self._run.exits = self._exits()
        return self._run

    def _exits(self) -> int | None:
        """Return the stderr of before pytest captured it; None where pytest itself prints stacks after a while."""
        with contextlib.suppress(ValueError):  # pytest runs without its plugin about faults
            if float(self.config.getini("faulthandler_timeout") or 0) > 0:
                return None
        plugin = sys.modules.get("_pytest.faulthandler")
        key = getattr(plugin, "fault_handler_stderr_fd_key", None)
        return 2 if key is None else self.config.stash.get(key, 2)

    def collect(self) -> Iterator[pytest.Item]:
        """Return a test per rule."""
        try:
            check_class(self.conformance)
        except (TypeError, ValueError) as error:
            raise self.CollectError(str(error)) from error
        for rule in rules().values():
            yield RuleItem.from_parent(self, name=rule.id, rule=rule)

    def teardown(self) -> None:
        """Close the backend."""
        if self._run is not None:
            self._run.close()
            self._run = None


def _marks(cls: type) -> Iterator[pytest.MarkDecorator]:
    """Give the marks of a class and of its bases, as pytest gives those of test classes."""
    for base in reversed(cls.__mro__):
        marks = vars(base).get("pytestmark", [])
        for mark in marks if isinstance(marks, (list, tuple)) else [marks]:
            # `mark` is a mark, or the decorator that makes it. `with_args` is used, because a decorator that is
            # called with only a class would mark that class.
            decorator: pytest.MarkDecorator = getattr(pytest.mark, mark.name)
            yield decorator.with_args(*mark.args, **mark.kwargs)


class RuleItem(pytest.Item):
    """One rule, judged on one backend."""

    parent: ConformanceCollector

    def __init__(self, *, rule: Rule, **rest: Any) -> None:
        super().__init__(**rest)
        self.rule = rule

    def runtest(self) -> None:
        """Judge the rule."""
        run = self.parent.run
        verdict = run.verdict(self.rule.id)
        if verdict.outcome == EXPECTED_FAILURE:
            pytest.xfail(f"{verdict.expected} ({verdict.detail})")
        if verdict.outcome == NOT_JUDGED:
            pytest.skip(verdict.detail)
        if verdict.outcome == BLOCKED and self._reported(verdict):
            pytest.skip(verdict.detail)
        if not verdict.good:
            raise RuleBroken(self._text(verdict))

    def _reported(self, verdict: Verdict) -> bool:
        """Return whether another test reports the rule that blocks this one."""
        names = {item.name for item in self.session.items if item.parent is self.parent}
        by = verdict.blocked_by
        return by in names and self.parent.run.verdict(by).outcome == FAILED

    def _text(self, verdict: Verdict) -> str:
        outcome = "listed in expected_failures" if verdict.expected else verdict.outcome
        return (
            f"{self.parent.run.subject.kit.expression}: rule {verdict.id!r} {outcome}: "
            f"{verdict.detail}\n  {verdict.reason}"
        )

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:
        """Show a broken rule as a sentence, and any other error as pytest does."""
        if isinstance(excinfo.value, RuleBroken):
            return str(excinfo.value)
        return super().repr_failure(excinfo, style)

    def reportinfo(self) -> tuple[Any, int | None, str]:
        """Return the place of the test: its class, or the top of the module that imports the class."""
        line = 0  # pytest asks for a line where a mark skips
        with contextlib.suppress(OSError, TypeError):
            cls = self.parent.conformance
            if inspect.getsourcefile(cls) == str(self.path):
                line = inspect.getsourcelines(cls)[1] - 1
        return self.path, line, f"{self.parent.name}::{self.name}"
