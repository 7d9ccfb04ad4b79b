"""What the builder asks a class of itself, the building half of what makes a backend a word; and where it stands."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any, Protocol

from headrace._backend import Backend, Shared
from headrace._build.batch_end import BatchEnd
from headrace._plan.word import PlannedWord
from headrace._presence import Presence
from headrace._scheduling.named_queues import Queues

if TYPE_CHECKING:
    from collections.abc import Callable

    from headrace._build.measuring import ElementTimes
    from headrace._build.parts import Parts
    from headrace._build.standing import InThread
    from headrace._engine.blueprint import Dispatcher
    from headrace._plan.element import Element, NodePlan, PipelinePlan
    from headrace._scheduling.calls import OwnThread
    from headrace._scheduling.probes import Probes
    from headrace.errors import SetupError


class Building(Protocol):
    """What the builder does for words.

    Attributes:
        plan: The whole pipeline.
        node: The node; None for the pipeline's front.
        name: Its name.
        threads: How many threads one instance may use.
        commons: What belongs to all nodes.
        instances: The instances of the node that are built so far.
        instance_parts: Per instance, what was built for it.
    """

    plan: PipelinePlan
    node: NodePlan | None
    name: str
    threads: int
    commons: Commons
    instances: list[Backend]
    instance_parts: list[Parts]

    def element(self, element: Element, at: At) -> Backend:
        """Build one element and all below it."""

    def child(self, element: Element, at: At) -> Backend:
        """Build an element for one that will call it."""

    def elsewhere(self, element: Element, at: At) -> Any:
        """Plan an element for one that builds it elsewhere."""

    def backend(self, element: Element, children: tuple[Any, ...], at: At) -> Backend:
        """Make the backend that an element means, and let it begin."""

    def bound(self, element: Element, at: At) -> Backend:
        """Build a name that stands for an instance, with what it depends on."""

    def in_thread(
        self, element: Element, inner: Element, build: Callable[[Element, At], Backend], at: At
    ) -> InThread:
        """Build ``inner`` with ``build`` in a thread that will run and close it."""

    def shared_out(self, element: Element, at: At) -> Backend:
        """Build, outside of any instance, what several of them may call."""

    def guarded(self, built: Backend) -> Backend:
        """Let one thread at a time call a backend, unless it can take more."""

    def register(self, name: str, built: Backend) -> Backend:
        """Make an instance known to the whole pipeline; give what is to be called."""

    def schedule(self, backends: list[Backend]) -> Backend:
        """Put the queue of the node before its instances."""

    def failed(self, what: str, backend: str, at: At, hint: str | None = None) -> SetupError:
        """Make the error that says where something could not be built."""


class Word(PlannedWord):
    """A backend that says how it is planned and built; the defaults are those of a plain one."""

    @classmethod
    def _build(cls, building: Building, element: Element, at: At) -> Backend:
        """Build an element and all below it.

        Args:
            building: The builder.
            element: What to build: the word, or a name for an instance of it with a bracket.
            at: Where the builder stands.
        """
        if element.named is not None:
            return building.bound(element, at)
        prepared = building.elsewhere if element.cls.builds_elsewhere else building.child
        children = tuple([prepared(child, at) for child in element.children])
        return building.backend(element, children, at)

    def _prepare(self, building: Building, element: Element, at: At) -> None:
        """Take what only the builder can give, after the children are built and before ``init``."""

    @classmethod
    def _expect(cls, element: Element, commons: Commons) -> None:
        """Prepare what all nodes share, before any node is built."""


def building_word(cls: type[Backend]) -> type[Word]:
    """Give what answers for a class: itself, or the default for a plain one."""
    return cls if issubclass(cls, Word) else Word


LOOK_S = 0.25
"""How often a thread that waits while something is built, or closed again, looks for an interrupt."""


@dataclass(frozen=True)
class At:
    """Where the builder stands.

    Attributes:
        parts: Where new parts are noted.
        instance, scope: The stores of `InitContext`.
        index: Which instance, None outside of any.
        thread: The thread that builds and will run what is built, None for any.
        local: The instances of enclosing ``IoC``s.
        end: The end of the batches of what is being built.
        lost: Set when the instance can serve no more.
    """

    parts: Parts
    instance: Shared
    scope: Shared
    index: int | None = None
    thread: OwnThread | None = None
    local: dict[int, Backend] = field(default_factory=dict)
    end: BatchEnd = field(default_factory=BatchEnd)
    lost: Presence = field(default_factory=Presence)

    @classmethod
    def begin(cls, parts: Parts, **more: Any) -> At:
        """Begin an instance, or what is outside of any: with a store that is closed after it.

        Args:
            parts: Where the parts of all of it are noted.
            more: Other attributes.
        """
        store = Shared()
        return cls(parts.nested(store, more.get("thread")), store, store, **more)


@dataclass
class Commons:
    """What belongs to all nodes of a pipeline.

    Attributes:
        queues: Its queues, by name.
        dispatchers: The backends that wait for the graph, to run requests through it.
        registered: The registered instances that are in service, by name. It is one and the same
            dict for ever: whoever can still build something looks into it, so a dict of its own
            would keep instances alive that a reload has retired.
        probes: What hears of elements; None where there are no probes.
        times: Durations of elements, which stay over a reload; None where nobody asked for them.
    """

    queues: Queues = field(default_factory=Queues)
    dispatchers: list[Dispatcher] = field(default_factory=list)
    registered: dict[str, Backend] = field(default_factory=dict)
    probes: Probes | None = None
    times: ElementTimes | None = None


@cache
def logger_of(backend: str) -> logging.Logger:
    """Give the logger of a backend; made once, since an interrupt there can leave logging locked."""
    return logging.getLogger(f"headrace.backend.{backend}")
