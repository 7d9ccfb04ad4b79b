"""Says of changed files whether they are whole, and of what is missing whether somebody has deleted it."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from headrace_models.sources import GONE_S

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable
    from pathlib import Path

__all__ = ["WholeFiles"]

_STILL_S = 1.0
"""Seconds for which size and time of a file stand still until it counts as whole."""

_log = logging.getLogger("headrace.models")


class WholeFiles:
    """Judges what several looks have seen.

    A file is whole once its size and its time have stood still for a second. A file whose last change was no write, as
    after a rename, is whole at once: a write sets the time of the contents and that of the entry to the same value.

    Attributes:
        waits: Whether something of this look needs another look, a second later.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        """Remember nothing yet; ``clock`` gives the time in seconds."""
        self._clock = clock
        self._files: dict[Path, tuple[Any, float]] = {}
        self._missing: dict[Hashable, float] = {}
        self._missing_before: dict[Hashable, float] = {}
        self._told: set[Path] = set()
        self.waits = False

    def begin(self) -> None:
        """Begin a look."""
        self.waits = False
        self._missing_before, self._missing = self._missing, {}

    def are_whole(self, files: Iterable[Path]) -> bool:
        """Return whether all of some files are whole; those that are not there do not count."""
        whole = [self._is_whole(path) for path in files]
        self.waits |= not all(whole)
        return all(whole)

    def _is_whole(self, path: Path) -> bool:
        now = self._clock()
        try:
            status = path.stat()
        except OSError:
            return True
        state = status.st_size, status.st_mtime_ns, status.st_ino
        before, since = self._files.get(path, (None, now))
        if state != before:
            self._files[path] = state, now
            if before is not None and now - since < _STILL_S and path not in self._told:
                self._told.add(path)
                _log.warning("waiting for %s, which is being written", path)
            since = now
        whole = status.st_ctime_ns > status.st_mtime_ns or now - since >= _STILL_S
        if whole:
            self._told.discard(path)
        return whole

    def is_gone(self, missing: Hashable) -> bool:
        """Return whether something was missing in an earlier look as well, a second ago, and in each look since."""
        now = self._clock()
        since = self._missing[missing] = self._missing_before.get(missing, now)
        gone = now - since >= GONE_S
        self.waits |= not gone
        return gone
