"""Where the builder stands, and what holds for all that it builds."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

from headrace._build.batch_end import BatchEnd
from headrace._context import Shared
from headrace._presence import Presence
from headrace._scheduling.named_queues import Queues

if TYPE_CHECKING:
    from collections.abc import Callable

    from headrace._backend import Backend
    from headrace._build.measuring import ElementTimes, Measuring
    from headrace._build.parts import Parts
    from headrace._engine.blueprint import Dispatcher
    from headrace._scheduling.calls import OwnThread
    from headrace._scheduling.probing import Probes
    from headrace._scheduling.scheduler import Scheduler


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


class BuildSettings(NamedTuple):
    """What holds for all elements of a pipeline.

    Attributes:
        threads: The share of one instance.
        cancelled: Whether the build is to be given up.
        schedule: Puts the queue of the node before its instances.
        measuring: What is measured of the elements; None for nothing.
    """

    threads: int
    cancelled: Callable[[], bool]
    schedule: Callable[[list[Backend]], Scheduler]
    measuring: Measuring | None = None


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
