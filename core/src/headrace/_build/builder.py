"""Building a plan: children before parents, left to right; closed the other way round."""

from __future__ import annotations

import logging
import threading
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from headrace._backend import Backend
from headrace._build.door import Bound, Door, Guarded, NotCallable
from headrace._containers.background import BackgroundThread
from headrace._containers.choice import Fallback
from headrace._containers.scheduling import Batching, InstanceDispatcher
from headrace._containers.wiring import Wiring
from headrace._context import InitContext, Shared
from headrace._plan.resolver import takes_dependency
from headrace._process import usable_cpus
from headrace._registry import policies
from headrace._scheduling.instance import Instance
from headrace._scheduling.scheduler import Limits, Scheduler
from headrace._scheduling.thread import OwnThread
from headrace.errors import HeadraceError, SetupError

if TYPE_CHECKING:
    from headrace._config.nodekeys import NodeKeys
    from headrace._plan.element import Element, Named, NodePlan, PipelinePlan

__all__ = ["Built", "build_pipeline"]

_log = logging.getLogger("headrace.build")

FRONT_WIDTH = 256
"""How many requests may be inside a front of the pipeline's own at a time."""


class Parts:
    """What was built, in order, with the thread each part belongs to."""

    def __init__(self) -> None:
        self._parts: list[tuple[Backend | Shared, OwnThread | None]] = []

    def add(self, part: Backend | Shared, thread: OwnThread | None) -> None:
        """Take note of one part."""
        self._parts.append((part, thread))

    def take(self, other: Parts) -> None:
        """Take over the parts of ``other``."""
        self._parts += other._parts
        other._parts = []

    def close(self) -> list[Exception]:
        """Close all, newest first; give the errors. A second call does nothing."""
        errors: list[Exception] = []
        while self._parts:
            part, thread = self._parts.pop()
            stop = part._stop if isinstance(part, Backend) else part.close
            try:
                stop() if thread is None else thread.call(stop)
            except Exception as error:  # noqa: BLE001 - the others must be closed as well
                _log.warning("closing %s failed", type(part).__name__, exc_info=error)
                errors.append(error)
        return errors


@dataclass
class BuiltNode:
    """One node, built.

    Attributes:
        plan: What it was built from.
        scheduler: Its queue and instances.
        parts: What was built for the node as a whole.
        instances: Per instance, what was built for it.
        roots: Per instance, its outermost backend.
        shared: The store of its instances.
        by_element: What was built from each element of the first instance, for ``describe()``.
    """

    plan: NodePlan
    scheduler: Scheduler
    parts: Parts
    instances: list[Parts] = field(default_factory=list)
    shared: Shared = field(default_factory=Shared)
    by_element: dict[int, Backend] = field(default_factory=dict)
    threads: int = 1


@dataclass
class Built:
    """A whole pipeline, built.

    Attributes:
        nodes: The nodes, in the order in which they were built.
        front: The scheduler of a front that the configuration asks for, or None.
        front_parts: What was built for that front.
    """

    nodes: dict[str, BuiltNode]
    front: Scheduler | None = None
    front_parts: Parts = field(default_factory=Parts)


@dataclass(frozen=True)
class _At:
    """Where the builder stands.

    Attributes:
        node: The node; None for the pipeline's front.
        index: Which instance, None outside of any.
        parts: Where new parts are noted.
        thread: The thread that builds and will run what is built, None for any.
        local: The instances of enclosing ``IoC``s.
    """

    node: NodePlan | None
    parts: Parts
    index: int | None = None
    thread: OwnThread | None = None
    local: dict[int, Backend] = field(default_factory=dict)


class Builder:
    """Builds the nodes of one pipeline."""

    def __init__(self, plan: PipelinePlan, *, shortcut: bool = True) -> None:
        self.plan = plan
        self.shortcut = shortcut
        self.registered: dict[str, Backend] = {}
        self.cancelled = threading.Event()
        self.nodes: dict[str, BuiltNode] = {}
        total = sum(max(1, node.instance_num) for node in plan.nodes.values())
        self.threads = max(1, (plan.threads or usable_cpus()) // max(1, total))
        self._reached = self._reached_by_name()
        self._instances: list[tuple[Backend, Parts]] = []
        self._shared = Shared()
        self._by_element: dict[int, Backend] = {}
        self._open: list[Parts] = []

    def _reached_by_name(self) -> set[str]:
        """Find the registered instances that some expression calls by name, past any queue."""
        roots = [node.entry for node in self.plan.nodes.values()]
        roots += [node.init for node in self.plan.nodes.values() if node.init is not None]
        if self.plan.entrypoint is not None:
            roots.append(self.plan.entrypoint)
        return {
            element.named.name
            for root in roots
            for element in root.walk()
            if element.named is not None and element.named.registered
        }

    # Nodes.

    def build(self) -> Built:
        """Build all; what was built is closed again when something fails."""
        built = Built(self.nodes)
        try:
            for name, node in self.plan.nodes.items():
                self.nodes[name] = self._node(node)
            if self.plan.entrypoint is not None:
                at = _At(None, built.front_parts)
                self._open.append(built.front_parts)
                front = self.element(self.plan.entrypoint, at)
                built.front = self._front(front)
        except BaseException:
            self.cancelled.set()
            for parts in reversed(self._open):
                parts.close()
            raise
        return built

    def _node(self, node: NodePlan) -> BuiltNode:
        self._instances, self._shared, self._by_element = [], Shared(), {}
        parts = Parts()
        self._open.append(parts)
        parts.add(self._shared, None)
        at = _At(node, parts)
        if node.init is not None:
            self.element(node.init, at)
        entry = self.element(node.entry, at)
        door = self.registered.setdefault(f"node.{node.name}", entry)
        scheduler = door.scheduler if isinstance(door, Door) else self._single(door, node.keys, node.name)
        if not isinstance(door, Door):
            self.registered[f"node.{node.name}"] = Door(scheduler)
        return BuiltNode(
            node,
            scheduler,
            parts,
            [own for _, own in self._instances],
            self._shared,
            self._by_element,
            self.threads,
        )

    def _front(self, front: Backend) -> Scheduler:
        if isinstance(front, Door):
            return front.scheduler
        instances = [Instance(i, front, least=1, most=1) for i in range(FRONT_WIDTH)]
        return self._make("entrypoint", instances, None)

    # Elements.

    def element(self, element: Element, at: _At) -> Backend:
        """Build one element and all below it."""
        if element.own_thread:
            return self._in_own_thread(element, at)
        if issubclass(element.cls, Wiring):
            return self._word(element, at)
        if element.named is not None:
            return self._named(element, at)
        if element.cls is BackgroundThread:
            return self._in_own_thread(element.children[0], at, element.name)
        if element.cls is Batching:
            return self._batching(element, at)
        if element.cls is InstanceDispatcher:
            return NotCallable(element.name)
        if element.cls is Fallback:
            return self._fallback(element, at)
        children = tuple(self.element(child, at) for child in element.children)
        return self._backend(element, children, at)

    def _backend(self, element: Element, children: tuple[Backend, ...], at: _At) -> Backend:
        cls = element.cls
        try:
            backend = cls()
        except Exception as error:
            raise SetupError(
                f"{cls.__name__}() failed: {type(error).__name__}: {error}",
                node=at.node.name if at.node else None,
                backend=element.name,
                hint="A backend is made without arguments; the work belongs in init.",
            ) from error
        backend._name = element.name
        backend._pad = at.node.keys.pad if at.node else False
        if takes_dependency(cls) and children and cls.takes == 0:
            backend._dependency = children[0]
            children = ()
        at.parts.add(backend, at.thread)
        self._by_element.setdefault(id(element), backend)
        backend._start(element.options, self._context(element, children, at))
        self._warm_up(backend, at)
        return backend

    def _warm_up(self, backend: Backend, at: _At) -> None:
        try:
            backend.warm_up()
        except HeadraceError:
            raise
        except Exception as error:
            raise SetupError(
                f"warm_up failed: {type(error).__name__}: {error}",
                node=at.node.name if at.node else None,
                backend=backend._label(),
                instance=at.index,
            ) from error

    def _context(self, element: Element, children: tuple[Backend, ...], at: _At) -> InitContext:
        keys = at.node.keys if at.node else None
        index = at.index or 0
        return InitContext(
            node_name=at.node.name if at.node else "entrypoint",
            instance_index=index,
            instance_num=keys.instance_num if keys else 1,
            device=_device(keys, index),
            min=keys.min if keys else None,
            max=keys.max if keys else None,
            batch_sizes=keys.batch_sizes if keys else None,
            threads=self.threads,
            children=children,
            prefixes=tuple((tuple(p), dict(n)) for p, n in element.prefixes),
            logger=logging.getLogger(f"headrace.backend.{element.cls.__name__}"),
            shared=self._shared,
            cancelled=self.cancelled.is_set,
            build=lambda text: self._late(text, at),
        )

    def _late(self, text: str, at: _At) -> Backend:
        """Build an expression that a backend asks for in its ``init``."""
        from headrace._config.problems import Problems
        from headrace._plan.planner import plan_expression

        problems = Problems()
        element = plan_expression(text, self.plan.files, problems)
        problems.raise_if_any()
        if element is None:
            raise SetupError(f"nothing can be built from {text!r}")
        return self.element(element, at)

    # Words.

    def _word(self, element: Element, at: _At) -> Backend:
        word = getattr(element.cls, "word", "")
        if word == "ioc":
            return self._ioc(element, at)
        if word in ("instance", "param"):
            return self._lookup(element.named, at)
        if word == "reflect":
            return self.element(element.children[0], at)
        if word == "register":
            return self._register(element, at)
        if word == "instances":
            return self._copies(element, at)
        for child in element.children:
            self.element(child, at)
        return NotCallable(element.name)

    def _ioc(self, element: Element, at: _At) -> Backend:
        local = dict(at.local)
        inner = replace(at, local=local)
        for child in element.phases[0]:
            built = self.element(child, inner)
            # Outside of any instance several of them may reach it.
            shared = at.index is None and not isinstance(built, (Door, NotCallable, Guarded))
            local[id(child)] = Guarded(built) if shared and not _is_bare(child) else built
        return self.element(element.phases[1][0], inner)

    def _register(self, element: Element, at: _At) -> Backend:
        built = self.element(element.children[0], at)
        wanted = getattr(element.options, "name", None)
        name = wanted if wanted is not None else f"node.{at.node.name if at.node else ''}"
        if name in self._reached and not isinstance(built, (Door, NotCallable)):
            built = Guarded(built)
        self.registered[name] = built
        return built

    def _copies(self, element: Element, at: _At) -> Backend:
        if at.node is None:
            raise SetupError("InstancesRegister stands outside of a node")
        for index in range(at.node.keys.instance_num):
            parts = Parts()
            self._open.append(parts)
            built = self.element(element.children[0], replace(at, index=index, parts=parts))
            name = f"{at.node.name}.{index}"
            if name in self._reached:
                built = Guarded(built)
            self.registered[name] = built
            self._instances.append((built, parts))
        return NotCallable(element.name)

    def _lookup(self, named: Named | None, at: _At) -> Backend:
        if named is None:
            raise SetupError("a name was not resolved")
        if named.registered:
            return self.registered[named.name]
        return at.local[id(named.element)]

    def _named(self, element: Element, at: _At) -> Backend:
        """Build a name that stands for an instance, perhaps with what it depends on."""
        if not element.children:
            return self._lookup(element.named, at)
        if element.cls is Batching:
            return self._batching(element, at)
        dependency = self.element(element.children[0], at)
        return Bound(self._lookup(element.named, at), dependency)

    def _in_own_thread(self, element: Element, at: _At, name: str = "BackgroundThread") -> Backend:
        node = at.node.name if at.node else "entrypoint"
        thread = OwnThread(f"headrace-{node}-{at.index or 0}")
        outer = BackgroundThread()
        outer.thread = thread
        outer._name = name
        plain = replace_own_thread(element)
        try:
            child = thread.call(self.element, plain, replace(at, thread=thread))
            context = self._context(element, (child,), at)
            outer._start(None, replace(context, prefixes=()))
        except BaseException:
            at.parts.close()
            thread.stop()
            raise
        at.parts.add(outer, at.thread)
        return outer

    def _fallback(self, element: Element, at: _At) -> Backend:
        reasons = dict(element.unavailable)
        for child in element.children:
            trial = replace(at, parts=Parts())
            try:
                built = self.element(child, trial)
            except Exception as error:  # noqa: BLE001 - any failure to build means: the next one
                trial.parts.close()
                reasons[child.name] = f"{type(error).__name__}: {error}"
                _log.info("Fallback: %s cannot be built here: %s", child.name, error)
                continue
            at.parts.take(trial.parts)
            _log.info("Fallback: %s was chosen", child.name)
            backend = self._backend(element, (built,), at)
            backend.reasons = reasons  # type: ignore[attr-defined]
            return backend
        listed = "; ".join(f"{name}: {reason}" for name, reason in reasons.items())
        raise SetupError(
            f"nothing in Fallback can be built here: {listed}",
            node=at.node.name if at.node else None,
            backend=element.name,
            instance=at.index,
        )

    # Schedulers.

    def _batching(self, element: Element, at: _At) -> Backend:
        if not element.children or at.node is None:
            return NotCallable(element.name)
        child = element.children[0]
        if child.cls is InstanceDispatcher:
            instances = [
                _instance(index, built, at.node.keys) for index, (built, _) in enumerate(self._instances)
            ]
            _check_coverage(instances, at.node.name)
            return Door(self._make(at.node.name, instances, at.node.keys))
        return Door(self._single(self.element(child, at), at.node.keys, at.node.name))

    def _single(self, backend: Backend, keys: NodeKeys, node: str) -> Scheduler:
        return self._make(node, [_instance(0, backend, keys)], keys)

    def _make(self, node: str, instances: list[Instance], keys: NodeKeys | None) -> Scheduler:
        if keys is None:
            batch, dispatch = policies.make_policies(None, node)
            return Scheduler(node, instances, batch, dispatch, Limits(shortcut=self.shortcut))
        batch, dispatch = policies.make_policies(keys, node)
        limits = Limits(
            queue_size=keys.queue_size,
            queue_full=keys.queue_full,
            timeout_ms=keys.timeout_ms,
            batching_timeout_ms=keys.batching_timeout,
            batch_sizes=keys.batch_sizes or (),
            pad=keys.pad,
            shortcut=self.shortcut,
        )
        return Scheduler(node, instances, batch, dispatch, limits)


def build_pipeline(plan: PipelinePlan, *, shortcut: bool = True) -> Built:
    """Build a whole pipeline; what was built is closed again when something fails.

    Args:
        plan: The checked plan.
        shortcut: Whether a caller that finds a node idle may skip its queue.

    Raises:
        SetupError: A backend could not be built.
        PluginError: A plugin or a library is missing.
    """
    return Builder(plan, shortcut=shortcut).build()


def replace_own_thread(element: Element) -> Element:
    """Give a copy of ``element`` that gets no thread around it."""
    if not element.own_thread:
        return element
    return replace(element, own_thread=False)


def _is_bare(element: Element) -> bool:
    """Tell whether an element is an instance that is given its dependency at each call."""
    return takes_dependency(element.cls) and not element.children


def _device(keys: NodeKeys | None, index: int) -> str | None:
    if keys is None or keys.device is None:
        return None
    if isinstance(keys.device, str):
        return keys.device
    return keys.device[index % len(keys.device)]


def _instance(index: int, backend: Backend, keys: NodeKeys) -> Instance:
    """Make an instance of a node; the node's range narrows that of the backend."""
    low, high = backend.min, backend.max
    sizes = keys.batch_sizes
    least = keys.min if keys.min is not None else (sizes[0] if sizes else None)
    most = keys.max if keys.max is not None else (sizes[-1] if sizes else None)
    if least is not None:
        low = max(low, least)
    if most is not None:
        high = most if high is None else min(high, most)
    if high is None:
        high = max(1, low)
    if low > high:
        raise SetupError(
            f"no batch fits: the node asks for {least or 1} to {most or 'any number'}, "
            f"{backend._label()} takes {backend.min} to {backend.max or 'any number'}",
            node=backend._node,
            backend=backend._label(),
            instance=index,
            hint="Change the node's min and max.",
        )
    thread = None
    if isinstance(backend, BackgroundThread):
        thread, backend = backend.thread, backend.child
    return Instance(
        index, backend, least=low, most=high, device=_device(keys, index), thread=thread
    )


def _check_coverage(instances: list[Instance], node: str) -> None:
    """Refuse instances whose ranges leave a hole between them."""
    if not instances:
        raise SetupError("the node has no instances", node=node)
    spans = sorted((i.min, i.max if i.max is not None else 2**63) for i in instances)
    reached = spans[0][1]
    for low, high in spans[1:]:
        if low > reached + 1:
            raise SetupError(
                f"no instance takes a weight of {reached + 1} to {low - 1}",
                node=node,
                hint="Let the ranges of the instances touch.",
            )
        reached = max(reached, high)
