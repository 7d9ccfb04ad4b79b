"""Where the builder stands, and what was built there, to be closed in the right order and thread."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

from headrace._backend import Backend, Shared
from headrace._build.standing import BatchEnd
from headrace._checked import Presence
from headrace._scheduling.own_thread import OwnThread
from headrace._scheduling.probes import Probes

if TYPE_CHECKING:
    from collections.abc import Callable

    from headrace._engine.blueprint import Dispatcher, NamedQueue
    from headrace._scheduling.instance import Timings

    ElementTimes: TypeAlias = dict[tuple[str, int, str], Timings]
    """Durations by node, index of the instance and path of the element."""

    Part: TypeAlias = "Backend | Shared | OwnThread | Parts"


_log = logging.getLogger("headrace.build")


class Parts:
    """What was built, in order, each with the thread that it belongs to.

    Args:
        store: What they share, closed after all of them; None for nothing.
        thread: The thread around them, in which the store is closed. Where there is none, it is
            the first own thread among them, or else whichever thread closes them.
    """

    def __init__(self, store: Shared | None = None, thread: OwnThread | None = None) -> None:
        self._parts: list[tuple[Part, OwnThread | None]] = []
        self._store = store
        self._thread = thread

    def add(self, part: Part, thread: OwnThread | None = None) -> None:
        """Take note of one part, which is closed in ``thread``, None for any."""
        self._parts.append((part, thread))

    def nested(self, store: Shared | None = None, thread: OwnThread | None = None) -> Parts:
        """Begin parts that are closed together, where the next part would be."""
        inner = Parts(store, thread)
        self.add(inner)
        return inner

    def close(self) -> list[Exception]:
        """Close all, newest first; give the errors. A second call does nothing.

        Raises:
            BaseException: What is no Exception (Ctrl-C), once all is closed. What has a thread of
                its own is closed there then, and not waited for.
        """
        closing = _Closing()
        try:
            self._close(closing)
        finally:
            for thread in closing.threads:
                thread.stop()
        if closing.interrupt is not None:
            raise closing.interrupt
        return closing.errors

    def _close(self, closing: _Closing) -> None:
        outside = len(closing.threads)
        if self._parts:
            first, _ = self._parts[0]
            if isinstance(first, OwnThread) and first.alive:
                closing.close(_nothing, first)  # what it still builds is noted here by then
        while self._parts:
            part, thread = self._parts[-1]  # it stays there until it is closed
            if isinstance(part, Parts):
                part._close(closing)
            elif isinstance(part, OwnThread):
                closing.threads.append(part)
            else:
                stop = part._stop if isinstance(part, Backend) else part.close
                closing.close(stop, thread)
            self._parts.pop()
        if self._store is not None:
            own = self._thread or next(reversed(closing.threads[outside:]), None)
            closing.close(self._store.close, own if own is not None and own.alive else None)


class _Closing:
    """One turn of closing parts.

    Attributes:
        threads: The threads to be stopped once all is closed.
        errors: What was raised.
        interrupt: What was raised that is no Exception, None for nothing.
    """

    def __init__(self) -> None:
        self.threads: list[OwnThread] = []
        self.errors: list[Exception] = []
        self.interrupt: BaseException | None = None

    def close(self, stop: Callable[[], None], thread: OwnThread | None) -> None:
        """Call ``stop()`` in ``thread``, None for this one; it is not waited for after Ctrl-C."""
        try:
            if thread is None:
                stop()
            elif self.interrupt is None:
                thread.call(stop)
        except Exception as error:  # noqa: BLE001 - the others must be closed as well
            owner = type(getattr(stop, "__self__", stop)).__name__
            _log.warning("closing %s failed", owner, exc_info=error)
            self.errors.append(error)
        except BaseException as error:  # noqa: BLE001 - so they must here
            self.interrupt = self.interrupt or error
        if thread is not None and self.interrupt is not None:
            thread.post(lambda: _Closing().close(stop, None), lambda: None)


def _nothing() -> None:
    """Do nothing: whoever waits for this in a thread has waited for what came before."""


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
        probes: Those that are switched on now.
        times: Durations of elements, which stay over a reload; None where nobody asked for them.
    """

    queues: dict[str, NamedQueue] = field(default_factory=dict)
    dispatchers: list[Dispatcher] = field(default_factory=list)
    registered: dict[str, Backend] = field(default_factory=dict)
    probes: Probes = field(default_factory=Probes)
    times: ElementTimes | None = None
