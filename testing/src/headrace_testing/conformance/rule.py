"""A rule of the contract: its identifier, reason, needed rules, and check."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import TypeAlias

    from headrace_testing.conformance.subject import Subject

    Check: TypeAlias = "Callable[[Subject], str | None]"


@dataclass(frozen=True)
class Rule:
    """One rule.

    Attributes:
        id: A stable identifier.
        reason: The reason for the rule, in one line.
        text: What is checked and how to keep the rule: the body of its page in the documentation.
        needs: The rules without which it cannot be judged.
        unbuilt: Whether it can be judged by the class alone, where nothing can be built.
        check: Raises `Broken`, `NotApplicable` or `NotJudged`. May give a note for the certificate.
    """

    id: str
    reason: str
    text: str
    needs: tuple[str, ...]
    check: Check
    unbuilt: bool = False


def rule(identifier: str, *needs: str, unbuilt: bool = False) -> Callable[[Check], Rule]:
    """Make a rule of a function whose docstring has the reason, and then the text of the rule's page."""

    def make(check: Check) -> Rule:
        reason, _, text = inspect.cleandoc(check.__doc__ or "").partition("\n\n")
        return Rule(identifier, " ".join(reason.split()), text.strip(), needs, check, unbuilt)

    return make
