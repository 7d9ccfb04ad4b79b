"""What is known while a configuration is planned: what words may ask the planner, and tell it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from headrace._plan.definitions import Definitions, Files
from headrace._plan.element import Element, Named, NodePlan, Place

if TYPE_CHECKING:
    from headrace._config.document import Written
    from headrace._config.nodekeys import NodeKeys
    from headrace._config.problems import Problems
    from headrace._config.shape import Shape
    from headrace._expression.tree import Call
    from headrace._plan.parameters import Parameters
    from headrace._plan.scope import Bracket, Scope


@dataclass(eq=False)
class Planning(ABC):
    """The state of planning one configuration, node by node.

    A node is planned when it is first named, else in file order. What is wrong is reported where it
    stands; what depends on something wrong is left out in silence.

    Args:
        shape: The configuration.
        files: The files that it imports, and what each has registered.
        problems: Where what is wrong goes.
        all_names: Whether all names can be known; False when an import has failed.
        allow_import: Whether code that the configuration names may be imported.

    Attributes:
        definitions: The definitions.
        registered: What the names of registered instances mean.
        nodes: The nodes that are planned.
        all_parameters: The keys of all nodes.
        used_globals: The global keys that some node has.
        unresolved: How many names have no class so far.
    """

    shape: Shape
    files: Files
    problems: Problems
    all_names: bool = True
    allow_import: bool = True
    registered: dict[str, Named] = field(default_factory=dict)
    nodes: dict[str, NodePlan] = field(default_factory=dict)
    all_parameters: list[Parameters] = field(default_factory=list)
    used_globals: set[str] = field(default_factory=set)
    unresolved: int = 0
    _entered: list[tuple[str, NodeKeys | None, Parameters]] = field(default_factory=list)
    _begun: list[str] = field(default_factory=list)
    _unfinished: list[str] = field(default_factory=list)
    _homes: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.definitions = Definitions(self.shape.definitions, self.files, self.problems)

    # What else can be asked.

    @abstractmethod
    def plan(self, call: Call, scope: Scope) -> Element | None:
        """Plan one element and all below it; None when something in it is wrong."""

    @abstractmethod
    def reference(self, call: Call, named: Named, scope: Scope) -> Element | None:
        """Plan a name that stands for an instance, perhaps with what it depends on."""

    @abstractmethod
    def read(self, written: Written, path: str) -> Call | None:
        """Parse an expression of the configuration and replace its placeholders; None when wrong."""

    @abstractmethod
    def plan_node(self, name: str) -> None:
        """Plan one node."""

    def plan_all(self, bracket: Bracket, *, names: int = 0, is_slot: bool = False) -> None:
        """Plan what stands in a bracket that nobody understands, for what is wrong in it.

        Args:
            bracket: The bracket.
            names: How many of its children are names, and no backends.
            is_slot: Whether what is on its way to the open slot goes to the last child.
        """
        for child in bracket.children[names:]:
            within = bracket.within(child, named=True)
            self.plan(child, within if is_slot else within.same(graft=None, open_slot=False))

    # The node that is being planned.

    def enter(self, node: str, keys: NodeKeys | None, parameters: Parameters) -> None:
        """Begin with the keys of a node; nodes that it names may be planned in between."""
        self._entered.append((node, keys, parameters))

    def leave(self, node: str) -> None:
        """End the node that was begun last."""
        while self._entered.pop()[0] != node:
            pass

    @property
    def node(self) -> str:
        """Name of the node that is being planned."""
        return self._entered[-1][0]

    @property
    def known_node(self) -> str | None:
        """Name of that node; None for the pipeline's front."""
        return None if self.keys is None else self.node

    @property
    def keys(self) -> NodeKeys | None:
        """Keys of that node; None for the pipeline's front."""
        return self._entered[-1][1]

    @property
    def parameters(self) -> Parameters:
        """Parameters of that node."""
        return self._entered[-1][2]

    def file_of(self, node: str) -> str | None:
        """Give the file that holds a node, None for a dict."""
        files = [written.file for written in self.shape.nodes.get(node, {}).values()]
        return files[-1] if files else self.shape.file

    # Problems.

    def add(self, code: str, message: str, call: Call, scope: Scope, **more: Any) -> None:
        """Report a problem at ``call``."""
        self.problems.add(code, message, **{**scope.layer.place(call), **more})

    def report_cycle(self, call: Call, node: str, scope: Scope) -> None:
        """Report a node that needs itself, through the nodes that are being planned."""
        chain = [*self._unfinished[self._unfinished.index(node) :], node]
        shown = f": {' needs '.join(chain)}" if len(chain) > 2 else ""
        self.add("circle", f"node {node!r} is needed to build itself{shown}", call, scope)

    # Registered instances.

    def named(self, name: str) -> Named | None:
        """Give the registered instance called ``name``, planning the node that registers it."""
        if name not in self.registered:
            home = self._home(name)
            if home is not None and home not in self._begun:
                self.plan_node(home)
        return self.registered.get(name)

    def instances(self) -> list[str]:
        """Give the names of all instances that are registered, or will be."""
        nodes = [f"node.{name}" for name in self.shape.nodes]
        return list(dict.fromkeys([*self.registered, *nodes]))

    def being_planned(self, name: str) -> str | None:
        """Give the node that would register ``name`` if it is being planned right now."""
        home = self._home(name)
        return home if home in self._unfinished else None

    def _home(self, name: str) -> str | None:
        """Give the node that registers ``name``, None when none does."""
        if name in self._homes:
            return self._homes[name]
        if name.startswith("node."):
            name = name.removeprefix("node.")
        else:
            name, dot, index = name.rpartition(".")
            if not dot or not index.isdigit():
                return None
        return name if name in self.shape.nodes else None

    def register(self, named: Named, place: Place) -> None:
        """Make an instance known to the whole pipeline."""
        known = self.registered.get(named.name)
        if known is not None and known.element is not None:
            self.problems.add("twice", f"{named.name!r} is registered twice", **place)
        self.registered[named.name] = named

    def register_wrong(self, node: str, instance_num: int) -> None:
        """Let all names that a node registers by itself be known as wrong."""
        for name in (f"node.{node}", *(f"{node}.{index}" for index in range(instance_num))):
            self.registered.setdefault(name, Named(name, None, True, node))
