"""The rule about containers: how they call the backends in their brackets."""

from __future__ import annotations

import contextlib
import sys
from typing import TYPE_CHECKING, Any

from headrace_testing.conformance.outcome import Broken
from headrace_testing.conformance.rule import Rule, rule
from headrace_testing.conformance.subject import replaced

if TYPE_CHECKING:
    from collections.abc import Callable

    from headrace import Backend
    from headrace.keys import Request
    from headrace_testing.conformance.subject import Subject


class _Calls:
    """Records how backends are called while a container runs, and the first fault.

    Attributes:
        wrong: The first fault. None if there was none.
    """

    def __init__(self) -> None:
        self.wrong: str | None = None
        self._failed: list[Request] = []
        self._called: list[Backend] = []

    def begin(self) -> None:
        """Begin with a batch of new requests."""
        self._failed.clear()
        self._called.clear()

    def call_of(self, cls: type[Backend]) -> Callable[..., Any]:
        """Return a ``__call__`` that records which requests a backend of this class fails."""
        call = cls.__call__

        def noting(child: Backend, batch: list[Request]) -> Any:
            if any(request is failed for request in batch for failed in self._failed):
                self.wrong = (
                    self.wrong or f"it gives {cls.__name__} a request that has failed already"
                )
            self._called.append(child)
            try:
                outcomes = call(child, batch)
            finally:
                self._called.remove(child)
            if outcomes is not None:
                pairs = zip(batch, outcomes, strict=False)
                self._failed += [request for request, outcome in pairs if outcome is not None]
            return outcomes

        return noting

    def forward_of(self, cls: type[Backend]) -> Callable[..., Any]:
        """Return a ``forward`` that records whether it is called without the checks of ``__call__``."""
        forward = cls.forward

        def noting(child: Backend, batch: list[Request]) -> Any:
            caller = sys._getframe(1).f_globals.get("__name__", "")
            if caller.partition(".")[0] != "headrace" and all(
                called is not child for called in self._called
            ):
                name = cls.__name__
                self.wrong = self.wrong or f"it calls forward of {name} itself: write child(batch)"
            return forward(child, batch)

        return noting


@rule("children-called", "bad-item-alone")
def children_called(subject: Subject) -> str | None:
    """A container leaves the checks of the contract to its children, and passes on only what is alive.

    It calls a child as `child(batch)`, which looks at the state, the range and the outcomes of the child.
    Never its `forward`. A request for which a child gave an error is given to no child again. This is seen
    with a batch of valid requests, and with one in which a request lacks its keys.
    """
    classes = {element.cls for element in subject.children}
    if not classes:
        return "it has no children"
    calls = _Calls()
    with contextlib.ExitStack() as stack:
        for cls in classes:
            stack.enter_context(replaced(cls, "__call__", calls.call_of(cls)))
            stack.enter_context(replaced(cls, "forward", calls.forward_of(cls)))
        live = subject.build()
        for first in (subject.item(0), {}):
            calls.begin()
            live.call([first, *live.take(subject.item)[1:]])
        subject.done(live)
    if calls.wrong is not None:
        raise Broken(calls.wrong)
    return None


RULES: tuple[Rule, ...] = (children_called,)
