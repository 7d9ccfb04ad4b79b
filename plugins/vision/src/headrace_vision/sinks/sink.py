"""What frames go to beside the loop: the base class of sinks."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from headrace_vision.clock import Clock
from headrace_vision.sinks.spool import without_image

if TYPE_CHECKING:
    from headrace_vision.frames import Frame
    from headrace_vision.reading.packets import Packets

__all__ = ["Sink", "SpoolingSink"]

SPOOL_BYTES = 64 * 2**20
"""Most bytes that are kept for a sink that fails, unless it says another number."""

CLOSE_S = 5.0
"""Most seconds for which closing waits for what is kept, unless the sink says another number."""


class Sink:
    """Base of everything that frames are written to. All methods run in the sink's own thread.

    A method that raises is called again, with the same frame, after 0.5 s, then after twice that, up to 30 s or `tick_s`, until it
    raises nothing. Frames that come meanwhile are kept, and written in their order. A frame that fails `attempts` times, with
    another error than OSError, while the next one can be written, is lost, so that it does not hold up the others.

    Attributes:
        full: What a frame does when the queue is full: ``"wait"``, so that nothing is missing. ``"drop"``, which drops the
            oldest, so that the sink holds nobody up, and counts it, or ``"keep"``, which keeps it as while the sink fails.
        queue_size: Most frames that wait while the sink works.
        needs_image: Whether frames are written with their images. Without them, more frames are kept.
        attempts: How often a frame that fails is tried, before the next one is tried in its place.
        spool_bytes: Most bytes of frames that are kept while the sink fails. Beyond that the oldest is lost, and counted.
            The newest frame is kept whatever its size.
        spool: The folder in which they are kept, and from where the next run of the program writes them. None for the memory.
            Frames with events are there before they are written, and so is each frame where `full` is ``"keep"``.
        close_s: Most seconds for which closing tries to write what is kept.
        model: The model whose results it gets: of a source with several it gets ``frame.models[model]``, of one without it
            nothing. None for all.
        needs_model: Whether it has no place for several models of a source, so that ``model`` says one.
        copies_packets: Whether it writes what `packets_of` gets, as it came. A source with privacy masks has no such sink.
        missing: How many frames that `write` took are in no file after all, because it failed. They do not count as written.
        tick_s: Seconds between two calls of `tick`, which comes also while no frame does. None for no calls.
        runner_clock, known_as, runner_names: The seconds of the machine, its name and those of all sinks, which the runner sets.
    """

    full: str = "wait"
    queue_size: int = 16
    needs_image: bool = True
    attempts: int = 3
    spool_bytes: int = SPOOL_BYTES
    spool: str | os.PathLike[str] | None = None
    close_s: float = CLOSE_S
    model: str | None = None
    needs_model: bool = False
    copies_packets: bool = False
    missing: int = 0
    tick_s: float | None = None
    runner_clock = Clock()
    known_as: str | None = None
    runner_names: Collection[str] = ()

    @property
    def name(self) -> str:
        """How the sink is called in ``status()``."""
        return type(self).__name__

    def attach(self, status: Callable[[], dict[str, Any]]) -> None:
        """Take the ``status`` of the runner, for sinks that show it; called before `open`."""

    def open(self) -> None:
        """Begin; called before the first frame."""

    def wants(self, frame: Frame) -> bool:
        """Return whether a frame is to be written; called by whoever delivers it."""
        return True

    def reduced(self, frame: Frame) -> Frame:
        """Return what is queued of a frame; called by whoever delivers it."""
        return frame if self.needs_image else without_image(frame)

    def write(self, frame: Frame) -> None:
        """Take one frame, in the order of its source.

        What it raises is logged, and the frame is written again later.
        """
        raise NotImplementedError(f"{type(self).__name__} has no write(self, frame)")

    def tick(self) -> None:
        """Do what is due by `runner_clock`, though no frame comes. What it raises is handled as of `write`."""

    def packets_of(self, source: str) -> Packets | None:
        """Return what gets the packets of a source as they are read, None for nothing. Called before the first frame.

        It is not called for a source with privacy masks.
        """
        return None

    def source_lost(self, source: str, error: str) -> None:
        """Note that a live source is lost, and why. It is tried again. Frames that were read before may follow."""

    def source_found(self, source: str) -> None:
        """Note that a source that was lost gives frames again."""

    def source_ended(self, source: str) -> None:
        """Finish what belongs to a source: no frame of it follows."""

    def close(self) -> None:
        """Finish everything; called once, and again within `close_s` if it raises."""

    def give_up(self) -> int:
        """Finish what can be finished; called last where the sink fails to the end. Return how many written frames are lost."""
        return 0

    def status(self) -> dict[str, Any]:
        """Return more entries for ``status()``, for JSON."""
        return {}


@dataclass(eq=False, repr=False, kw_only=True)
class SpoolingSink(Sink):
    """A sink whose arguments say what is kept while it fails. See `Sink`.

    Raises:
        ValueError: A number is negative.
    """

    spool_bytes: int = SPOOL_BYTES
    spool: str | os.PathLike[str] | None = None
    close_s: float = CLOSE_S

    def __post_init__(self) -> None:
        for name in ("spool_bytes", "close_s"):
            if not getattr(self, name) >= 0:
                raise ValueError(f"{name} is at least 0, not {getattr(self, name)!r}")
        if self.spool is not None and not os.fspath(self.spool):
            raise ValueError("spool is a folder, not an empty text")
