"""The blueprint of a pipeline: all that the kernel knows of a configuration."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from headrace._run.batches.instance import Instance
from headrace._run.contract.checked import Checked
from headrace._run.contract.policies import BatchPolicy, BestFit, DispatchPolicy, Greedy
from headrace._run.contract.settings import Limits, Links
from headrace._run.contract.shared import Shared
from headrace._run.graph.route import is_graph
from headrace._run.node import Node
from headrace._run.records.probes import Probes

Schedule: TypeAlias = Callable[[Sequence[Instance]], Node]
"""Puts the queue of a node before its instances."""


@dataclass
class BuiltNode:
    """One node, built.

    Attributes:
        node: Its queue and instances.
        close: Closes the parts of the node as a whole. A second call does nothing.
        close_instances: Close the parts of each instance, in the node's order. There may be fewer
            of them.
        enters: A backend of each class here that has a function ``enter``. See `headrace.Backend`.
    """

    node: Node
    close: Callable[[], object]
    close_instances: Sequence[Callable[[], object]]
    enters: Mapping[type[Any], Checked]

    def describe(self, following: Sequence[str]) -> dict[str, Any]:
        """Return what ``Pipeline.describe()`` says of the node."""
        node = self.node
        return {
            "range": [node.min, node.max],
            "instance_num": len(node.instances),
            "owns_thread": any(i.thread is not None for i in node.instances),
            "next": list(following),
        }

    def advice(self, nodes: dict[str, Any], cpu_s: float) -> str | None:
        """Return advice on how the node answers more, for ``stats()``, or None.

        Args:
            nodes: What ``stats()`` shows of each node.
            cpu_s: The processor time of this process since the pipeline was built, in seconds.
        """
        return None


@dataclass(frozen=True)
class NodeBlueprint:
    """One node, before anything of it is built.

    Attributes:
        links: Its name, and how it is linked to the other nodes.
        build: Builds its instances. It is given a function that puts the queue of the node before
            them. When it raises, ``Blueprint.close`` closes all that it has built.
        batch_policy, dispatch_policy: The factories of its policies. With None as the second, one
            object is both policies.
        limits: Its queue keys.
    """

    links: Links
    build: Callable[[Schedule], BuiltNode]
    batch_policy: Callable[[], BatchPolicy] = Greedy
    dispatch_policy: Callable[[], DispatchPolicy] | None = BestFit
    limits: Limits = field(default_factory=Limits)

    def policies(self) -> tuple[BatchPolicy, DispatchPolicy]:
        """Make its policies."""
        batch: Any = self.batch_policy()  # perhaps both
        return batch, batch if self.dispatch_policy is None else self.dispatch_policy()


@dataclass(frozen=True)
class Blueprint:
    """A whole pipeline, before anything of it is built. It is built once.

    Attributes:
        nodes: The nodes by name, each after the nodes that it calls.
        order: The names of the nodes in file order.
        probes: The factories of the probes, by the names that ``stats()`` gives the probes.
        heard: The probes that are made, and told.
        store: What backends share by ``context.store.pipeline``. Building a node may add to it.
        close: Closes what was built, gives up the rest, and returns the errors of that.
        config: What ``Pipeline.config`` gives. None for none.
        described: What ``Pipeline.describe()`` says beside the nodes.
    """

    nodes: Mapping[str, NodeBlueprint]
    order: Sequence[str]
    probes: Mapping[str, Callable[[], object]] = field(default_factory=dict)
    heard: Probes = field(default_factory=Probes)
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
