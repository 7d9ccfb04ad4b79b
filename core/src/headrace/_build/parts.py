"""What was built, noted so that it can be closed in the right order and thread."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, TypeAlias

from headrace._backend import Backend, Shared
from headrace._scheduling.calls import OwnThread

if TYPE_CHECKING:
    from collections.abc import Callable

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
            _log.warning("closing %s failed", _owner(stop), exc_info=error)
            self.errors.append(error)
        except BaseException as error:  # noqa: BLE001 - so they must here
            self.interrupt = self.interrupt or error
        if thread is not None and self.interrupt is not None:
            thread.post(lambda: _Closing().close(stop, None), lambda: None)


def _nothing() -> None:
    """Do nothing: whoever waits for this in a thread has waited for what came before."""


def _owner(stop: Callable[[], None]) -> str:
    return type(getattr(stop, "__self__", stop)).__name__
