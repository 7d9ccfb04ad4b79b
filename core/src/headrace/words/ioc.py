"""The words that put others together: IoC, DI (also Aspect), With and BackgroundThread."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar

from headrace._backend import Backend, Shared
from headrace._build.standing import NotCallable
from headrace._plan.element import Element, Named, Range
from headrace._plan.word import Use, Word, check_used, word_of

if TYPE_CHECKING:
    from headrace._build.elements import ElementBuilder
    from headrace._build.parts import At
    from headrace._plan.declared import Ranged

__all__ = ["DI", "Aspect", "BackgroundThread", "IoC", "With"]


class Wiring(Word):
    """A word that stands for the last thing in its bracket, once that is built."""

    _wiring = True
    _needs_of = -1

    @classmethod
    def _build(cls, building: ElementBuilder, element: Element, at: At) -> Backend:
        """Build what stands in it, in order; what it stands for is called in its place."""
        built = [building.element(child, at) for child in element.children]
        return NotCallable(element.name) if cls._why_not_callable else built[-1]


class IoC(Wiring):
    """Build the first phase in order, then the front, in which their names mean those instances.

    ``IoC[A,B;S[A,B,A]]`` holds one A and one B per copy. An element of the first phase sees the
    earlier ones. The names are seen inside this ``IoC`` only.

    Reads:
        What the front reads.
    Writes:
        What the front writes.
    Batch:
        The range of the front.

    Raises:
        What the front raises.
    Source:
        own
    Example:
        ``{"data": "abc"}`` gives ``"CBA"``::

            backend = "IoC[Upper,Reverse;S[Upper,Reverse]]"
    """

    takes = (2, None)
    phases = 2

    @classmethod
    def combine_ranges(cls, children: list[Ranged]) -> Range:
        """Give the range of the front."""
        return children[-1].range

    @classmethod
    def _plan(cls, use: Use) -> Element | None:
        """Plan the first phase, each with the names before it in scope, then the front."""
        first, fronts = use.phases
        if len(fronts) > 1:
            message, hint = "IoC has one front after ';'", "S[...] puts several together."
            use.add("arity", message, fronts[1], hint=hint)
        frame: dict[str, Named] = {}
        frames = (*use.scope.frames, frame)
        named: list[Element] = []
        for child in first:
            if child.name in frame:
                use.add("twice", f"{child.name!r} stands twice before ';'", child)
            one = use.plan(child, frames=frames, named=True)
            if one is not None:
                named.append(one)
            if one is None or one.named or not word_of(one.cls)._registers_names:
                frame[child.name] = Named(child.name, one)
        front, *_ = [use.plan(child, frames=frames) for child in fronts]
        if front is None or len(named) < len(first):
            return None
        check_used(use.planning, frame.values())
        use.element.phases = [named, [front]]
        return use.element if use.may_call(front) else None

    @classmethod
    def _build(cls, building: ElementBuilder, element: Element, at: At) -> Backend:
        """Build the first phase, then the front: what is called is the front itself."""
        scope = Shared(at.scope)
        parts = at.parts.nested(scope, at.thread)
        inner = replace(at, local=dict(at.local), scope=scope, parts=parts)
        of_instance = at.index is not None
        for child in element.phases[0]:
            built = (building.element if of_instance else building.shared_out)(child, inner)
            # Outside of any instance several of them may reach it; a front's elements are guarded.
            bare = child.named is None and child.is_bare
            if not of_instance and building.node is not None and not bare:
                built = building.guarded(built)
            inner.local[id(child)] = built
        return building.element(element.phases[1][0], inner)


class DI(Word):
    """Let each element depend on the next: ``DI[a,b,c]`` is ``a[b[c]]``.

    Each may be the name of an instance. All but the last take what follows as their only child.

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
        """Plan ``a[b[c]]``, which is what it stands for."""
        *outer, nested = use.children
        for child in reversed(outer):
            if child.phases:
                message = (
                    f"{child.name} is to depend on {nested.name}, and has a bracket of its own"
                )
                use.add("arity", message, child)
                use.planning.plan_all(use.children, use.scope)
                return None
            nested = child.replace(phases=((nested,),))
        return use.plan(nested, named=use.scope.named, parent=use.scope.parent)


Aspect = DI


class With(DI):
    """Put W around X: ``With[W,X]`` is ``W[X]``.

    Reads:
        What W and X read.
    Writes:
        What W and X write.
    Batch:
        The range of W.

    Raises:
        What W and X raise.
    Source:
        own
    Example:
        ``{"data": "abc"}`` gives ``"'cba'"``::

            backend = "With[Quote,Reverse]"
    """

    takes = 2


class BackgroundThread(Word):
    """Let one thread own X: ``init``, every ``forward`` and ``close`` of X happen in it.

    Around a whole instance it costs one hand-over per batch; inside an expression the calling
    thread waits for it.

    Reads:
        What X reads.
    Writes:
        What X writes.
    Batch:
        The range of X.

    Raises:
        What X raises.
    Source:
        own
    Example:
        ``{"data": "abc"}`` gives ``"CBA"``::

            backend = "S[Upper,BackgroundThread[Reverse]]"
    """

    takes = 1
    _threaded = True
    _needs_of = 0

    @classmethod
    def _build(cls, building: ElementBuilder, element: Element, at: At) -> Backend:
        """Build X in the thread that will run and close it."""
        return building.in_thread(element, element.children[0], at)
