"""A rule of the contract: identifier, reason, what it needs, and the check."""

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
        reason: Why, in one line.
        text: What is checked and how to keep it; the body of its page in the documentation.
        needs: Rules without which it cannot be judged.
        unbuilt: Whether it is judged by the class alone where nothing can be built.
        check: Raises `Broken`, `NotApplicable` or `NotJudged`; may give a note for the certificate.
    """

    id: str
    reason: str
    text: str
    needs: tuple[str, ...]
    check: Check
    unbuilt: bool = False


def rule(identifier: str, *needs: str, unbuilt: bool = False) -> Callable[[Check], Rule]:
    """Make a rule of a function whose docstring is the reason, then the text of its page."""

    def make(check: Check) -> Rule:
        reason, _, text = inspect.cleandoc(check.__doc__ or "").partition("\n\n")
        return Rule(identifier, " ".join(reason.split()), text.strip(), needs, check, unbuilt)

    return make
