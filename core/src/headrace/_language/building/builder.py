"""Building the nodes of a plan: `Builder` makes the factories that a blueprint holds."""

from __future__ import annotations

import logging
import threading
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeAlias

from headrace._language.building.elements import Build, ElementBuilder, device_of
from headrace._language.building.elsewhere import ChildConfig
from headrace._language.building.node_calls import Alias, NodeCall
from headrace._language.building.parts import BuildSite, CloseStack
from headrace._language.building.wrappers import BatchEnd, InThread, WithBatchEnd
from headrace._language.expression.nesting import with_room
from headrace._language.plan.auto import advice_for
from headrace._language.plan.declared import narrow, no_batch
from headrace._language.plan.key_use import required_keys
from headrace._run.batches.instance import Instance
from headrace._run.blueprint import BuiltNode
from headrace.errors import SetupError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from headrace._language.config.sections import NodeKeys
    from headrace._language.contract.backend import Backend
    from headrace._language.plan.element import Element
    from headrace._language.plan.nodes import NodePlan, Plan
    from headrace._run.node import Node

    Schedule: TypeAlias = Callable[[Sequence[Instance]], Node]
    """Puts the queue of a node before its instances."""


_log = logging.getLogger("headrace.build")


@dataclass(kw_only=True)
class ComposedNode(BuiltNode):
    """One node, built from a plan.

    Attributes:
        plan: The plan of the node.
        elements: The builder of its elements.
    """

    plan: NodePlan
    elements: ElementBuilder

    def describe(self, following: Sequence[str]) -> dict[str, Any]:
        """Return what ``Pipeline.describe()`` says of the node."""
        plan, described = self.plan, super().describe(following)
        threads = self.elements.build.plan.threads_of(plan.name)
        auto = {} if plan.auto is None else {"auto": plan.auto.why}
        described_node = {"expression": plan.expression, **described, "threads": threads, **auto}
        built = self.elements.by_element
        trees = zip(("tree", "init"), plan.trees, strict=False)
        return {**described_node, **{key: root.to_dict(built) for key, root in trees}}

    def advice(self, nodes: dict[str, Any], cpu_s: float) -> str | None:
        """Return what would let the node answer more."""
        return advice_for(self.elements.build.plan, self.plan.name, nodes, cpu_s)


class Builder(Build):
    """Builds the nodes of one plan.

    Args:
        plan: The checked plan.

    Attributes:
        nodes: The nodes that are built.
        behind: What is called once all are. See `headrace.hookspecs`.
    """

    def __init__(self, plan: Plan) -> None:
        super().__init__(plan, ChildConfig)
        self.nodes: dict[str, ComposedNode] = {}
        self.behind: list[Callable[[], object] | None] = []
        self._all = CloseStack()
        self._all.add(self.store)
        self._builds = threading.Lock()

    def close(self) -> list[Exception]:
        """Wait until nothing is being built, close all that was built, and give the errors."""
        # `cancelled` is set before the lock is taken: the thread that builds holds the lock,
        # perhaps for minutes, and gives up only when it sees the event.
        self.cancelled.set()
        with self._builds:
            return self._all.close()

    def node(self, name: str, schedule: Schedule) -> ComposedNode:
        """Build one node and register it."""
        node = self.plan.nodes[name]
        self.nodes[name] = built = with_room(lambda: self._node(node, schedule))  # it recurses
        for look in filter(None, self.behind if len(self.nodes) == len(self.plan.nodes) else ()):
            look()
        return built

    def _node(self, node: NodePlan, schedule: Schedule) -> ComposedNode:
        """Build a node under the lock for which `close` waits."""
        with self._builds:
            if self.cancelled.is_set():
                raise SetupError("the build was given up")
            return self._node_locked(node, schedule)

    def _node_locked(self, node: NodePlan, schedule: Schedule) -> ComposedNode:
        parts = self._all.add_inner()
        builder = ElementBuilder(self, node, parts)
        at = BuildSite.begin(parts)
        if node.init is not None:
            builder.element(node.init, replace(at, end=BatchEnd()))
        backends = builder.instances(node.tree, at)
        fresh = [_instance(i, backend, node.keys) for i, backend in enumerate(backends)]
        if node.auto is not None:
            fresh[-1].wide = node.wide
            level = logging.WARNING if node.auto.short else logging.INFO
            text = "node %r: instance_num = 'auto' gives %d: %s"
            _log.log(level, text, node.name, len(fresh), node.auto.why)
        running = schedule(fresh)
        _report_who_limits(fresh, node, builder.by_element)
        alias = next((backend for backend in backends if isinstance(backend, Alias)), None)
        needs = required_keys(node.tree, builder.by_element) if alias is None else alias.needs
        running.need(needs)
        links = node.links
        called = NodeCall(running, links if links.each is not None else None)
        self.registered[f"node.{node.name}"] = called
        closing = [inner.close for inner in builder.instance_parts]
        return ComposedNode(
            running, parts.close, closing, builder.enters, plan=node, elements=builder
        )


def _report_who_limits(
    instances: Sequence[Instance], node: NodePlan, built: Mapping[Element, Backend]
) -> None:
    """Note which backend sets the ``max`` of each instance; log it where the node asks for more."""
    for instance in instances:
        if (most := instance.backend.max) is None or most != instance.max:
            continue
        leaves = (built[i] for i in node.tree.walk() if i in built and not i.children)
        name = next((leaf._label() for leaf in leaves if leaf.max == most), None)
        instance.limit = (name or instance.backend._label(), most)
        if instance.index == 0 and (wanted_max := node.keys.max) is not None and wanted_max > most:
            text = "node %r: max = %s, and %s takes at most %s: no batch has more. Write max = %s"
            _log.warning(text, node.name, wanted_max, *instance.limit, most)


def _instance(index: int, backend: Backend, keys: NodeKeys) -> Instance:
    """Make an instance of a node, whose range narrows that of the backend.

    Raises:
        SetupError: The range that ``init`` has set leaves no batch.
    """
    alias = isinstance(backend, Alias)
    low, high = narrow((backend.min, backend.max), keys, alias=alias)
    if high is not None and low > high:
        message = no_batch(backend._label(), (backend.min, backend.max), keys)
        raise backend._locate(
            SetupError(message, hint="Change the node's min, max or batch_sizes.")
        )
    thread = None
    if isinstance(backend, InThread):
        thread, backend = backend.thread, backend.child
    device = device_of(keys, index)
    end = backend.batch_end if isinstance(backend, WithBatchEnd) else None
    return Instance(
        index, backend, least=low, most=high, device=device, thread=thread, batch_end=end
    )
