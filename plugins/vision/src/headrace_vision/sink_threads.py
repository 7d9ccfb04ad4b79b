"""All sinks of a runner: which of them gets a frame, and how they are closed."""

from __future__ import annotations

import atexit
import os
import time
from collections.abc import Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from headrace_vision.options import check_name
from headrace_vision.sinks import Sink, SinkThread

if TYPE_CHECKING:
    from headrace_vision.clock import Clock
    from headrace_vision.copying import Packets
    from headrace_vision.frames import Frame

__all__ = ["SinkThreads"]

LAST_S = 60.0
"""Most seconds for which the end of the process waits for a sink that was closed and still writes."""


class SinkThreads:
    """All sinks of a runner, each in a thread of its own.

    Args:
        sinks: They are opened by `start`, by name.
        clock: The time that passes between attempts.

    Raises:
        ValueError: Two sinks have the same folder as a spool.
        OSError: The folder of a spool cannot be made.
    """

    def __init__(self, sinks: Mapping[str, Sink], clock: Clock) -> None:
        spools = [sink.spool for sink in sinks.values()]
        folders = [os.path.realpath(one) for one in spools if one is not None]
        for folder in folders:
            if folders.count(folder) > 1:
                raise ValueError(f"{folder} is the spool of one sink: give each its own folder")
        self._threads = [SinkThread(name, sink, clock) for name, sink in sinks.items()]

    def start(self) -> None:
        """Begin to write."""
        for one in self._threads:
            one.start()

    @property
    def is_empty(self) -> bool:
        """Whether there are none."""
        return not self._threads

    def check(self, names: Iterable[str] | None, has_models: bool) -> None:
        """Refuse a name that no sink has, and a sink that has no place for the several models of a source.

        Raises:
            ValueError: There is no such sink, with the nearest known one, or a sink has no place for them.
        """
        known = [one.name for one in self._threads]
        for name in names or ():
            check_name("sink", name, known)
        for one in self._threads if has_models else ():
            if one.sink.needs_model and one.sink.model is None and one.name in (names or known):
                raise ValueError(
                    f"the sink {one.name!r} takes one model of a source: set its model"
                )

    def put(self, frame: Frame, names: Collection[str] | None, models: Collection[str]) -> None:
        """Queue a frame for each, or for those of some names, if they take one of the models that it went to."""
        for one in self._threads:
            model = one.sink.model
            if (names is None or one.name in names) and (model is None or model in models):
                one.put(frame if model is None else frame.models.get(model, frame))

    def packets_of(self, source: str, names: Collection[str] | None) -> list[Packets]:
        """Return what gets the packets of a source whose frames go to the sinks of some names."""
        wanted = (one.sink for one in self._threads if names is None or one.name in names)
        return [found for sink in wanted if (found := sink.packets_of(source)) is not None]

    def tell(self, method: str, source: str, *given: str, names: Collection[str] | None) -> None:
        """Queue what became of a source for each, or for those of some names."""
        for one in self._threads:
            if names is None or one.name in names:
                one.tell(method, source, *given)

    def close(self, timeout_s: float) -> None:
        """Let each write what is queued and end. Wait for them, see `SinkThread.longest_close_s`.

        The process ends at most `LAST_S` later than one that still writes, so that its files get their end.
        """
        for one in self._threads:
            one.close()
        began = time.monotonic()
        for one in self._threads:
            longest_s = one.longest_close_s(timeout_s)
            if not one.join(began + longest_s - time.monotonic(), timeout_s):
                atexit.register(one.join, LAST_S)

    def status(self) -> dict[str, Any]:
        """Return the status of each by its name."""
        return {one.name: one.status() for one in self._threads}
