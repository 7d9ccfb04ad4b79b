"""The plan of a pipeline: its nodes with their expressions, policies and links."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from headrace._language.config.sections import AUTO, GlobalKeys, NodeKeys
from headrace._language.plan.data import Data, Value, plain_copy, read_schema
from headrace._language.plan.declared import narrow
from headrace._language.plan.element import Element, Range, elements_of
from headrace._language.plan.ways import owns_thread
from headrace._run.contract.checked import largest_size
from headrace._run.contract.settings import Links
from headrace._run.graph.route import roots
from headrace._run.process import usable_cpus
from headrace._version import __version__

if TYPE_CHECKING:
    from headrace._language.contract.options import Options
    from headrace._language.expression.tree import Args
    from headrace._language.registry.registry import Files
    from headrace.errors import Problem
else:  # for who asks what the annotations mean
    Args = Files = Options = Problem = Any


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
        wide_threads: The threads of the last of its instances, which serves a request that finds
            the node idle. 0 where it has none.
        short: Whether a backend allows fewer than the threads would carry.
    """

    instance_num: int
    why: str
    wide_threads: int = 0
    short: bool = False


@dataclass(frozen=True)
class Processes(Data):
    """The processes of a node.

    Attributes:
        count: How many.
        loads: How often they load each file of an option, all together, by its path.
    """

    count: int
    loads: Mapping[str, int]


@dataclass(frozen=True, eq=False)
class NodePlan(Data):
    """One node.

    Attributes:
        name: Its name.
        keys: Its keys, checked.
        origins: Where each key comes from, as in `values`, or ``inline`` (``batch_policy``).
        tree: The expression of an instance.
        batch_policy, dispatch_policy: Its policies.
        init: The expression that is built before the node, or None.
        own_keys: The keys that belong to plugins, checked: an object of each class
            (`headrace.hookspecs`).
        auto: What ``instance_num = "auto"`` gives. None where its number is written.
        links: How it is linked to the others.
        threads: How many threads one instance may use.
    """

    name: str
    keys: NodeKeys
    origins: dict[str, Any]
    tree: Element
    batch_policy: NamedPlan
    dispatch_policy: NamedPlan
    init: Element | None = None
    own_keys: tuple[Any, ...] = ()
    auto: Auto | None = None
    links: Links = field(default_factory=Links)
    threads: int = 1

    # Its keys.

    @property
    def values(self) -> Mapping[str, Value]:
        """Its keys, each with its origin."""
        origins = self.origins.items()
        return {key: Value(plain_copy(getattr(self.keys, key)), by) for key, by in origins}

    @property
    def instance_num(self) -> int:
        """How many instances it has."""
        if isinstance(self.keys.instance_num, int):
            return self.keys.instance_num
        return 1 if self.auto is None else self.auto.instance_num

    @property
    def auto_reason(self) -> str | None:
        """Why ``instance_num = "auto"`` gives as many. None where the number is written."""
        return None if self.auto is None else self.auto.why

    @property
    def wide(self) -> bool:
        """Whether the last instance has all threads, and runs only what finds the node idle."""
        return self.auto is not None and self.auto.wide_threads > 0

    @property
    def next(self) -> tuple[str, ...]:
        """The nodes after it."""
        return self.links.next

    # Its expressions.

    @property
    def trees(self) -> tuple[Element, ...]:
        """All its expressions, as they are built."""
        return (self.tree,) if self.init is None else (self.tree, self.init)

    @property
    def expression(self) -> str:
        """The text of the expression of an instance."""
        return str(self.tree.call)

    @property
    def alias_of(self) -> str | None:
        """The node that answers for it, where its whole backend is ``Forward[node.x]``."""
        named = self.tree.named
        return None if named is None else named.node

    # How it runs.

    @property
    def range(self) -> Range:
        """The range of its batches, as classes and keys state it. ``init`` may narrow it."""
        low, high = narrow(self.tree.range, self.keys, alias=self.alias_of is not None)
        return low, largest_size(self.keys.batch_sizes or (), high)

    @property
    def owns_thread(self) -> bool:
        """Whether its batches run in a thread of the instance's own."""
        return owns_thread(self)

    @property
    def run_by(self) -> Literal["caller", "worker", "own thread"]:
        """Who runs its batches.

        A ``"caller"`` may, or only a ``"worker"`` does, since the node has a time limit, or the
        instance's ``"own thread"``.
        """
        if self.owns_thread:
            return "own thread"
        return "caller" if self.keys.timeout_ms is None else "worker"

    @property
    def picked_by(self) -> str | None:
        """The batch policy, if it picks the requests of a batch and does not take the first."""
        cls = self.batch_policy.cls
        return cls.__name__ if cls.picks else None

    @property
    def processes(self) -> Processes | None:
        """Its processes, and how often these load each file together. None for none."""
        repeated = {*self.tree.walk()}
        times = {e: self.instance_num if e in repeated else 1 for e in elements_of(self.trees)}
        outer = [element for element in times if element.cls.builds_elsewhere]
        loads: Counter[str] = Counter()
        for element in dict.fromkeys(elements_of(child for e in outer for child in e.children)):
            for _, value in element.options or ():
                if isinstance(value, Path) and value.exists():
                    loads[str(value)] += times[element]
        return Processes(sum(map(times.__getitem__, outer)), dict(loads)) if outer else None


@dataclass(frozen=True)
class Asked(Data):
    """A distribution needed by the configuration.

    Attributes:
        distribution, version: Its name and version. For registered classes their module or file,
            and an empty version.
        backends: The names of its backends in use, sorted.
    """

    distribution: str
    version: str
    backends: tuple[str, ...]


@dataclass(frozen=True, eq=False)
class Plan(Data):
    """The whole of a configuration.

    Attributes:
        nodes: The nodes by name, in file order.
        order: The names of the nodes, in the order in which they are built.
        keys: The keys of the pipeline as a whole.
        files: The files that the configuration imports, and what each has registered.
        probe_plans: The probes that are switched on.
        allow_import: Whether the configuration may import code.
        warnings: The keys without effect, since a nearer value wins everywhere. ``headrace check``
            warns of more.
    """

    nodes: Mapping[str, NodePlan]
    order: tuple[str, ...]
    keys: GlobalKeys = field(default_factory=GlobalKeys)
    files: Files = ()
    probe_plans: tuple[NamedPlan, ...] = ()
    allow_import: bool = True
    warnings: tuple[Problem, ...] = ()

    @property
    def headrace(self) -> str:
        """The version of Headrace."""
        return __version__

    @property
    def probes(self) -> tuple[str, ...]:
        """The probes, as written."""
        return tuple(probe.text for probe in self.probe_plans)

    @property
    def links(self) -> dict[str, Links]:
        """How each node is linked to the others."""
        return {name: node.links for name, node in self.nodes.items()}

    @property
    def roots(self) -> tuple[str, ...]:
        """The nodes at which a request without ``node_name`` may begin, in file order.

        No other node leads to them.
        """
        return roots(self.links)

    @property
    def expressions(self) -> list[Element]:
        """The expressions of all nodes, as they are built."""
        return [root for name in self.order for root in self.nodes[name].trees]

    @property
    def asks_for(self) -> tuple[Asked, ...]:
        """The distributions of its backends, policies and probes, by name."""
        nodes = self.nodes.values()
        policies = [policy for n in nodes for policy in (n.batch_policy, n.dispatch_policy)]
        brought = {(plan.distribution, plan.version) for plan in (*policies, *self.probe_plans)}
        names: dict[tuple[str, str], set[str]] = {
            by: set() for by in {("headrace", __version__), *brought} - {("", "")}
        }
        for element in elements_of(self.expressions):
            by = (element.distribution, element.version)
            names.setdefault(by, set()).add(element.backend)
        return tuple(Asked(*by, tuple(sorted(names[by]))) for by in sorted(names))

    @property
    def threads(self) -> int:
        """How many threads all instances together may use: the budget, by default the CPUs."""
        return self.keys.threads or usable_cpus()

    @cached_property
    def share(self) -> int:
        """How many threads one instance may use.

        All instances of a node with ``instance_num = "auto"`` together have as many.
        """
        nodes = (node for node in self.nodes.values() if node.alias_of is None)
        parts = [1 if node.keys.instance_num == AUTO else node.instance_num for node in nodes]
        return max(1, self.threads // max(1, sum(parts)))

    def threads_of(self, name: str, index: int = 0) -> int:
        """Return how many threads one instance of a node may use."""
        auto = self.nodes[name].auto
        if auto is None:
            return self.share
        if index == auto.instance_num - 1 and auto.wide_threads:
            return auto.wide_threads
        return max(1, self.share // auto.instance_num)

    @staticmethod
    def json_schema() -> dict[str, Any]:
        """Return the JSON Schema of what `to_dict` gives."""
        return read_schema()


def with_aliased(nodes: Mapping[str, NodePlan], name: str) -> list[str]:
    """Return a node and, as long as the last of them is an alias, the node that answers for it."""
    names = [name]
    while (behind := nodes[names[-1]].alias_of) is not None and behind in nodes:
        names.append(behind)
    return names
