"""All sinks of a runner: which of them gets a frame, and how they are closed."""

from __future__ import annotations

import atexit
import os
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from headrace_vision.options import check_name
from headrace_vision.privacy import refuse_copy
from headrace_vision.sinks.sink import Sink
from headrace_vision.sinks.thread import SinkThread

if TYPE_CHECKING:
    from headrace_vision.clock import Clock
    from headrace_vision.frames import Frame
    from headrace_vision.options import SourceOptions
    from headrace_vision.reading.packets import Packets

__all__ = ["CallableSink", "SinkThreads", "as_sink", "named_sinks"]

LAST_S = 60.0
"""Most seconds for which the end of the process waits for a sink that was closed and still writes."""


class CallableSink(Sink):
    """Calls a function with each frame.

    Args:
        function: Gets a `headrace_vision.Frame`.
    """

    def __init__(self, function: Callable[[Frame], object]) -> None:
        self._function = function

    @property
    def name(self) -> str:
        """The name of the function."""
        return str(getattr(self._function, "__name__", type(self._function).__name__))

    def write(self, frame: Frame) -> None:
        """Call the function."""
        self._function(frame)


def as_sink(value: Any) -> Sink:
    """Return a sink for what was passed in ``sinks``.

    Raises:
        TypeError: It is neither a sink nor callable.
    """
    if isinstance(value, Sink):
        return value
    if callable(value) and not isinstance(value, type):
        return CallableSink(value)
    hint = f"; write {value.__name__}(...)" if isinstance(value, type) else ""
    raise TypeError(
        f"a sink is a headrace_vision.Sink or a function of a frame, not {value!r}{hint}"
    )


def named_sinks(
    sinks: Iterable[Any] | Mapping[str, Any], beside: Mapping[str, Sink] | None = None
) -> dict[str, Sink]:
    """Return sinks by name. Without names of yours it is that of the class or function, and later equal ones get a number.

    Args:
        sinks: Sinks and functions.
        beside: Others that come first and keep their names.

    Raises:
        TypeError: One is neither a sink nor callable.
    """
    if isinstance(sinks, Mapping):
        return {name: as_sink(sink) for name, sink in sinks.items()}
    named: dict[str, Sink] = dict(beside or {})
    for sink in map(as_sink, sinks):
        name, number = sink.name, 2
        while name in named:
            name, number = f"{sink.name}#{number}", number + 1
        named[name] = sink
    return named


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
        folders = [os.path.realpath(spool) for spool in spools if spool is not None]
        for folder in folders:
            if folders.count(folder) > 1:
                raise ValueError(f"{folder} is the spool of one sink: give each its own folder")
        for sink in sinks.values():
            sink.runner_names = tuple(sinks)
        self._threads = [SinkThread(name, sink, clock) for name, sink in sinks.items()]

    def start(self) -> None:
        """Begin to write."""
        for thread in self._threads:
            thread.start()

    @property
    def is_empty(self) -> bool:
        """Whether there are none."""
        return not self._threads

    def check(self, options: SourceOptions) -> None:
        """Refuse a name that no sink has, a sink that has no place for several models, and one that copies what is masked.

        Raises:
            ValueError: There is no such sink, with the nearest known one, or a sink does not fit the source.
        """
        known = [thread.name for thread in self._threads]
        for name in options.sinks or ():
            check_name("sink", name, known)
        for thread in self._threads:
            if options.sinks is not None and thread.name not in options.sinks:
                continue
            if options.privacy_masks and thread.sink.copies_packets:
                refuse_copy(thread.name)
            if options.models is not None and thread.sink.needs_model and thread.sink.model is None:
                raise ValueError(
                    f"the sink {thread.name!r} takes one model of a source: set its model"
                )

    def _of(self, names: Collection[str] | None) -> list[SinkThread]:
        return [thread for thread in self._threads if names is None or thread.name in names]

    def put(self, frame: Frame, names: Collection[str] | None, models: Collection[str]) -> None:
        """Queue a frame for each, or for those of some names, if they take one of the models that it went to."""
        for thread in self._of(names):
            model = thread.sink.model
            if model is None or model in models:
                thread.put(frame if model is None else frame.models.get(model, frame))

    def packets_of(self, source: str, names: Collection[str] | None) -> list[Packets]:
        """Return what gets the packets of a source whose frames go to the sinks of some names."""
        packets = (thread.sink.packets_of(source) for thread in self._of(names))
        return [receiver for receiver in packets if receiver is not None]

    def tell(self, method: str, source: str, *details: str, names: Collection[str] | None) -> None:
        """Queue what became of a source for each, or for those of some names."""
        for thread in self._of(names):
            thread.tell(method, source, *details)

    def close(self, timeout_s: float) -> None:
        """Let each write what is queued and end. Wait for them, see `SinkThread.longest_close_s`.

        The process ends at most `LAST_S` later than one that still writes, so that its files get their end.
        """
        for thread in self._threads:
            thread.close()
        began = time.monotonic()
        for thread in self._threads:
            longest_s = thread.longest_close_s(timeout_s)
            if not thread.join(began + longest_s - time.monotonic(), timeout_s):
                atexit.register(thread.join, LAST_S)

    def status(self) -> dict[str, Any]:
        """Return the status of each by its name."""
        return {thread.name: thread.status() for thread in self._threads}
