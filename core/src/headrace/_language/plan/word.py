"""The questions that planner and builder ask a backend class: its answers make it a word.

Planner and builder name no word. They ask the class behind a name. For a plain backend `Word`
answers. A word of `headrace.words` overrides what is different for it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache, cached_property
from itertools import chain
from typing import TYPE_CHECKING, Any, ClassVar

from headrace._language.contract.backend import Backend
from headrace._language.expression.tree import Call
from headrace._language.plan.element import Element, Named, prefix_values
from headrace._language.registry.discovery import CORE_BACKENDS, load
from headrace._run.contract.checked import Outcomes
from headrace.errors import ContractError
from headrace.keys import Request

if TYPE_CHECKING:
    from headrace._language.plan.planner import Planner


Phases = tuple[tuple[Call, ...], ...]
"""The content of a bracket, by phase."""


@dataclass(frozen=True, eq=False)
class Scope:
    """Where in an expression the planner stands.

    Attributes:
        frames: The instances of the enclosing ``IoC``s, outermost first.
        depth: How deep the nesting is.
        reflecting: The parameters that are being reflected.
        late: Whether a container around it may do without it: then a library that it lacks is told
            when it is built.
    """

    frames: tuple[dict[str, Named], ...] = ()
    depth: int = 0
    reflecting: tuple[str, ...] = ()
    late: bool = False

    def within(self, **changes: Any) -> Scope:
        """Give the scope one level deeper, with changes."""
        return replace(self, depth=self.depth + 1, **changes)


class Word(Backend):
    """A backend that says how it is planned and built. The defaults are those of a plain backend.

    Attributes:
        _names: How many of its children are names, and no backends.
        _wiring: Whether it runs nothing itself: once it is built, its last child is called in its
            place.
        _threaded: Whether its children run in a thread of their own already.
        _in_turn: Whether each child gets the result of the one before as its ``data``. Without a
            prefix in it, it may be replaced by its children where it stands, without prefix, in
            another one.
    """

    _names: ClassVar[int] = 0
    _wiring: ClassVar[bool] = False
    _threaded: ClassVar[bool] = False
    _in_turn: ClassVar[bool] = False

    writes: tuple[str, ...] | type = ("result",)  # stated, so that it can be relied on

    @classmethod
    def _plan(cls, use: Use) -> Element | None:
        """Plan the bracket of the word, which is not empty. None when something in it is wrong.

        The default plans each child as a backend that is called. It plans all children, so that all
        errors are found. Children that are names are checked before.

        Returns:
            ``use.element`` with its ``phases``, or another element, when the word only stands for
            that.
        """
        use.element._settle(prefixes=[prefix_values(child.prefix) for child in use.children])
        late = use.scope.late or use.element.cls.bracket.late
        return use.holding(*([use.child(call, late=late) for call in row] for row in use.phases))

    @classmethod
    def _check(cls, use: Use) -> None:
        """Check more of a planned word than every element is checked for."""

    @classmethod
    def _build(cls, building: Any, element: Element, at: Any) -> Backend:
        """Build an element and all below it.

        Args:
            building: The `headrace._language.building.elements.ElementBuilder`.
            element: The word, or a name with a bracket that stands for an instance of it.
            at: The `headrace._language.building.parts.BuildSite`, where the builder stands.
        """
        built: Backend = building.build_plain(element, at)
        return built

    def _prepare(self, building: Any, element: Element, at: Any) -> None:
        """Take what only the builder can give.

        Called after the children are built and before ``init``.
        """

    def forward(self, batch: list[Request]) -> Outcomes:
        """Refuse: a word that a batch comes to, once it is built, has a ``forward`` of its own."""
        raise ContractError(f"{self._label()} cannot be called")


def word_of(cls: type[Backend]) -> type[Word]:
    """Return the class that answers for a backend class: itself, or `Word` for a plain one."""
    return cls if issubclass(cls, Word) else Word


def core_word(name: str) -> type[Word]:
    """Return the word of core called ``name``; `Word` itself when there is none."""
    plugin, _, part = name.rpartition(":")
    path = CORE_BACKENDS.get(part) if plugin in ("", "headrace") else None
    return Word if path is None else _load_word(path)


@cache
def _load_word(path: str) -> type[Word]:
    return word_of(load(path, "headrace"))


def way_to_called(element: Element) -> list[Element]:
    """Return an element, what is followed from it, and the element called in the end.

    Names and wiring words are followed.

    The way ends at a name whose calls wait in a queue: a node is called there.
    """
    way = [element]
    while True:
        element = way[-1]
        if element.named is None and word_of(element.cls)._wiring and element.children:
            way.append(element.children[-1])
        elif element._referent is not None:
            way.append(element._referent)
        else:
            return way


def why_not_callable(element: Element) -> str | None:
    """Tell why the backend of an element cannot be called; None when it can."""
    return way_to_called(element)[-1].cls.place.not_callable


@dataclass(frozen=True, eq=False)
class Use:
    """One use of a word in an expression, as its class sees it while it is planned.

    Attributes:
        planning: The planner.
        element: The word, with its options.
        scope: Where the word stands.
        phases: The content of its bracket, by phase.
    """

    planning: Planner
    element: Element
    scope: Scope
    phases: Phases = ()

    @cached_property
    def children(self) -> list[Call]:
        """The content of its bracket, all phases one after the other."""
        return list(chain.from_iterable(self.phases))

    def add(self, code: str, message: str, at: Call | None = None, **more: Any) -> None:
        """Report a problem at the word, or at another call."""
        self.planning.add(code, message, at or self.element.call, **more)

    def plan(self, child: Call, **changes: Any) -> Element | None:
        """Plan a child, in the scope of the word with ``changes``."""
        return self.planning.plan(child, self.scope.within(**changes))

    def child(self, child: Call, **changes: Any) -> Element | None:
        """Plan a child that the word will call."""
        planned = self.plan(child, **changes)
        return planned if planned is not None and self.may_call(planned) else None

    def holding(self, *phases: list[Element | None]) -> Element | None:
        """Give the word with its planned children; None where one of them is wrong."""
        rows = [[child for child in phase if child is not None] for phase in phases]
        self.element._settle(phases=rows)
        return self.element if list(map(len, rows)) == list(map(len, phases)) else None

    def may_call(self, child: Element) -> bool:
        """Check that an element which the word will call can be called; report it if not."""
        if (why := why_not_callable(child)) is not None:
            message = f"{child.name} {why}: {self.element.name} cannot call it"
            self.add("not_callable", message, child.call, hint="It belongs in the init of a node.")
        return why is None

    def is_name(self, child: Call) -> bool:
        """Check that a child is a plain name; report it if not."""
        plain = not len(child.args) and not child.phases
        if not plain:
            self.add("word", f"{self.element.name} takes a name here, without ( ) and [ ]", child)
        return plain
