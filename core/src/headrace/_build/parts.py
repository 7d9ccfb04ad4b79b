"""What was built, noted so that it can be closed in the right order and thread."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from headrace._backend import Backend
from headrace._scheduling.thread import OwnThread

if TYPE_CHECKING:
    from typing import TypeAlias

    from headrace._context import Shared

    Part: TypeAlias = "Backend | Shared | OwnThread | Parts"

__all__ = ["Parts"]

_log = logging.getLogger("headrace.build")


class Parts:
    """What was built, in order, each with the thread that it belongs to."""

    def __init__(self) -> None:
        self._parts: list[tuple[Part, OwnThread | None]] = []

    def add(self, part: Part, thread: OwnThread | None = None) -> None:
        """Take note of one part, which is closed in ``thread``, None for any."""
        self._parts.append((part, thread))

    def nested(self) -> Parts:
        """Begin parts that are closed together, where the next part would be."""
        inner = Parts()
        self.add(inner)
        return inner

    def close(self) -> list[Exception]:
        """Close all, newest first; give the errors. A second call does nothing.

        Raises:
            BaseException: What is no Exception (Ctrl-C), once all is closed.
        """
        errors: list[Exception] = []
        interrupt: BaseException | None = None
        while self._parts:
            part, thread = self._parts.pop()
            try:
                if isinstance(part, Parts):
                    errors += part.close()
                elif isinstance(part, OwnThread):
                    part.stop()
                else:
                    stop = part._stop if isinstance(part, Backend) else part.close
                    stop() if thread is None else thread.call(stop)
            except Exception as error:  # noqa: BLE001 - the others must be closed as well
                _log.warning("closing %s failed", type(part).__name__, exc_info=error)
                errors.append(error)
            except BaseException as error:  # noqa: BLE001 - so they must here
                interrupt = interrupt or error
        if interrupt is not None:
            raise interrupt
        return errors
