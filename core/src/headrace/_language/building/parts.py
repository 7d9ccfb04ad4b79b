"""`BuildSite` says where the builder stands.

`CloseStack` closes what was built, in the right order and thread.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

from headrace._language.building.wrappers import BatchEnd
from headrace._language.contract.backend import Backend
from headrace._run.contract.checked import Liveness
from headrace._run.contract.shared import Shared
from headrace._run.steps.threads import OwnThread

if TYPE_CHECKING:
    from collections.abc import Callable

    from headrace._language.plan.element import Element

    Part: TypeAlias = "Backend | Shared | OwnThread | CloseStack"


_log = logging.getLogger("headrace.build")


class CloseStack:
    """The parts that were built, in order, each with the thread in which it is closed.

    Args:
        store: The store that the parts share, closed after all of them. None for none.
        thread: The thread in which the store is closed. With None, that is the first own thread
            among the parts, without one, the thread that calls `close`.
    """

    def __init__(self, store: Shared | None = None, thread: OwnThread | None = None) -> None:
        self._parts: list[tuple[Part, OwnThread | None]] = []
        self._store = store
        self._thread = thread

    def add(self, part: Part, thread: OwnThread | None = None) -> None:
        """Add a part that will be closed in ``thread``.

        With None, in the thread that calls `close`.
        """
        self._parts.append((part, thread))

    def add_inner(self, store: Shared | None = None, thread: OwnThread | None = None) -> CloseStack:
        """Add and give inner parts, which are closed when their place among these comes."""
        inner = CloseStack(store, thread)
        self.add(inner)
        return inner

    def close(self) -> list[Exception]:
        """Close all, newest first. Give the errors. A second call does nothing.

        Raises:
            BaseException: An interrupt (Ctrl-C), once all is closed. The parts that own a thread
                are then closed in it without this call waiting for them.
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
                # A build that was given up may go on in this thread. An empty job that has run says
                # that the build has ended and all its parts are noted here.
                closing.close(_nothing, first)
        for place in reversed(range(len(self._parts))):
            # None is left at this place where another thread closed it while this one hung in a
            # part before.
            for part, thread in self._parts[place : place + 1]:
                if isinstance(part, CloseStack):
                    part._close(closing)
                elif isinstance(part, OwnThread):
                    closing.threads.append(part)
                else:
                    stop = part._stop if isinstance(part, Backend) else part.close
                    closing.close(stop, thread)
            # Removed only once it is closed: a second `close` finds the rest.
            del self._parts[place:]
        if self._store is not None:
            thread = self._thread or next(reversed(closing.threads[outside:]), None)
            alive = thread is not None and thread.alive
            closing.close(self._store.close, thread if alive else None)


class _Closing:
    """One call of `CloseStack.close`.

    Attributes:
        threads: The threads to be stopped once all is closed.
        errors: The errors of the parts.
        interrupt: The first interrupt, which is no Exception. None for none.
    """

    def __init__(self) -> None:
        self.threads: list[OwnThread] = []
        self.errors: list[Exception] = []
        self.interrupt: BaseException | None = None

    def close(self, stop: Callable[[], None], thread: OwnThread | None) -> None:
        """Call ``stop()`` in ``thread``, None for this one.

        After Ctrl-C, do not wait for the thread.
        """
        try:
            if thread is None:
                stop()
            elif self.interrupt is None:
                thread.call(stop)
        except Exception as error:  # noqa: BLE001 - the others must be closed as well
            owner = type(getattr(stop, "__self__", stop)).__name__
            _log.warning("closing %s failed", owner, exc_info=error)
            self.errors.append(error)
        except BaseException as error:  # noqa: BLE001 - after an interrupt, too
            self.interrupt = self.interrupt or error
        if thread is not None and self.interrupt is not None:
            thread.post(lambda: _Closing().close(stop, None))


def _nothing() -> None:
    """Do nothing: a thread that has run this job has done all jobs before it."""


@dataclass(frozen=True)
class BuildSite:
    """Where the builder stands.

    Attributes:
        parts: Takes the parts that are built.
        instance, scope: The stores of `InitContext`.
        index: The index of the instance, None outside of any instance.
        thread: The thread that builds and will run the backends. None where no thread owns them.
        local: The instances of the enclosing ``IoC``s, by element.
        end: The end of the batches of what is being built.
        liveness: Says whether the instance can serve now, later, or no more.
    """

    parts: CloseStack
    instance: Shared
    scope: Shared
    index: int | None = None
    thread: OwnThread | None = None
    local: dict[Element, Backend] = field(default_factory=dict)
    end: BatchEnd = field(default_factory=BatchEnd)
    liveness: Liveness = field(default_factory=Liveness)

    @classmethod
    def begin(cls, parts: CloseStack, **more: Any) -> BuildSite:
        """Begin an instance, or what is built outside of any, with a store that is closed last.

        Args:
            parts: Takes the parts of the instance.
            more: Other attributes of `BuildSite`.
        """
        store = Shared()
        return cls(parts.add_inner(store, more.get("thread")), store, store, **more)
