"""IoC, DI and With: instances that stand in an expression more than once, and what they depend on."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar

from headrace._contract.shared import Shared
from headrace._plan.declared import range_of
from headrace._plan.element import Element, Named
from headrace._plan.word import Use, Word
from headrace.words import Bracket
from headrace.words.naming import Wiring

if TYPE_CHECKING:
    from headrace._build.elements import ElementBuilder
    from headrace._build.parts import BuildSite
    from headrace._contract.backend import Backend

__all__ = ["DI", "Aspect", "IoC", "With"]


class IoC(Wiring):
    """Build the first phase in order, then the expression after ``;``, in which its names mean the instances just built.

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
    bracket = Bracket(phases=2, combine_ranges=range_of(-1))

    @classmethod
    def _plan(cls, use: Use) -> Element | None:
        """Plan the first phase, each with the names before it in scope, then the expression after ``;``."""
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
            one = use.plan(child, frames=frames, gets_name=True)
            named.append(one)
            frame[child.name] = Named(child.name, one)
        body, *_ = [use.plan(child, frames=frames) for child in last]
        planned = use.holding(named, [body])
        if body is None or planned is None:
            return None
        return planned if use.may_call(body) else None

    @classmethod
    def _build(cls, building: ElementBuilder, element: Element, at: BuildSite) -> Backend:
        """Build the first phase, then the expression after it, which is called in place of the word."""
        scope = Shared(at.scope)
        parts = at.parts.add_inner(scope, at.thread)
        inner = replace(at, local=dict(at.local), scope=scope, parts=parts)
        for child in element.phases[0]:
            inner.local[child] = building.element(child, inner)
        return building.element(element.phases[1][0], inner)


class DI(Word):
    """Let each element depend on the next: ``DI[a,b,c]`` is ``a[b[c]]``.

    Each element may be the name of an instance. Each but the last has the next one as its only child.

    Reads:
        What the first reads.
    Writes:
        What the first writes.
    Batch:
        The range of the first.

    Raises:
        What the first raises.
    Source:
        own
    Example:
        ``{"data": "abc"}`` gives ``"'ABC'"``::

            backend = "DI[Quote,Upper]"
    """

    takes: ClassVar[int | tuple[int, int | None]] = (2, None)

    @classmethod
    def _plan(cls, use: Use) -> Element | None:
        """Plan ``a[b[c]]``."""
        *outer, nested = use.children
        for child in reversed(outer):
            if child.phases:
                name, on = child.name, nested.name
                message = f"{name} is to depend on {on}, and has a bracket of its own"
                use.add("arity", message, child)
                use.planning.plan_all(use.children, use.scope)
                return None
            nested = child.replace(phases=((nested,),))
        return use.plan(nested, gets_name=use.scope.gets_name, parent=use.scope.parent)


Aspect = DI


class With(DI):
    """Put W around X: ``With[W,X]`` is ``W[X]``.

    Reads:
        The inputs of W and X.
    Writes:
        The outputs of W and X.
    Batch:
        The range of W.

    Raises:
        The errors of W and X.
    Source:
        own
    Example:
        ``{"data": "abc"}`` gives ``"'cba'"``::

            backend = "With[Quote,Reverse]"
    """

    takes = 2
