"""Making what is called by name: uses of an instance, also with what it depends on, and words that nobody can call."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from headrace._build.callees import NodeCall
from headrace._build.wrappers import Around, BatchEnd, Guarded, WithBatchEnd, Wrapper
from headrace._plan.declared import Ranged, inside, states_range
from headrace._plan.word import Word
from headrace.errors import SetupError

if TYPE_CHECKING:
    from headrace._build.elements import ElementBuilder
    from headrace._build.parts import BuildSite
    from headrace._build.wrappers import Forward
    from headrace._contract.backend import Backend
    from headrace._contract.checked import Outcomes
    from headrace._plan.element import Element
    from headrace.keys import Request


class NotCallable(Word):
    """Stands where a word that only builds others was written."""

    _not_callable_hint = "It only builds others."

    def __init__(self, name: str) -> None:
        self._name = name
        self._state = "ready"


class Bound(Wrapper):
    """An instance together with its dependency, which is given to it at each call.

    Attributes:
        leaves: Whether the batch goes to another thread, or to an instance that other expressions call.
    """

    def __init__(self, instance: Backend, dependency: Backend) -> None:
        around: list[Around] = []
        while isinstance(instance, Around):
            around.append(instance)
            instance = instance.child
        super().__init__(instance)
        self._given = dependency
        self._forward: Forward = instance.forward_with_dep  # type: ignore[attr-defined]
        for outer in reversed(around):
            self._forward = partial(outer.run, self._forward)
        self.leaves = any(not isinstance(outer, WithBatchEnd) for outer in around)

    def forward(self, batch: list[Request]) -> Outcomes:
        """Run the instance with its dependency."""
        return self._forward(batch, self._given)


def build_shared(building: ElementBuilder, element: Element, at: BuildSite) -> Backend:
    """Build a backend outside of any instance, which several instances may call."""
    at = replace(at, end=BatchEnd())
    return at.end.around(building.element(element, at), element)


def build_use(building: ElementBuilder, element: Element, at: BuildSite) -> Backend:
    """Build a name that stands for an instance; with a bracket, the instance depends on that."""
    if not element.children:
        return _find(building, element.named, at)
    dependency = building.child(element.children[0], at)
    bound = Bound(_find(building, element.named, at), dependency)
    if bound.leaves:
        at.end.exit(bound, element)
    if not states_range(element.cls):  # what `init` has set narrows the range of the dependency
        both = [Ranged(one._label(), (one.min, one.max)) for one in (bound, dependency)]
        building.set_range(bound, lambda: inside(both), at)
    return bound


def _find(building: ElementBuilder, named: Any, at: BuildSite) -> Backend:
    """Return the instance for which a name stands, in a form in which it may be called here."""
    if not named.registered:
        return at.local[named.element]
    build, name = building.build, named.name
    built = build.registered.get(name)
    if isinstance(built, NodeCall) and built.scheduler.name == named.node:
        return building.node_call(name)
    if built is not None and name not in build.reached:
        # Only what backends build themselves names it, so nobody but its node has it without the lock.
        build.registered[name] = building.guard(built)
    elif not (
        built is None or name in building.registers or isinstance(built, (NodeCall, Guarded))
    ):
        what = f"{name!r} was built for its own node alone, and cannot be called from here as well"
        raise SetupError(what, node=building.name, hint="Build the pipeline again.")
    return building.node_call(name)
