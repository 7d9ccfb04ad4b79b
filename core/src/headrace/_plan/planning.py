"""The state of planning: the scope around a name, the definitions, and the nodes planned so far."""

from __future__ import annotations

import itertools
import os
from abc import ABC, abstractmethod
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from headrace._config.problems import Problems, key_place
from headrace._contract.options import map_leaves
from headrace._expression.nesting import with_room
from headrace._expression.parser import read_expression
from headrace._expression.tree import PLAIN_NAME, Args, Call
from headrace._plan.element import Element, Named, NodePlan, Prefix, Source, place_of
from headrace._plan.parameters import Parameters
from headrace._portable import nearest
from headrace._registry.discovery import CORE_BACKENDS
from headrace._registry.registry import Files, Offer, registry
from headrace.errors import ConfigError, PluginError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from headrace._config.document import Written
    from headrace._config.sections import Sections


Phases = tuple[tuple[Call, ...], ...]
"""The content of a bracket, by phase."""


@dataclass(frozen=True, eq=False)
class Scope:
    """Where in an expression the planner stands.

    Attributes:
        frames: The instances of the enclosing ``IoC``s, outermost first.
        depth: How deep the nesting is.
        reflecting: The parameters that are being reflected.
    """

    frames: tuple[dict[str, Named], ...] = ()
    depth: int = 0
    reflecting: tuple[str, ...] = ()

    def within(self, **changes: Any) -> Scope:
        """Give the scope one level deeper, with changes."""
        return replace(self, depth=self.depth + 1, **changes)


MAX_TEXTS = 1000
"""How many definitions and parameters one expression may use, those in each other counted as often as they are written out."""


@dataclass(frozen=True, kw_only=True)
class Definition(Offer):
    """One definition. Its ``path`` is its text. A definition of the configuration has no distribution.

    Attributes:
        source: Where the text was written.
    """

    source: Source


def definitions_by_name(
    own: Mapping[str, Written], files: Files, problems: Problems
) -> dict[str, list[Definition]]:
    """Return the definitions that each name may mean: the configuration's own, else those of plugins."""
    known: dict[str, list[Definition]] = {}
    for one in registry.offers("definitions"):
        if one.name not in CORE_BACKENDS:  # a plugin cannot redefine a word of core
            offered = Definition(**vars(one), source=Source(f"{one.name} of {one.distribution}"))
            known.setdefault(one.name, []).append(offered)
    for name, written in own.items():
        path = f"define.{name}"
        at_key = key_place(written.file, path, name, written.value, at_key=True)
        if not PLAIN_NAME.fullmatch(name) or ":" in name:
            hint = "A letter or _, then letters, digits and _ . - /"
            problems.add("definition", f"{name!r} is no name for a definition", hint=hint, **at_key)
        taken = [f"is defined by {one.distribution} already" for one in known.get(name, ())]
        backends = registry.find(name, files)[:1]
        taken += [f"is the name of a backend of {one.distribution}" for one in backends]
        for why in taken:
            problems.add("definition", f"{name!r} {why}", hint="Choose another name.", **at_key)
        source = Source(path, written.file, written.base)
        known[name] = [Definition(name, path=written.value, source=source)]
    return known


@dataclass(eq=False)
class Planning(ABC):
    """The state of planning one configuration, node by node.

    A node is planned when it is first named, else in file order. A problem is reported at its own place only:
    an element that depends on a wrong one is left out without another report.

    Args:
        shape: The configuration.
        files: The files that it imports, and what each has registered.
        problems: Takes the problems that are found.
        all_names: Whether all names are known. False when an import has failed.
        refused: Why code that the configuration names may not be imported. None when it may.

    Attributes:
        reported: All problems that are an error. ``problems`` are others while a branch is only tried.
        definitions: The definitions that each name may mean.
        cycles: The cycles of definitions that have been reported.
        registered: The nodes, as ``node.NAME``. One that is wrong has no element.
        nodes: The nodes that are planned.
        all_parameters: By node, the keys of those whose planning has begun, finished or not.
        excused: The problems for which a `Fallback` goes on to another branch.
        too_many: Whether an expression uses too many definitions and parameters, which has been reported.
        parameters: The parameters of the present node.
        _unfinished: The nodes whose planning has begun and not ended: one that names one of them needs itself.
    """

    shape: Sections
    files: Files
    problems: Problems
    all_names: bool = True
    refused: str | None = None
    cycles: set[frozenset[str]] = field(default_factory=set)
    registered: dict[str, Named] = field(default_factory=dict)
    nodes: dict[str, NodePlan] = field(default_factory=dict)
    all_parameters: dict[str, Parameters] = field(default_factory=dict)
    excused: Problems = field(default_factory=Problems)
    too_many: bool = False
    parameters: Parameters = field(init=False)
    _unfinished: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.reported = self.problems
        self.parameters = Parameters("global", self.shape)
        self.definitions = definitions_by_name(self.shape.definitions, self.files, self.problems)

    # What `Planner` adds.

    @abstractmethod
    def plan(self, call: Call, scope: Scope) -> Element | None:
        """Plan one element and all below it; None when something in it is wrong."""

    @abstractmethod
    def reference(self, call: Call, named: Named, scope: Scope) -> Element | None:
        """Plan a name that stands for an instance."""

    @abstractmethod
    def read(self, text: Any, source: Source) -> Call | None:
        """Parse an expression and replace its placeholders; None when it is wrong, which is reported."""

    @abstractmethod
    def plan_node(self, name: str) -> None:
        """Plan one node."""

    def plan_all(self, calls: Iterable[Call], scope: Scope) -> None:
        """Plan the bracket of a wrong name, so that the problems in it are reported as well."""
        for call in calls:
            self.plan(call, scope.within())

    # The node that is being planned, called the present node.

    @contextmanager
    def within(self, parameters: Parameters) -> Iterator[None]:
        """Make a node the present one inside the ``with``, where other nodes may be entered in turn."""
        outer, self.parameters = self.parameters, parameters
        try:
            yield
        finally:
            self.parameters = outer

    @property
    def node(self) -> str:
        """The name of the present node."""
        return self.parameters.node

    @property
    def known_node(self) -> str | None:
        """The name of the present node; None for ``[global]``."""
        return None if self.parameters.keys is None else self.parameters.node

    # Reporting problems.

    def add(
        self, code: str, message: str, call: Call, which: int | str | None = None, **more: Any
    ) -> None:
        """Report a problem at ``call``, or at one of its args."""
        self.problems.add(code, message, **{**place_of(call, which), **more})

    def refuse_bracket(self, call: Call) -> bool:
        """Report a bracket that a definition has passed to a name that takes none; False for any other."""
        for use in call.source.uses:
            if call.phases and use.call.phases is call.phases:
                outer, name = use.call, call.name
                message = f"{outer.name}[...] goes to {name}, which takes nothing in brackets"
                self.add("arity", message, outer)
                return True
        return False

    def add_unknown(self, code: str, what: str, call: Call, name: str, known: list[str]) -> None:
        """Report an unknown name, with the nearest known one and a list of all."""
        near = nearest(name, known)
        hint = f"There are: {', '.join(known)}." if known else None
        self.add(code, f"no {what} is called {call.name!r}", call, suggestion=near, hint=hint)

    def load(self, call: Call, offers: Sequence[Offer], noun: str = "backend") -> type[Any] | None:
        """Give the class that a name means; None where two offer it or it cannot be imported, which is reported."""
        if len(offers) > 1:
            ways = [f"{offer.plugin}:{call.part}" for offer in offers]
            hint = f"Write {' or '.join(ways)}."
            if len(set(ways)) < len(ways):
                hint = "Give one of them another name, or import only one."
            message = f"{call.name!r} is offered by {' and '.join(o.distribution for o in offers)}"
            self.add("ambiguous", message, call, hint=hint)
        else:
            try:
                return offers[0].load(noun)
            except PluginError as error:
                self.add(error.code, error.what, call, hint=error.hint)
        self.parameters.unresolved += 1
        return None

    def report_too_many(self, source: Source) -> None:
        """Report an expression whose definitions and parameters use each other too often, once in a configuration."""
        self.parameters.unresolved += 1
        if self.too_many:
            return
        self.too_many = True
        what = f"its definitions and parameters are used more than {MAX_TEXTS} times"
        hint = "Definitions that use each other twice double with each level: build less, or write it out."
        if not source.uses:
            self.problems.add("nesting", what, hint=hint, file=source.file, path=source.path)
            return
        call = source.uses[0].call
        total = with_room(lambda: self._size(call, {}))
        self.add("nesting", f"{call.name!r} becomes {total:,} names: {what}", call, hint=hint)

    def _size(self, call: Call, known: dict[str, int]) -> int:
        """Return how many names an expression becomes where each definition is written out."""
        total = sum(self._size(child, known) for child in call.children)
        definition = next(iter(self.definitions.get(call.part, ())), None)
        if definition is None:
            return total + 1
        if call.part not in known:
            known[call.part] = 1  # where it uses itself, which is reported apart
            trees = parse_quietly(definition.path, self.node)
            known[call.part] = sum(self._size(tree, known) for tree in trees)
        return total + known[call.part]

    def refuse_cycle(self, call: Call) -> bool:
        """Report a name of an unfinished node: that node needs itself. False for any other."""
        node = call.name.removeprefix("node.")
        if node == call.name or node not in self._unfinished:
            return False
        chain = [*self._unfinished[self._unfinished.index(node) :], node]
        shown = f": {' needs '.join(chain)}" if len(chain) > 2 else ""
        self.add("cycle", f"node {node!r} is needed to build itself{shown}", call)
        return True

    def instance_named(self, name: str, scope: Scope) -> Named | None:
        """Return the instance of an ``IoC`` for which ``name`` stands, or the node, which is planned first."""
        for frame in reversed(scope.frames):
            if name in frame:
                return frame[name]
        node = name.removeprefix("node.")
        if node != name and node in self.shape.nodes and node not in self.all_parameters:
            # Nodes that name each other may be a long chain.
            with_room(lambda: self.plan_node(node))
        return None if node in self._unfinished else self.registered.get(name)


def parse_quietly(text: Any, node: str) -> list[Call]:
    """Parse an expression; give nothing where it is wrong, which is reported when its node is planned."""
    try:
        return [read_expression(text, node_name=node, environ=os.environ)]
    except (ConfigError, TypeError):
        return []


# The bracket of a definition's use goes to the open slot: the innermost last name of the definition's text.


def with_bracket(tree: Call, phases: Phases) -> Call:
    """Return an expression with ``phases`` in the bracket of its open slot."""
    if not tree.phases:
        return tree.replace(phases=phases)
    *first, last = tree.phases
    return tree.replace(phases=(*first, (*last[:-1], with_bracket(last[-1], phases))))


def join_phases(phases: Phases, joins: Callable[[Call], bool]) -> Phases:
    """Replace each name for which ``joins`` is true by its children."""

    def flat(phase: Iterable[Call]) -> tuple[Call, ...]:
        parts = (flat(call.phases[0]) if joins(call) else (call,) for call in phase)
        return tuple(itertools.chain.from_iterable(parts))

    return tuple(map(flat, phases))


# Values of args.


def prefix_values(prefix: Args | None) -> Prefix:
    """Return a prefix in the form that containers read."""
    if prefix is None:
        return (), {}
    positional = tuple(value_of_expression(value) for value in prefix.positional)
    return positional, {key: value_of_expression(value) for key, value in prefix.named}


def value_of_expression(value: Any) -> Any:
    """Return a value of an expression in the form that options read: an expression becomes its text."""
    return map_leaves(value, lambda part: str(part) if isinstance(part, Call) else part)
