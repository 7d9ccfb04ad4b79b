"""Building the elements of a node: children before parents, left to right."""

from __future__ import annotations

import logging
import threading
from dataclasses import dataclass, field, replace
from functools import cache, partial
from itertools import chain, pairwise
from typing import TYPE_CHECKING, Any

from headrace._language.building.measuring import Measuring
from headrace._language.building.node_calls import Alias, NodeCall, begin_calls
from headrace._language.building.parts import BuildSite, CloseStack
from headrace._language.building.wrappers import BatchEnd, InThread
from headrace._language.contract.backend import Backend, InitContext, ProgressFactory, no_progress
from headrace._language.plan.declared import keys_named, of_children
from headrace._language.plan.key_use import keys_read_by
from headrace._language.plan.ways import edges
from headrace._language.plan.word import Word, word_of
from headrace._run.contract.shared import Shared
from headrace._run.records.probes import Probes
from headrace._run.requests.current import deadline_here, enter_result_of
from headrace._run.requests.keeping import Keeping
from headrace._run.starting import LOOK_S
from headrace._run.steps.threads import OwnThread
from headrace._texts import error_text
from headrace.errors import SetupError
from headrace.keys import DATA

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from headrace._language.config.sections import NodeKeys
    from headrace._language.plan.element import Element
    from headrace._language.plan.nodes import NodePlan, Plan


@cache
def logger_of(backend: str) -> logging.Logger:
    """Return the logger of a backend, from a cache.

    An interrupt inside `getLogger` can leave logging locked.
    """
    return logging.getLogger(f"headrace.backend.{backend}")


@dataclass(eq=False)
class Build:
    """What the builders of all nodes of a pipeline share.

    Attributes:
        plan: The plan of the whole pipeline.
        child_of: Makes what a container is given for a child that is built elsewhere.
        store: What backends share by ``context.store.pipeline``.
        probes: The probes that are switched on now.
        registered: The nodes that are built, as ``node.NAME``.
        cancelled: Set when the build is given up, so that no thread waits for its result any more.
        progress: Shows long work in ``init``.
        seen: What backends see in their context, of the instance of another process for which they
            are built.
    """

    plan: Plan
    child_of: Callable[[ElementBuilder, Element, BuildSite], Any]
    store: Shared = field(default_factory=Shared)
    probes: Probes = field(default_factory=Probes)
    registered: dict[str, Backend] = field(default_factory=dict)
    cancelled: threading.Event = field(default_factory=threading.Event)
    progress: ProgressFactory = no_progress
    seen: Mapping[str, Any] | None = None


@dataclass(eq=False)
class ElementBuilder:
    """Builds the elements of one node.

    Attributes:
        build: What this builder shares with those of other nodes.
        node: The node.
        parts: Takes all that is built, to be closed together. The node's store is closed last.
        by_element: The first backend that was built from each element.
        followed_by: What `InitContext.expression.followed_by` says of each element.
        enters: A backend of each class that has ``enter``.
    """

    build: Build
    node: NodePlan
    parts: CloseStack
    instance_parts: list[CloseStack] = field(default_factory=list)
    by_element: dict[Element, Backend] = field(default_factory=dict)
    followed_by: dict[Element, type[Backend]] = field(default_factory=dict)
    enters: dict[type[Backend], Backend] = field(default_factory=dict)

    def __post_init__(self) -> None:
        node = self.node
        self.name, self.keys = node.name, node.keys
        self.measuring = Measuring(node, self.build.probes)
        self.edges = set(edges(node.tree))
        self.shared = Shared()
        self.parts.add(self.shared)

    def element(self, element: Element, at: BuildSite) -> Backend:
        """Build one element and all below it."""
        if self.build.cancelled.is_set():
            raise self.build_error("the build was given up", element.name, at)
        if element.own_thread and self.build.seen is None:  # else who builds it makes all calls
            return self.in_thread(element, element, at)
        return self._build_here(element, at)

    def _build_here(self, element: Element, at: BuildSite) -> Backend:
        """Build one element in the calling thread, even if it is to own a thread."""
        named = element.named
        if named is None:
            return word_of(element.cls)._build(self, element, at)
        built = self.build.registered if named.registered else at.local
        return built[named.name if named.registered else named.element]  # type: ignore[index]

    def build_plain(self, element: Element, at: BuildSite) -> Backend:
        """Build an element that is no word, and all below it."""
        elsewhere, inner = element.cls.builds_elsewhere, element.children
        prepared = partial(self.build.child_of, self) if elsewhere else self.child
        if element.cls.bracket.late:
            prepared = partial(LateChild, self)
        if word_of(element.cls)._in_turn and not any(p or n for p, n in element.prefixes):
            self.followed_by |= {a: b.cls for a, b in pairwise(inner)}
        return self.backend(element, tuple([prepared(child, at) for child in inner]), at)

    def child(self, element: Element, at: BuildSite) -> Backend:
        """Build an element that another element will call."""
        built = self.element(element, at)
        if isinstance(built, NodeCall):
            built = NodeCall(built.node, built.each)  # an exit of its own
            at.end.exit(built, element)
        return built

    # Backends.

    def backend(self, element: Element, children: tuple[Any, ...], at: BuildSite) -> Backend:
        """Make the backend of an element, and run its ``init`` and ``warm_up``."""
        cls = element.cls
        try:
            backend = cls()
        except Exception as error:
            message = f"{cls.__name__}() failed: {error_text(error)}"
            hint = "A backend is made without arguments; the work belongs in init."
            raise self.build_error(message, element.name, at, hint) from error
        backend._name, backend._liveness = element.name, at.liveness
        if cls.builds_elsewhere:
            backend._child_label = children[0].name
        at.parts.add(backend, at.thread)
        self.by_element.setdefault(element, backend)
        backend._is_last = element in self.edges
        if cls.keeps and at.liveness is not None:
            at.liveness.keeps = True
        if isinstance(backend, Word):
            backend._prepare(self, element, at)
        context = self._context(backend, element, children, at)
        backend._pad = context.batch.pad
        backend._start(element.options, context)
        self._take_range(backend, element, children, at)
        backend._warm()
        if callable(getattr(cls, "enter", None)):
            self.enters[cls] = backend
        if cls.builds_elsewhere or cls.uses_pipeline:
            at.end.exit(backend, element)
        self.measuring.add(backend, element, at.index or 0)
        return backend

    def _take_range(
        self, backend: Backend, element: Element, children: tuple[Any, ...], at: BuildSite
    ) -> None:
        """Set the range of a container from its children, unless its ``init`` has set one."""
        if vars(backend).keys() & {"min", "max"}:
            return
        ranges = [(child._label(), (child.min, child.max)) for child in children]
        try:
            combined = of_children(type(backend), ranges, element.prefixes)
        except ValueError as error:
            raise self.build_error(str(error), backend._label(), at) from error
        if combined is not None:
            backend.min, backend.max = combined
            backend._note_range()

    def build_error(
        self, message: str, backend: str, at: BuildSite, hint: str | None = None
    ) -> SetupError:
        """Make the error that says where a backend could not be built."""
        return SetupError(message, node=self.name, backend=backend, instance=at.index, hint=hint)

    def _context(
        self, backend: Backend, element: Element, children: tuple[Any, ...], at: BuildSite
    ) -> InitContext:
        index = at.index or 0
        keeping = Keeping(backend, lambda: self.build.registered, element._goes_on_at)
        backend._has_emitted = keeping.has_emitted  # type: ignore[method-assign]
        view = {**fields_of(self.node, index), **(self.build.seen or {})}
        batch = InitContext.Batch(**view.pop("batch"), at_end=partial(at.end.register, backend))
        return InitContext(
            **view,
            node_name=self.name,
            threads=self.build.plan.threads_of(self.name, index),
            children=children,
            logger=logger_of(element.cls.__name__),
            progress=self.build.progress,
            cancelled=self.build.cancelled.is_set,
            span=self.measuring.span(element, index),
            allow_import=self.build.plan.allow_import,
            batch=batch,
            store=InitContext.Stores(self.shared, at.instance, at.scope, self.build.store),
            request=InitContext.Requests(
                deadline=deadline_here,
                entered=partial(enter_result_of, element.cls),
                keep=keeping.keep,
                kept=keeping.find_handle,
                emit=keeping.emit,
                call=partial(begin_calls, keeping),
                resume=keeping.resume,
                finish=keeping.finish,
                on_end=keeping.on_end,
                unwanted=keeping.is_unwanted,
                alongside=partial(keeping.alongside, element.cls),
            ),
            expression=InitContext.Expression(
                prefixes=tuple((tuple(p), dict(n)) for p, n in element.prefixes),
                followed_by=self.followed_by.get(element),
                keys_read=partial(self._keys_read, element),
                keys_written=partial(self._keys_written, element),
            ),
            health=InitContext.Health(keeping.away, keeping.back),
        )

    def _keys_read(self, element: Element, place: int = 0) -> tuple[tuple[str, ...], str | None]:
        keys = keys_read_by(element.children[place], self.by_element)
        return tuple(sorted({DATA if key is None else key for key in keys})), keys.get(None)

    def _keys_written(self, element: Element, place: int = 0) -> tuple[str, ...]:
        inside = element.children[place].walk()
        parts = [(self.by_element.get(part, part.cls), part.options) for part in inside]
        named = (keys_named(*part, "writes", optional=True) for part in parts)
        return tuple(sorted(set(chain.from_iterable(named))))

    # Instances, and names.

    def instances(self, root: Element, at: BuildSite) -> list[Backend]:
        """Build the instances of the node, each with stores of its own."""
        backends: list[Backend] = []
        for index in range(self.node.instance_num):
            parts = at.parts.add_inner()
            inner = BuildSite.begin(parts, index=index, thread=at.thread, local=at.local)
            built = inner.end.around(self.element(root, inner), root)
            backends.append(Alias(built, inner.liveness) if isinstance(built, NodeCall) else built)
            self.instance_parts.append(parts)
        return backends

    # Backends that own a thread.

    def in_thread(self, element: Element, inner: Element, at: BuildSite) -> InThread:
        """Build ``inner``, ``element`` or its child, in a thread that will run and close it."""
        build = self._build_here if inner is element else self.element
        thread = OwnThread(f"headrace-{self.name}-{at.index or 0}")
        parts = at.parts.add_inner()
        parts.add(thread)  # noted before it starts, so that an interrupt cannot leave it running
        name = element.name if inner is not element else "BackgroundThread"
        try:
            thread.start()
        except RuntimeError as error:  # no more threads, or the interpreter ends
            message = f"no thread could be started for it: {error}"
            raise self.build_error(message, name, at) from error
        inside = replace(at, thread=thread, parts=parts, end=BatchEnd())
        child = inside.end.around(thread.call(build, inner, inside, look_s=LOOK_S), inner)
        outer = InThread(child, thread, name)
        parts.add(outer)
        at.end.exit(outer, element)
        if inner is not element:
            self.by_element.setdefault(element, outer)
        return outer


class LateChild:
    """A child that its container builds in ``init``, or does not build.

    See `headrace.words.Bracket`.
    """

    def __init__(self, builder: ElementBuilder, element: Element, at: BuildSite) -> None:
        self.name, (self.min, self.max) = element.name, element.range
        self._builder, self._element = builder, element
        # Noted before the container, so that it is closed after it.
        self._at = replace(at, parts=at.parts.add_inner())

    def build(self) -> Backend:
        """Build it; what a build that fails has left is closed."""
        builder, known = self._builder, dict(self._builder.by_element)
        trial = replace(self._at, parts=self._at.parts.add_inner())
        registered = [*trial.end.functions]
        try:
            return builder.child(self._element, trial)
        except Exception:
            trial.parts.close()
            trial.end.functions[:] = registered
            builder.by_element = known  # what has failed is not to be described
            raise

    def _label(self) -> str:
        return self.name


def fields_of(node: NodePlan, index: int) -> dict[str, Any]:
    """Return what a node tells the backends of an instance, wherever it is built."""
    keys = node.keys
    return {
        "instance_index": index,
        "instance_num": node.instance_num,
        "device": device_of(keys, index),
        "batch": {"min": keys.min, "max": keys.max, "sizes": keys.batch_sizes, "pad": keys.pad},
    }


def device_of(keys: NodeKeys, index: int) -> str | None:
    """Give the device of one instance: the instances take the devices of a list in turn."""
    device = keys.device
    return device[index % len(device)] if isinstance(device, tuple) else device
