"""Building the elements of a node: children before parents, left to right."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import TYPE_CHECKING

from headrace._build.at import LOOK_S, At, logger_of
from headrace._build.batch_end import BatchEnd, Passage
from headrace._build.door import Bound, Door, FrontDoor, Guarded, NotCallable
from headrace._build.far import FarProcess
from headrace._build.schedulers import device_of, node_scheduler
from headrace._context import InitContext, Shared, shown_progress
from headrace._plan.brackets import is_bare, takes_dependency
from headrace._plan.calls import elements_run
from headrace._plan.choosing import label_of
from headrace._plan.ranges import states_range
from headrace._plan.threads import give_threads
from headrace._portable import told
from headrace._scheduling.calls import OwnThread
from headrace.errors import SetupError
from headrace.words._ranges import inside, ranged
from headrace.words._wiring import Wiring
from headrace.words.background import BackgroundThread
from headrace.words.batching import Batching, InstanceDispatcher
from headrace.words.choice import Fallback
from headrace.words.dag import DagDispatcher, Repost
from headrace.words.process import Process
from headrace.words.queues import Observer, QueueUser, Send

if TYPE_CHECKING:
    from collections.abc import Callable

    from headrace._backend import Backend
    from headrace._build.at import BuildSettings
    from headrace._build.commons import Commons
    from headrace._build.parts import Parts
    from headrace._plan.element import Element, Named, NodePlan, PipelinePlan

__all__ = ["ElementBuilder", "reached_by_name"]

_log = logging.getLogger("headrace.build")


class ElementBuilder:
    """Builds the elements of one node, or of the front of the pipeline.

    Attributes:
        node: The node; None for the pipeline's front.
        registered: The registered instances of the pipeline, by name: while the node is built those
            that will be in service with it, then those that are.
        instances: What ``InstancesRegister`` has built.
        instance_parts: Per instance, what was built for it.
        by_element: What was built from each element, the first time.
        registers: The names under which it registered instances.
        looked_up: The names of registered instances that something built here holds.
    """

    def __init__(
        self,
        plan: PipelinePlan,
        node: NodePlan | None,
        registered: dict[str, Backend],
        shared: Shared,
        pipeline: Commons,
        reached: set[str],
        settings: BuildSettings,
    ) -> None:
        self.node = node
        self.registered = registered
        self.instances: list[Backend] = []
        self.instance_parts: list[Parts] = []
        self.by_element: dict[int, Backend] = {}
        self.registers: set[str] = set()
        self.looked_up: set[str] = set()
        self._plan = plan
        self._shared = shared
        self._pipeline = pipeline
        self._threads = settings.threads
        self._cancelled = settings.cancelled
        self._progress = shown_progress()
        self._shortcut = settings.shortcut
        self._name = node.name if node is not None else "entrypoint"
        self._reached = reached

    def element(self, element: Element, at: At) -> Backend:
        """Build one element and all below it."""
        if self._cancelled():
            raise self._failed("whoever waited for it has given up", element.name, at)
        if element.own_thread:
            return self._in_own_thread(element, at)
        return self._plain(element, at)

    def _plain(self, element: Element, at: At) -> Backend:
        """Build one element, without the thread that may be around it."""
        if element.named is not None:
            return self._named(element, at)
        if issubclass(element.cls, Wiring):
            return self._word(element, at)
        if element.cls in (BackgroundThread, Process):
            return self._in_own_thread(element, at)
        if element.cls is Batching:
            return self._batching(element, at)
        if element.cls is InstanceDispatcher:
            return NotCallable(element.name)
        if element.cls is Fallback:
            return self._fallback(element, at)
        children = tuple([self._child(child, at) for child in element.children])
        return self._backend(element, children, at)

    def _child(self, element: Element, at: At) -> Backend:
        """Build an element for one that will call it."""
        built = self.element(element, at)
        if self.node is None or not isinstance(built, (Door, Guarded)):
            return built
        passage = Passage(built)
        at.end.exit(passage, element)
        return passage

    # Backends.

    def _backend(self, element: Element, children: tuple[Backend, ...], at: At) -> Backend:
        cls = element.cls
        try:
            backend = cls()
        except Exception as error:
            raise self._failed(
                f"{cls.__name__}() failed: {told(error)}",
                element.name,
                at,
                hint="A backend is made without arguments; the work belongs in init.",
            ) from error
        if self.node is None:  # any number of threads are inside a front at a time
            at = replace(at, end=BatchEnd())
        backend._name, backend._lost = element.name, at.lost
        backend._pad = self.node.keys.pad if self.node is not None else False
        if takes_dependency(cls) and children:
            backend._dependency = children[0]
        late = replace(at, parts=at.parts.nested())  # closed after the backend that asked for it
        at.parts.add(backend, at.thread)
        self.by_element.setdefault(id(element), backend)
        if isinstance(backend, QueueUser):
            backend.queues = self._pipeline.queues
            if isinstance(backend, (Send, Observer)):
                at.end.exit(backend, element)
        elif isinstance(backend, DagDispatcher):
            self._pipeline.dispatchers.append(backend)
        elif isinstance(backend, Repost) and element.target is not None:
            backend.target = element.target[0]
        if element.children or element.target is not None:
            run = elements_run(self._plan.nodes, [element])
            backend._reposts = any(one.target is not None for one in run)
        context = self._context(element, children, late, at.end.registering(backend))
        backend._start(element.options, context)
        self._inherit_range(backend, children, at)
        backend._warm()
        if self.node is None and not cls._reentrant:
            return Guarded(at.end.around(backend))
        return backend

    def _inherit_range(self, backend: Backend, children: tuple[Backend, ...], at: At) -> None:
        """Give a container that says nothing of its range that of what is inside."""
        stated = vars(backend).keys() & {"min", "max"} or states_range(type(backend))
        if children and not stated:
            try:
                found = inside(ranged(children))
            except ValueError as error:
                raise self._failed(str(error), backend._label(), at) from error
            backend.min, backend.max = found
            backend._note_range()

    def _failed(self, what: str, backend: str, at: At, hint: str | None = None) -> SetupError:
        return SetupError(what, node=self._name, backend=backend, instance=at.index, hint=hint)

    def _context(
        self,
        element: Element,
        children: tuple[Backend, ...],
        at: At,
        at_batch_end: Callable[[Callable[[], object]], None],
    ) -> InitContext:
        keys = self.node.keys if self.node is not None else None
        index = at.index or 0
        return InitContext(
            node_name=self._name,
            instance_index=index,
            instance_num=keys.instance_num if keys is not None else 1,
            device=device_of(keys, index),
            min=keys.min if keys is not None else None,
            max=keys.max if keys is not None else None,
            batch_sizes=keys.batch_sizes if keys is not None else None,
            threads=self._threads,
            children=children,
            prefixes=tuple((tuple(p), dict(n)) for p, n in element.prefixes),
            logger=logger_of(element.cls.__name__),
            shared=self._shared,
            progress=self._progress,
            cancelled=self._cancelled,
            build=lambda text: self._late(text, element, at),
            instance=at.instance,
            scope=at.scope,
            at_batch_end=at_batch_end,
            allow_import=self._plan.allow_import,
        )

    def _late(self, text: str, element: Element, at: At) -> Backend:
        """Build an expression that a backend asks for in its ``init``."""
        if self._plan.late is None:
            raise SetupError(f"there is no pipeline here to build {text!r} in")
        node = self.node.name if self.node is not None else None
        planned = self._plan.late(text, node, element.frames)
        if at.thread is None:
            give_threads(planned)
        # A batch end that stands around what is built already, and has nothing to do, is left so.
        ends = bool(at.end.functions) or not at.end.sealed
        at = at if ends else replace(at, end=BatchEnd())
        with at.end.trial():
            built = self._child(planned, at)
        return built if ends else at.end.around(built, planned)

    # Words.

    def _word(self, element: Element, at: At) -> Backend:
        word = getattr(element.cls, "word", "")
        if word == "ioc":
            return self._ioc(element, at)
        if word == "reflect":
            return self.element(element.children[0], at)
        if word == "register":
            return self._register(element, at)
        if word == "instances":
            return self._copies(element, at)
        if word == "repost":
            return self._backend(element, (), at)
        for child in element.children:
            self.element(child, at)
        return NotCallable(element.name)

    def _ioc(self, element: Element, at: At) -> Backend:
        scope = Shared(at.scope)
        parts = at.parts.nested(scope, at.thread)
        inner = replace(at, local=dict(at.local), scope=scope, parts=parts)
        for child in element.phases[0]:
            built = (
                self._shared_out(child, inner) if at.index is None else self.element(child, inner)
            )
            # Outside of any instance several of them may reach it; a front's elements are guarded.
            bare = child.named is None and is_bare(child)
            shared = at.index is None and self.node is not None and not bare
            inner.local[id(child)] = self._guarded(built) if shared else built
        return self.element(element.phases[1][0], inner)

    def _guarded(self, built: Backend) -> Backend:
        if isinstance(built, (Door, FrontDoor, NotCallable, Guarded)):
            return built
        return Guarded(built)

    def _shared_out(self, element: Element, at: At) -> Backend:
        """Build, outside of any instance, what several of them may call."""
        at = replace(at, end=BatchEnd())
        return at.end.around(self.element(element, at), element)

    def _register(self, element: Element, at: At) -> Backend:
        built = self._shared_out(element.children[0], at)
        wanted = getattr(element.options, "name", None)
        name = wanted if wanted is not None else f"node.{self._name}"
        if name in self._reached:
            built = self._guarded(built)
        self._note(name, built)
        return built

    def _note(self, name: str, built: Backend) -> None:
        """Take note of an instance that the whole pipeline knows."""
        self.registered[name] = built
        self.registers.add(name)

    def _copies(self, element: Element, at: At) -> Backend:
        if self.node is None:
            raise SetupError("InstancesRegister stands outside of a node")
        for index in range(self.node.keys.instance_num):
            parts, child = at.parts.nested(), element.children[0]
            inner = At.begin(parts, index=index, thread=at.thread, local=at.local)
            built = inner.end.around(self.element(child, inner), child)
            name = f"{self._name}.{index}"
            if name in self._reached:
                built = self._guarded(built)
            self._note(name, built)
            self.instances.append(built)
            self.instance_parts.append(parts)
        return NotCallable(element.name)

    def _lookup(self, named: Named | None, at: At) -> Backend:
        if named is None:
            raise SetupError("a name was not resolved")
        if named.registered:
            self.looked_up.add(named.name)
            built = self.registered.get(named.name)
            if built is None:
                raise SetupError(
                    f"{named.name!r} is asked for in init, where it is not built yet",
                    node=self._name,
                    hint="Name it in the configuration: nodes are built after those they name.",
                )
            return FrontDoor(built) if self.node is None and isinstance(built, Door) else built
        return at.local[id(named.element)]

    def _named(self, element: Element, at: At) -> Backend:
        """Build a name that stands for an instance, perhaps with what it depends on."""
        if not element.children:
            return self._lookup(element.named, at)
        if element.cls is Batching:
            return self._batching(element, at)
        dependency = self._child(element.children[0], at)
        bound = Bound(self._lookup(element.named, at), dependency)
        if bound.leaves:
            at.end.exit(bound, element)
        if not states_range(element.cls):
            bound.min, bound.max = dependency.min, dependency.max
        return bound

    def _in_own_thread(self, element: Element, at: At) -> Backend:
        """Build an element in a thread that will run and close it."""
        written = element.cls is BackgroundThread and not element.own_thread
        build = self.element if written else self._plain
        if element.cls is Process and not element.own_thread:
            build = self._in_process
        inner = element.children[0] if written else element
        thread = OwnThread(f"headrace-{self._name}-{at.index or 0}")
        parts = at.parts.nested()
        parts.add(thread)  # before it runs, so that it is ended whatever comes
        thread.start()
        outer = BackgroundThread()
        outer.thread = thread
        outer._name = element.name if written else "BackgroundThread"
        if written:
            self.by_element.setdefault(id(element), outer)
        inside = replace(at, thread=thread, parts=parts, end=BatchEnd())
        child = inside.end.around(thread.call(build, inner, inside, look_s=LOOK_S), inner)
        context = self._context(element, (child,), at, inside.end.registering(outer))
        outer._start(None, replace(context, prefixes=()))
        parts.add(outer)
        at.end.exit(outer, element)
        return outer

    def _in_process(self, element: Element, at: At) -> Backend:
        """Build an element in a process that will run and close it."""
        backend = Process()
        backend.far = FarProcess(element.children[0], self.node, self._plan, self._threads)
        backend._name, backend._lost = element.name, at.lost
        at.parts.add(backend, at.thread)
        self.by_element.setdefault(id(element), backend)
        backend._start(None, self._context(element, (), at, at.end.registering(backend)))
        return backend

    def _fallback(self, element: Element, at: At) -> Backend:
        reasons = dict(element.unavailable)
        for child in element.children:
            trial = replace(at, parts=at.parts.nested())
            label = label_of(child.call, element.call.children)
            try:
                with at.end.trial():
                    built = self._child(child, trial)
            except Exception as error:  # noqa: BLE001 - any failure to build means: the next one
                trial.parts.close()
                reasons[label] = told(error)
                _log.info("Fallback: %s cannot be built here: %s", label, reasons[label])
                continue
            _log.info("Fallback: %s was chosen", label)
            backend = self._backend(element, (built,), at)
            backend.chosen, backend.reasons = label, reasons  # type: ignore[attr-defined]
            return backend
        listed = "; ".join(f"{name}: {reason}" for name, reason in reasons.items())
        raise self._failed(f"nothing in Fallback can be built here: {listed}", element.name, at)

    def _batching(self, element: Element, at: At) -> Backend:
        if not element.children or self.node is None:
            return NotCallable(element.name)
        child = element.children[0]
        own = child.cls is InstanceDispatcher
        backends = self.instances if own else [self._shared_out(child, at)]
        probes = self._pipeline.probes
        return Door(node_scheduler(self.node, backends, shortcut=self._shortcut, probes=probes))


def reached_by_name(plan: PipelinePlan) -> set[str]:
    """Find the registered instances that some expression calls by name, past any queue."""
    roots = [node.entry for node in plan.nodes.values()]
    roots += [node.init for node in plan.nodes.values() if node.init is not None]
    if plan.entrypoint is not None:
        roots.append(plan.entrypoint)
    return {
        element.named.name
        for root in roots
        for element in root.walk()
        if element.named is not None and element.named.registered
    }
