"""The plan: a tree of elements per expression, with every name resolved and every option checked."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from headrace._config.shape import GlobalKeys
from headrace._options import keys_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from headrace._backend import Backend
    from headrace._config.document import Written
    from headrace._config.shape import NodeKeys
    from headrace._expression.tree import Args, Call
    from headrace._graph.route import Links
    from headrace._options import Options
    from headrace._registry.registry import Files, Offer
    from headrace.errors import Problem


Range = tuple[int, "int | None"]
"""Least and greatest weight, both included; None for unbounded."""

Place = dict[str, Any]
"""Where something was written: ``file``, ``path``, ``span`` and ``text``, as a problem has them."""

Prefix = tuple[tuple[Any, ...], dict[str, Any]]
"""The prefix before a child: positional values and named ones."""


@dataclass(eq=False)
class DefinitionUse:
    """One use of a definition: the args of ``Z(a=1)`` hold for every backend of Z that has them.

    Attributes:
        call: Where it was written.
        values: The args, by key.
        used: Keys that some backend of the definition has.
        asked: All keys that backends of the definition have.
    """

    call: Call
    values: dict[str, Any]
    used: set[str] = field(default_factory=set)
    asked: set[str] = field(default_factory=set)


@dataclass(frozen=True, eq=False)
class Source:
    """The text that a name was written in; every `Call` of a configuration has its ``source``.

    Attributes:
        path: The keys that lead to the text, ``main.backend`` or ``define.Z``.
        file: The file that holds it, None for a dict.
        base: The folder that relative paths in it start from, as text.
        origin: What its args are: ``inline``, or ``definition`` where they are defaults.
        expanding: The definitions that have led to the text, outermost first.
        uses: Their uses.
    """

    path: str
    file: str | None = None
    base: str = "."
    origin: str = "inline"
    expanding: tuple[str, ...] = ()
    uses: tuple[DefinitionUse, ...] = ()

    @classmethod
    def of(cls, written: Written, path: str) -> Source:
        """Give the source of a text of the configuration."""
        return cls(path, written.file, str(written.base))


def place_of(call: Call, argument: int | str | None = None) -> Place:
    """Give the place of a name, or of one of its args, for a problem."""
    span = call.name_span or call.span
    if argument is not None:
        span = call.args.span_of(argument) or span
    return {"file": call.source.file, "path": call.source.path, "span": span, "text": call.text}


def takes_dependency(cls: type[Backend]) -> bool:
    """Tell whether a class is given its only child at each call."""
    return callable(getattr(cls, "forward_with_dep", None))


@dataclass(eq=False)
class Element:
    """One name of an expression, resolved.

    Attributes:
        name: As written.
        call: Where it was written.
        spec, cls: The backend it means. For a name that stands for an instance, those of that
            instance.
        options: The checked options.
        origins: Where the value of each option came from: ``inline``, ``node``, ``global``,
            ``definition`` or ``default``.
        phases: The elements in its bracket, by phase.
        prefixes: Per child, the prefix before it.
        named: The instance that the name stands for, or None when it means a backend.
        range: The range as the classes tell, before any ``init``.
        own_thread: Whether a `BackgroundThread` is put around it.
        definition: The definition that this is the outermost name of, or None.
        frames: The instances of enclosing ``IoC``s that it can name.
        target: The node at which a `Repost` lets the request go on, or None.
        parameter: The parameter in which a `Reflect` has found its expression, or None.
        unavailable: Children that cannot be built here, or that were not chosen, and why.
    """

    name: str
    call: Call
    spec: Offer
    cls: type[Backend]
    options: Options | None = None
    origins: dict[str, str] = field(default_factory=dict)
    phases: list[list[Element]] = field(default_factory=list)
    prefixes: list[Prefix] = field(default_factory=list)
    named: Named | None = None
    range: Range = (1, None)
    own_thread: bool = False
    unavailable: dict[str, str] = field(default_factory=dict)
    definition: str | None = None
    frames: tuple[dict[str, Named], ...] = ()
    target: str | None = None
    parameter: str | None = None

    @property
    def is_bare(self) -> bool:
        """Whether it is built without what it depends on, which is given to it at each call."""
        return takes_dependency(self.cls) and not self.children

    @property
    def children(self) -> list[Element]:
        """The elements in its bracket, all phases one after the other."""
        return [element for phase in self.phases for element in phase]

    def walk(self, into: Callable[[Element], bool] | None = None) -> Iterator[Element]:
        """Give this element and all below it, parents first.

        Args:
            into: Tells whether what stands in an element is looked at; None for all.
        """
        todo = [self]
        while todo:
            element = todo.pop()
            yield element
            if into is None or into(element):
                todo.extend(reversed(element.children))


@dataclass(eq=False)
class Named:
    """An instance that a name stands for.

    Attributes:
        name: The name: that of an earlier element of an enclosing ``IoC``, or a registered one.
        element: What it was built from; None when that is wrong, which has been reported.
        node: The node that registered it, so that the whole pipeline knows it; None for an element
            of an ``IoC``.
        index: Which of the node's instances it is, None when it is none of them.
        used: Whether some expression names it.
    """

    name: str
    element: Element | None
    node: str | None = None
    index: int | None = None
    used: bool = False

    @property
    def registered(self) -> bool:
        """Whether the whole pipeline knows it."""
        return self.node is not None


@dataclass(frozen=True)
class NamedPlan:
    """A policy of a node, or a probe of the pipeline.

    Attributes:
        text: As written, placeholders not replaced; the name of a probe in ``stats()``.
        args: What was written in ``( )``.
        cls: Its class.
        options: Its checked options, None when the class has no ``Options``.
        distribution, version: Who brings it; empty when no plugin does.
    """

    text: str
    args: Args
    cls: type[Any]
    options: Options | None
    distribution: str = ""
    version: str = ""


@dataclass(eq=False)
class NodePlan:
    """One node.

    Attributes:
        name: Its name.
        keys: Its keys, checked.
        origins: Where each key came from: ``node``, ``global`` or ``default``.
        init: What is built before it, or None.
        entry: The whole node.
        alias_of: The node that it is a second door to, or None.
        instance: What an instance is built from, None when the node registers none.
        batch_policy, dispatch_policy: Its policies.
    """

    name: str
    keys: NodeKeys
    origins: dict[str, str]
    entry: Element
    batch_policy: NamedPlan
    dispatch_policy: NamedPlan
    init: Element | None = None
    alias_of: str | None = None
    instance: Element | None = None

    @property
    def instance_num(self) -> int:
        """How many instances it registers."""
        return self.keys.instance_num if self.instance is not None else 0

    @property
    def expression(self) -> str:
        """The expression of an instance, or of the node where it registers none."""
        reflects = self.instance is not None and self.keys.backend is not None
        return str(((self.backend if reflects else self.instance) or self.entry).call)

    @property
    def roots(self) -> list[Element]:
        """Its expressions."""
        return [self.entry, *([self.init] if self.init is not None else [])]

    @property
    def option_names(self) -> set[str]:
        """The names of all options that its backends have."""
        elements = (element for root in self.roots for element in root.walk())
        return {key for element in elements for key in keys_of(element.cls.Options)}

    @property
    def backend(self) -> Element | None:
        """What the key ``backend`` became, or None when nothing reflects it."""
        instance = [self.instance] if self.instance is not None else []
        for element in (one for root in (*instance, *self.roots) for one in root.walk()):
            if element.parameter is not None:
                return element.children[0]
        return self.instance


@dataclass(eq=False)
class PipelinePlan:
    """A whole pipeline.

    Attributes:
        nodes: Per node its plan, in the order in which they are built.
        entrypoint: The front that the configuration asks for, None for the default.
        keys: The keys of the pipeline as a whole.
        files: The files that the configuration imports, and what each has registered.
        late: Plans an expression that a backend asks for in its ``init``: the text, the name of the
            node (None for the front) and the instances of enclosing ``IoC``s.
        links: How each node is linked to the others, in file order.
        probes: The probes that are switched on.
        allow_import: Whether the configuration may bring in code.
        warnings: What is allowed but hardly meant, as far as planning has seen it; see
            `headrace._plan.warnings`.
    """

    nodes: dict[str, NodePlan]
    entrypoint: Element | None = None
    keys: GlobalKeys = field(default_factory=GlobalKeys)
    files: Files = ()
    late: Callable[[str, str | None, tuple[dict[str, Named], ...]], Element] | None = None
    links: dict[str, Links] = field(default_factory=dict)
    probes: tuple[NamedPlan, ...] = ()
    allow_import: bool = True
    warnings: tuple[Problem, ...] = ()

    @property
    def order(self) -> list[str]:
        """The names of the nodes in file order."""
        return list(self.links)

    @property
    def roots(self) -> list[Element]:
        """The expressions of all nodes, and that of the front."""
        own = [root for node in self.nodes.values() for root in node.roots]
        return own if self.entrypoint is None else [*own, self.entrypoint]

    @property
    def total_instances(self) -> int:
        """How many instances all nodes have together, at least 1."""
        own = [node for node in self.nodes.values() if node.alias_of is None]
        return max(1, sum(max(1, node.instance_num) for node in own))


# Walking the elements of a pipeline.


def doors(nodes: Mapping[str, NodePlan], name: str) -> list[str]:
    """Give a node and, while it is a second door, the node behind it; the last is no door."""
    found = [name]
    while (behind := nodes[found[-1]].alias_of) is not None and behind in nodes:
        found.append(behind)
    return found


def registered_in(roots: Iterable[Element]) -> Iterator[Named]:
    """Give the registered instances that are named in expressions, ``Forward[node.x]`` or other."""
    named = (element.named for root in roots for element in root.walk())
    return (one for one in named if one is not None and one.registered)


def nodes_named(roots: Iterable[Element]) -> list[str]:
    """Give the nodes of which some instance is named in expressions."""
    return list(dict.fromkeys(str(one.node) for one in registered_in(roots)))


def elements_run(nodes: Mapping[str, NodePlan], roots: Iterable[Element]) -> list[Element]:
    """Give all elements that a call of ``roots`` may run, those of named instances and nodes too.

    Everything that stands in a node counts, also what only its ``init`` builds.
    """
    found: dict[int, Element] = {}
    todo = list(roots)
    while todo:
        element = todo.pop()
        if id(element) in found:
            continue
        found[id(element)] = element
        todo += element.children
        if element.named is not None:
            if element.named.element is not None:
                todo.append(element.named.element)
            node = nodes.get(element.named.node or "")
            todo += node.roots if node is not None else []
    return list(found.values())
