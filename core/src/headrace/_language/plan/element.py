"""The plan: a tree of elements per expression, in which every name is resolved and every option checked."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace._language.config.sections import AUTO, GlobalKeys, NodeKeys
from headrace._run.process import usable_cpus

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from headrace._language.contract.backend import Backend
    from headrace._language.contract.options import Options
    from headrace._language.expression.tree import Args, Call
    from headrace._language.registry.registry import Files, Offer
    from headrace.errors import Problem
    from headrace.plan import Links


Range = tuple[int, "int | None"]
"""Least and greatest weight, both included; None for unbounded."""

Place = dict[str, Any]
"""A place in the configuration: ``file``, ``path``, ``span`` and ``text`` of a problem."""

Prefix = tuple[tuple[Any, ...], dict[str, Any]]
"""The prefix before a child: its positional values and its named ones."""


@dataclass(frozen=True, eq=False)
class Source:
    """The text in which a name was written. Every `Call` of a configuration has its ``source``.

    Attributes:
        path: The keys that lead to the text, ``main.backend`` or ``define.Z``.
        file: The file that holds the text, None for a dict.
        base: The folder from which relative paths in the text start.
    """

    path: str
    file: str | None = None
    base: Path = Path()


def place_of(call: Call, argument: int | str | None = None) -> Place:
    """Return the place of a name, or of one of its args, for a problem."""
    span = call.name_span or call.span
    if argument is not None:
        span = call.args.span_of(argument) or span
    return {"file": call.source.file, "path": call.source.path, "span": span, "text": call.text}


@dataclass(eq=False)
class Element:
    """One name of an expression, resolved.

    Attributes:
        name: The name, as written.
        call: The part of the expression that it was made of.
        offer, cls: The backend that the name means, with its class. For a name that stands for an instance,
            those of the instance.
        options: The checked options.
        origins: Where the value of each option comes from: ``inline``, ``node``, ``global`` or ``default``.
        phases: The elements in its bracket, by phase.
        prefixes: The prefix before each child.
        named: The instance for which the name stands, or None when it means a backend.
        range: The range that the classes state, before any ``init``.
        owns_thread: Whether its backend must run in a thread of its own, with these options on the node's devices.
        own_thread: Whether a `BackgroundThread` is put around it.
        parameter: The parameter in which a `Reflect` has found its expression, or None.
    """

    name: str
    call: Call
    offer: Offer
    cls: type[Backend]
    options: Options | None = None
    origins: dict[str, str] = field(default_factory=dict)
    phases: list[list[Element]] = field(default_factory=list)
    prefixes: list[Prefix] = field(default_factory=list)
    named: Named | None = None
    range: Range = (1, None)
    owns_thread: bool = False
    own_thread: bool = False
    parameter: str | None = None

    @cached_property
    def goes_on_at(self) -> tuple[str, ...]:
        """The nodes at which its backend lets requests go on; see `headrace.Backend.goes_on_at`."""
        known = self.options is not None and self.named is None
        return tuple(dict.fromkeys(self.cls.goes_on_at(self.options))) if known else ()

    @property
    def target(self) -> Element | None:
        """The element of the instance of an ``IoC`` for which its name stands; None for any other name."""
        return None if self.named is None or self.named.registered else self.named.element

    @property
    def children(self) -> list[Element]:
        """The elements in its bracket, all phases one after the other."""
        return list(chain.from_iterable(self.phases))

    def walk(self, into: Callable[[Element], bool] | None = None) -> list[Element]:
        """Return this element and all below it, parents first.

        Args:
            into: Tells whether the children of an element are given as well, asked of each before its children. None
                for always.
        """
        found, todo = [], [self]
        while todo:
            element = todo.pop()
            found.append(element)
            if into is None or into(element):
                todo.extend(reversed([*chain.from_iterable(element.phases)]))
        return found


@dataclass(eq=False)
class Named:
    """What a name stands for: an instance of an enclosing ``IoC``, or a node.

    Attributes:
        name: The name, ``node.x`` for the node ``x``.
        element: The element from which it is built. None when that is wrong, which has been reported.
        node: The node, whose queue calls wait in. None for an element of an ``IoC``.
        depth: How many names lead on from one to the next until an instance that names none: calls nest as deep.
    """

    name: str
    element: Element | None
    node: str | None = None

    @cached_property
    def depth(self) -> int:
        """See the attributes."""
        inner = [] if self.element is None else self.element.walk()
        return 1 + max((one.named.depth for one in inner if one.named is not None), default=0)

    @property
    def registered(self) -> bool:
        """Whether it is a node."""
        return self.node is not None


@dataclass(frozen=True)
class NamedPlan:
    """A policy of a node, or a probe of the pipeline.

    Attributes:
        text: The text as written, placeholders not replaced. For a probe, its name in ``stats()``.
        args: The args in ``( )``.
        cls: Its class.
        options: Its checked options, None when the class has no ``Options``.
        origins: Where the value of each option comes from. See `Element`.
        distribution, version: The plugin that brings it. Empty when no plugin does.
    """

    text: str
    args: Args
    cls: type[Any]
    options: Options | None
    origins: dict[str, str]
    distribution: str = ""
    version: str = ""


@dataclass(frozen=True)
class Auto:
    """What a node with ``instance_num = "auto"`` has.

    Attributes:
        instance_num: How many instances.
        why: Why so many, for people.
        wide_threads: The threads of the last of its instances, which serves a request that finds the node idle. 0 where it has none.
        short: Whether a backend allows fewer than the threads would carry.
    """

    instance_num: int
    why: str
    wide_threads: int = 0
    short: bool = False


@dataclass(eq=False)
class NodePlan:
    """One node.

    Attributes:
        name: Its name.
        keys: Its keys, checked.
        origins: Where each key comes from: ``node``, ``global``, ``default``, or ``inline`` (``batch_policy``).
        init: The expression that is built before the node, or None.
        instance: The element from which each instance is built.
        own_keys: The keys that belong to plugins, checked: an object of each class (`headrace.hookspecs`).
        batch_policy, dispatch_policy: Its policies.
        auto: What it has by ``instance_num = "auto"``, once all nodes are planned. None where its number is written.
    """

    name: str
    keys: NodeKeys
    origins: dict[str, str]
    instance: Element
    batch_policy: NamedPlan
    dispatch_policy: NamedPlan
    init: Element | None = None
    own_keys: tuple[Any, ...] = ()
    auto: Auto | None = None

    @property
    def alias_of(self) -> str | None:
        """The node that answers for it, where its whole backend is ``Forward[node.x]``; else None."""
        named = self.backend.named
        return None if named is None else named.node

    @property
    def instance_num(self) -> int:
        """How many instances the node has."""
        if isinstance(self.keys.instance_num, int):
            return self.keys.instance_num
        return 1 if self.auto is None else self.auto.instance_num

    @property
    def expression(self) -> str:
        """The text of the expression of an instance."""
        return str(self.backend.call)

    @property
    def roots(self) -> list[Element]:
        """The expressions of the node."""
        return [self.instance, *([self.init] if self.init is not None else [])]

    @property
    def backend(self) -> Element:
        """The element planned from the key ``backend``."""
        inner = self.instance
        return inner.children[0] if inner.parameter == "backend" else inner


@dataclass(eq=False)
class PipelinePlan:
    """A whole pipeline.

    Attributes:
        nodes: The plans of the nodes by name, in the order in which the nodes are built.
        keys: The keys of the pipeline as a whole.
        files: The files that the configuration imports, and what each has registered.
        links: How each node is linked to the others, in file order.
        probes: The probes that are switched on.
        allow_import: Whether the configuration may import code.
        warnings: The keys without effect.
    """

    nodes: dict[str, NodePlan]
    keys: GlobalKeys = field(default_factory=GlobalKeys)
    files: Files = ()
    links: dict[str, Links] = field(default_factory=dict)
    probes: tuple[NamedPlan, ...] = ()
    allow_import: bool = True
    warnings: tuple[Problem, ...] = ()

    @property
    def roots(self) -> list[Element]:
        """The expressions of all nodes."""
        return [root for node in self.nodes.values() for root in node.roots]

    @property
    def threads(self) -> int:
        """How many threads all instances together may use: the budget, by default the CPUs."""
        return self.keys.threads or usable_cpus()

    @cached_property
    def share(self) -> int:
        """How many threads one instance may use; all of a node with ``instance_num = "auto"`` together have as many."""
        own = (node for node in self.nodes.values() if node.alias_of is None)
        parts = [1 if node.keys.instance_num == AUTO else node.instance_num for node in own]
        return max(1, self.threads // max(1, sum(parts)))

    def threads_of(self, name: str, index: int = 0) -> int:
        """How many threads one instance of a node may use."""
        auto = self.nodes[name].auto
        if auto is None:
            return self.share
        if index == auto.instance_num - 1 and auto.wide_threads:
            return auto.wide_threads
        return max(1, self.share // auto.instance_num)


# Functions over the elements of all nodes.


def with_aliased(nodes: Mapping[str, NodePlan], name: str) -> list[str]:
    """Return a node and, as long as the last one found is an alias, the node that answers for it."""
    found = [name]
    while (behind := nodes[found[-1]].alias_of) is not None and behind in nodes:
        found.append(behind)
    return found


def elements_of(roots: Iterable[Element]) -> list[Element]:
    """Return the elements of several expressions, one expression after the other."""
    return [element for root in roots for element in root.walk()]
