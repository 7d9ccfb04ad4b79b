"""The state of planning: the scope around a name, and the nodes planned so far."""

from __future__ import annotations

from abc import ABC, abstractmethod
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from headrace._language.contract.options import map_leaves
from headrace._language.expression.nesting import with_room
from headrace._language.expression.tree import Args, Call
from headrace._language.plan.element import Element, Named, Prefix, Source, place_of
from headrace._language.plan.parameters import Parameters, read_expression_of
from headrace.errors import PluginError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from headrace._language.config.problems import Problems
    from headrace._language.config.sections import Sections
    from headrace._language.plan.nodes import NodePlan
    from headrace._language.registry.registry import Files, Offer


Phases = tuple[tuple[Call, ...], ...]
"""The content of a bracket, by phase."""


@dataclass(frozen=True, eq=False)
class Scope:
    """Where in an expression the planner stands.

    Attributes:
        frames: The instances of the enclosing ``IoC``s, outermost first.
        depth: How deep the nesting is.
        reflecting: The parameters that are being reflected.
        late: Whether a container around it may do without it: then a library that it lacks is told when it is built.
    """

    frames: tuple[dict[str, Named], ...] = ()
    depth: int = 0
    reflecting: tuple[str, ...] = ()
    late: bool = False

    def within(self, **changes: Any) -> Scope:
        """Give the scope one level deeper, with changes."""
        return replace(self, depth=self.depth + 1, **changes)


MAX_TEXTS = 1000
"""How many parameters one expression may use, those in each other counted as often as they are written out."""


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
        registered: The nodes, as ``node.NAME``. One that is wrong has no element.
        nodes: The nodes that are planned.
        all_parameters: By node, the keys of those whose planning has begun, finished or not.
        too_many: Whether an expression uses too many parameters, which has been reported.
        parameters: The parameters of the present node.
        _unfinished: The nodes whose planning has begun and not ended: one that names one of them needs itself.
    """

    shape: Sections
    files: Files
    problems: Problems
    all_names: bool = True
    refused: str | None = None
    registered: dict[str, Named] = field(default_factory=dict)
    nodes: dict[str, NodePlan] = field(default_factory=dict)
    all_parameters: dict[str, Parameters] = field(default_factory=dict)
    too_many: bool = False
    parameters: Parameters = field(init=False)
    _unfinished: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.parameters = Parameters("global", self.shape)

    # What `Planner` adds, and words ask for.

    @abstractmethod
    def plan(self, call: Call, scope: Scope) -> Element | None:
        """Plan one element and all below it; None when something in it is wrong."""

    @abstractmethod
    def reference(self, call: Call, named: Named, scope: Scope) -> Element | None:
        """Plan a name that stands for an instance."""

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

    def read(self, text: Any, source: Source) -> Call | None:
        """Parse an expression and replace its placeholders; None when it is wrong, which is reported."""
        self.parameters.texts += 1
        if self.parameters.texts > MAX_TEXTS:
            self.parameters.unresolved += 1
            if not self.too_many:
                self.too_many = True
                message = f"its parameters are used more than {MAX_TEXTS} times"
                hint = "Parameters that use each other twice double with each level: build less, or write it out."
                self.problems.add("nesting", message, hint=hint, file=source.file, path=source.path)
            return None
        call = read_expression_of(text, source, self.known_node, self.problems)
        self.parameters.unresolved += call is None
        if call is None or call.prefix is None:
            return call
        message = "nobody understands the prefix of the outermost name"
        hint = "A prefix belongs to a child in [ ]."
        self.add("prefix", message, call, span=call.prefix.span, hint=hint)
        return call.replace(prefix=None)

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
