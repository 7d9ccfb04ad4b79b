"""The blueprint of a pipeline: frozen plain data with factories, all that what runs knows of a configuration."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from headrace._run.policies import BestFit, Greedy
from headrace._run.route import is_graph
from headrace._run.shared import Shared

if TYPE_CHECKING:
    from headrace._run.instance import Instance
    from headrace._run.node import Node
    from headrace._run.policies import BatchPolicy, DispatchPolicy
    from headrace._run.starting import BuiltNode


@dataclass(frozen=True)
class Links:
    """How a node is linked to the others.

    Attributes:
        next: The nodes after it.
        map: For each node in its ``map``, the key or keys that each key of that node becomes.
        otherwise: The key ``or``: the node runs only where the node before gave no result.
        each: ``"source:target"``: the node runs once per element of the list under the key ``source``.
        each_errors: ``"none"`` if a failed element gives None.
        reposts: The nodes its backends send requests on to (`headrace.Backend.goes_on_at`).
        name: The name of the node.
        calls: The nodes called in its expression with ``Forward[node.x]``.
    """

    next: tuple[str, ...] = ()
    map: Mapping[str, Mapping[str, str | tuple[str, ...]]] = field(default_factory=dict)
    otherwise: bool = False
    each: str | None = None
    each_errors: str | None = None
    reposts: tuple[str, ...] = ()
    name: str = field(default="", repr=False, compare=False)
    calls: tuple[str, ...] = field(default=(), repr=False, compare=False)

    @property
    def _each_keys(self) -> tuple[str, str]:
        """The two keys of ``each``: that of the list, and that under which the node finds an element."""
        source, _, target = (self.each or "").partition(":")
        return source, target


@dataclass(frozen=True)
class Limits:
    """The queue keys of a node.

    Attributes:
        queue_size: How many requests may wait.
        queue_full: What becomes of a request that finds it full. See `headrace._run.queue.QueueFull`.
        timeout_ms: Longest time from arrival to the end, None for no limit.
        batching_timeout_ms: How long the oldest request waits for others.
        batch_sizes: The weights a batch may have. Empty for all.
        pad: Whether a batch that is too small is filled up with copies of its items, the last one first.
        deadlock_after_s: How long a request waits until circles of calls are looked for. 0 for never.
        shortcut: Whether a caller that finds the node idle may skip the queue.
    """

    queue_size: int = 1024
    queue_full: str = "wait"
    timeout_ms: float | None = None
    batching_timeout_ms: float = 0.0
    batch_sizes: tuple[int, ...] = ()
    pad: bool = False
    deadlock_after_s: float = 5.0
    shortcut: bool = True


@dataclass(frozen=True)
class NodeBlueprint:
    """One node, before anything of it is built.

    Attributes:
        links: Its name, and how it is linked to the other nodes.
        build: Builds its instances. It is given a function that puts the queue of the node before
            them. When it raises, ``Blueprint.close`` closes all that it has built.
        batch_policy, dispatch_policy: The factories of its policies. With None as the second, one object is both policies.
        limits: Its queue keys.
    """

    links: Links
    build: Callable[[Callable[[Sequence[Instance]], Node]], BuiltNode]
    batch_policy: Callable[[], BatchPolicy] = Greedy
    dispatch_policy: Callable[[], DispatchPolicy] | None = BestFit
    limits: Limits = field(default_factory=Limits)

    def policies(self) -> tuple[BatchPolicy, DispatchPolicy]:
        """Make its policies."""
        batch: Any = self.batch_policy()
        return batch, batch if self.dispatch_policy is None else self.dispatch_policy()


@dataclass(frozen=True)
class Blueprint:
    """A whole pipeline, before anything of it is built. It is built once.

    Attributes:
        nodes: The nodes by name, each after the nodes that it calls.
        order: The names of the nodes in file order.
        probes: The factories of the probes, by the names that ``stats()`` gives the probes.
        listen: Called with the probes, before the nodes are built.
        store: What backends share by ``context.store.pipeline``. Building a node may add to it.
        close: Gives up what is still being built, closes what was built, and gives the errors of that.
        config: What ``Pipeline.config`` gives. None for none.
        described: What ``Pipeline.describe()`` says beside the nodes.
    """

    nodes: Mapping[str, NodeBlueprint]
    order: Sequence[str]
    probes: Mapping[str, Callable[[], object]] = field(default_factory=dict)
    listen: Callable[[Any], object] = bool
    store: Shared = field(default_factory=Shared)
    close: Callable[[], Sequence[Exception]] = tuple
    config: Any = None
    described: Callable[[], Mapping[str, Any]] = dict

    @property
    def links(self) -> dict[str, Links]:
        """How each node is linked to the others, in file order."""
        return {name: self.nodes[name].links for name in self.order}

    @property
    def is_graph(self) -> bool:
        """Whether requests walk through a graph, and not through one call of one node."""
        return is_graph(self.links)
