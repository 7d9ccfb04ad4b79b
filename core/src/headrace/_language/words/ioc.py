"""IoC: instances that stand in an expression more than once."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from headrace._language.contract.groups import Bracket
from headrace._language.plan.declared import range_of
from headrace._language.plan.element import Element, Named
from headrace._language.words.naming import Wiring
from headrace._run.contract.shared import Shared

if TYPE_CHECKING:
    from headrace._language.building.elements import ElementBuilder
    from headrace._language.building.parts import BuildSite
    from headrace._language.contract.backend import Backend
    from headrace._language.plan.word import Use

__all__ = ["IoC"]


class IoC(Wiring):
    """Build the first phase in order, then the expression after ``;``, which uses what it built.

    In that expression a name of the first phase means the instance just built:
    ``IoC[A,B;S[A,B,A]]`` holds one A and one B per copy. In the first phase an element may name the
    earlier ones. The names have this meaning inside this ``IoC`` only.

    Reads:
        The inputs of the expression after ``;``.
    Writes:
        Its outputs.
    Batch:
        Its range.

    Raises:
        Its errors.
    Source:
        own
    Example:
        ``{"data": "abc"}`` gives ``"CBA"``::

            backend = "IoC[Upper,Reverse;S[Upper,Reverse]]"
    """

    takes = (2, None)
    bracket = Bracket(phases=2, combine_ranges=range_of(-1), keys_of_child=-1)

    @classmethod
    def _plan(cls, use: Use) -> Element | None:
        """Plan the first phase, with all earlier names in scope, then the expression after it."""
        first, last = use.phases
        if len(last) > 1:
            message, hint = "IoC has one expression after ';'", "S[...] puts several together."
            use.add("arity", message, last[1], hint=hint)
        frame: dict[str, Named] = {}
        frames = (*use.scope.frames, frame)
        named: list[Element | None] = []
        for child in first:
            if child.name in frame:
                use.add("twice", f"{child.name!r} stands twice before ';'", child)
            instance = use.plan(child, frames=frames)
            named.append(instance)
            frame[child.name] = Named(child.name, instance)
        body, *_ = [use.plan(child, frames=frames) for child in last]
        planned = use.holding(named, [body])
        return planned if planned is not None and use.may_call(planned.children[-1]) else None

    @classmethod
    def _build(cls, building: ElementBuilder, element: Element, at: BuildSite) -> Backend:
        """Build the first phase, then the expression after it, which stands for the word."""
        scope = Shared(at.scope)
        parts = at.parts.add_inner(scope, at.thread)
        inner = replace(at, local=dict(at.local), scope=scope, parts=parts)
        for child in element.phases[0]:
            inner.local[child] = building.element(child, inner)
        return building.element(element.phases[1][0], inner)
