"""What planner and builder ask a class of itself: all that makes a backend a word.

They name no word. They ask the class behind a name, which for a plain backend answers as `Word`
does. A word of `headrace.words` says otherwise where it is otherwise.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar

from headrace._backend import Backend
from headrace._plan.declared import OPTIONAL, Needs, keys_named
from headrace._plan.planning import Phases, Planning, Scope, prefix_values
from headrace._registry.backends import source_of
from headrace._registry.discovery import CORE_BACKENDS, load
from headrace.keys import DATA

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from headrace._expression.tree import Call
    from headrace._plan.element import Element, Named


class Word(Backend):
    """A backend that says how it is planned and built; the defaults are those of a plain one.

    Attributes:
        _names: How many of its children are names, and no backends.
        _wiring: Whether it only puts others together, and runs nothing when it is called.
        _joins: Whether one directly in another one, without prefix, is the same as its children.
        _threaded: Whether all that stands inside runs in a thread of its own already.
        _gathers: Whether calls of it wait in the queue of a node.
        _walks: Whether calls of it walk through the graph of nodes.
        _reaches_out: Whether it uses something of the pipeline that no other process has.
        _registers_names: Whether it is there for the names that it registers, not for its own.
        _needs_of: The child that needs what it needs itself, None where `_needs` says more.
        _wrong_unused: What is wrong when it has a name, and nothing makes use of that; None for nothing.
        _why_not_callable: Why it cannot be called, None when it can.
        _not_callable_hint: What to do then.
    """

    _names: ClassVar[int] = 0
    _wiring: ClassVar[bool] = False
    _joins: ClassVar[bool] = False
    _threaded: ClassVar[bool] = False
    _gathers: ClassVar[bool] = False
    _walks: ClassVar[bool] = False
    _reaches_out: ClassVar[bool] = False
    _registers_names: ClassVar[bool] = False
    _needs_of: ClassVar[int | None] = None
    _wrong_unused: ClassVar[str | None] = None
    _why_not_callable: ClassVar[str | None] = None
    _not_callable_hint: ClassVar[str | None] = None

    # What its text says, before any name has a meaning.

    @classmethod
    def _registers(cls, call: Call) -> str | None:
        """Give the name under which it will register an instance, where its args say it."""
        return None

    @classmethod
    def _alias_of(cls, call: Call) -> str | None:
        """Give the node to which a node is a second door that has nothing else as its backend."""
        return None

    # What it means.

    @classmethod
    def _plan(cls, use: Use) -> Element | None:
        """Plan what stands in its bracket, which is not empty; None when something is wrong.

        The default plans each child as a backend that is called. All are looked at, so that all
        errors are found.

        Returns:
            ``use.element``, which is given its ``phases``, or another one that it only stands for.
        """
        parent = use.element.cls
        use.element.prefixes = [prefix_values(child.prefix) for child in use.children]
        return use.holding(*([use.child(one, parent=parent) for one in row] for row in use.phases))

    @classmethod
    def _check(cls, use: Use) -> None:
        """Check where an element stands, or a name for one, once it is planned; report it if wrong."""
        if use.element.cls.builds_elsewhere:
            _check_stands_alone(use)

    # How a batch goes through it.

    @classmethod
    def _through(cls, element: Element, place: int) -> Element | None:
        """Give the child that a whole batch passes first (``place`` 0) or last (-1).

        None for one that runs something of its own before or after its children.
        """
        return element.children[-1] if cls._wiring else None

    @classmethod
    def _needs(cls, element: Element, built: Mapping[int, Backend]) -> Needs:
        """Give the keys that every request needs when it comes here, as far as they are known.

        The default is what the class, or what was built, says that it reads. One with children
        says so in ``init`` (``self.reads = ()`` for what its only child needs).

        Args:
            element: The word.
            built: What was built, by the identity of its element; see `needs_of` for those inside.
        """
        children = element.children
        if children and cls._needs_of is not None:
            return needs_of(children[cls._needs_of], built)
        made = built.get(id(element), element.cls)
        if children and (made is element.cls or "reads" not in vars(made)):
            return {DATA: element.name}  # it is not known what it does with them
        keys = keys_named(made, element.options, "reads")
        own = {key: element.name for key in keys if key == DATA or key not in OPTIONAL}
        return {**needs_of(children[0], built), **own} if len(children) == 1 else own

    # How it is built.

    @classmethod
    def _build(cls, building: Any, element: Element, at: Any) -> Backend:
        """Build an element and all below it.

        Args:
            building: The `headrace._build.elements.ElementBuilder`.
            element: What to build: the word, or a name for an instance of it with a bracket.
            at: The `headrace._build.parts.At`, where the builder stands.
        """
        built: Backend = building.plain(element, at)
        return built

    def _prepare(self, building: Any, element: Element, at: Any) -> None:
        """Take what only the builder can give, after the children are built and before ``init``."""


def word_of(cls: type[Backend]) -> type[Word]:
    """Give what answers for a class: itself, or the default for a plain one."""
    return cls if issubclass(cls, Word) else Word


def core_word(name: str) -> type[Word]:
    """Give what answers for the word of core that is called ``name``; the default if there is none."""
    plugin, _, part = name.rpartition(":")
    path = CORE_BACKENDS.get(part) if plugin in ("", "headrace") else None
    return Word if path is None else _loaded(path)


@cache
def _loaded(path: str) -> type[Word]:
    return word_of(load(path, "headrace"))


def needed_keys(root: Element | None, built: Mapping[int, Backend]) -> tuple[str, ...]:
    """Give the keys without which a request is refused on entry.

    That is ``data`` wherever something reads it that is not known to be made inside. Else it is what
    the first backend reads: a model with several inputs reads the keys that are called like them.

    Args:
        root: The expression of an instance; None when it is not known.
        built: What was built from its elements, by their identity.
    """
    found = {DATA: ""} if root is None else needs_of(root, built)
    return (DATA,) if DATA in found else tuple(sorted(found))


def needs_of(element: Element, built: Mapping[int, Backend]) -> Needs:
    """Give the keys that every request needs at an element, as far as they are known."""
    if element.named is not None:
        known = not element.named.registered and not element.children
        inner = element.named.element if known else None
        return {DATA: element.name} if inner is None else needs_of(inner, built)
    return word_of(element.cls)._needs(element, built)


# What it is asked with.


@dataclass(frozen=True, eq=False)
class Use:
    """One use of a word in an expression: what its class sees of it while it is planned.

    Attributes:
        planning: The planner.
        element: The word, with its options.
        scope: Where the word stands.
        phases: What stands in its bracket, by phase.
    """

    planning: Planning
    element: Element
    scope: Scope
    phases: Phases = ()

    @property
    def children(self) -> list[Call]:
        """What stands in its bracket, all phases one after the other."""
        return [child for phase in self.phases for child in phase]

    def add(self, code: str, message: str, at: Call | None = None, **more: Any) -> None:
        """Report a problem at the word, or at something else."""
        self.planning.add(code, message, at or self.element.call, **more)

    def plan(self, child: Call, **changes: Any) -> Element | None:
        """Plan a child; ``changes`` are those of its scope."""
        return self.planning.plan(child, self.scope.within(**changes))

    def child(self, child: Call, **changes: Any) -> Element | None:
        """Plan a child that is going to be called."""
        planned = self.plan(child, **changes)
        return planned if planned is not None and self.may_call(planned) else None

    def holding(self, *phases: list[Element | None]) -> Element | None:
        """Give the word with what was planned of its bracket; None where some of it is wrong."""
        rows = [[child for child in phase if child is not None] for phase in phases]
        self.element.phases = rows
        return self.element if list(map(len, rows)) == list(map(len, phases)) else None

    def may_call(self, child: Element) -> bool:
        """Check that an element that is going to be called can be."""
        why = why_not_callable(child)
        if why is not None:
            message = f"{child.name} {why}: {self.element.name} cannot call it"
            hint = word_of(child.cls)._not_callable_hint
            self.add("not_callable", message, child.call, hint=hint)
        return why is None

    def name(self, child: Call) -> str | None:
        """Give a child that is a name and no backend; None when it has args or a bracket."""
        if not len(child.args) and not child.phases:
            return child.name
        if not self.planning.refuse_bracket(child):
            self.add("word", f"{self.element.name} takes a name here, without ( ) and [ ]", child)
        return None


def check_used(planning: Planning, names: Iterable[Named]) -> None:
    """Report the instances that no expression makes use of, where that is wrong."""
    for named in names:
        element = named.element
        if element is None or named.used or element.named is not None or element.children:
            continue
        wrong = word_of(element.cls)._wrong_unused
        if wrong is not None:
            planning.add("scheduling", f"{named.name} {wrong}", element.call)


def _check_stands_alone(use: Use) -> None:
    """Report what stands in a container that builds elsewhere, and is not there."""
    inside = [one for child in use.element.children for one in child.walk()]
    own = {id(one) for one in inside}
    for one in inside:
        named, hint = one.named, None
        outer = named is not None and (named.registered or id(named.element) not in own)
        if outer or word_of(one.cls)._reaches_out:
            why = "it reaches for something of the pipeline, which another process does not have"
        elif getattr(source_of(one.cls), "__module__", None) == "__main__":
            why = "it is registered by the program itself, which another process does not run"
            hint = "Put it into a file, and name that under `import`."
        else:
            continue
        message = f"{one.name} cannot stand in {use.element.name}: {why}"
        use.add("elsewhere", message, one.call, hint=hint)


def called(element: Element) -> Element:
    """Follow names, and words that only put others together, to what is called in the end."""
    while True:
        word = word_of(element.cls)
        if element.named is None and word._wiring and not word._why_not_callable:
            inner = element.children[-1] if element.children else None
        else:
            inner = element.named.element if element.named and not element.children else None
        if inner is None:
            return element
        element = inner


def why_not_callable(element: Element) -> str | None:
    """Tell why what is built from an element cannot be called; None when it can."""
    return word_of(called(element).cls)._why_not_callable


# Threads of their own.


def needs_thread(element: Element) -> bool:
    """Tell whether a backend below owns its thread and stands in no thread or process of its own."""
    return any(one.cls.owns_thread and _runs_here(one) for one in element.walk(_runs_inside))


def _runs_inside(element: Element) -> bool:
    """Tell whether what stands in an element runs in the thread that runs what that stands in."""
    return _runs_here(element) and not element.cls.builds_elsewhere


def _runs_here(element: Element) -> bool:
    """Tell whether an element runs in the thread that runs what it stands in."""
    elsewhere = element.own_thread or word_of(element.cls)._threaded
    return not elsewhere and (element.named is None or bool(element.children))


def give_threads_to_instances(root: Element) -> None:
    """Put a thread around the outermost ``Reflect`` of an instance where something in it needs one."""
    for element in root.walk(lambda one: one.parameter is None and _runs_inside(one)):
        if element.parameter is not None:
            element.own_thread = needs_thread(element)
    give_threads(root)


def give_threads(root: Element) -> None:
    """Put a thread around what needs one and has none yet."""
    for element in root.walk(_holds_others):
        if not _holds_others(element) and _runs_here(element) and needs_thread(element):
            element.own_thread = True


def _holds_others(element: Element) -> bool:
    """Tell whether an element runs nothing by itself, so that threads are put around its children."""
    word = word_of(element.cls)
    return not element.own_thread and (word._wiring or word._gathers)
