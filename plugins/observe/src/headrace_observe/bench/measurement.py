"""Measures one load: warms it up, watches windows of time until they agree, and gives the figures as a `Point`."""

from __future__ import annotations

import threading
import time
from collections import Counter
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Protocol

from headrace_observe.bench.figures import batch_sizes, latency_histogram, latency_ms
from headrace_observe.bench.notes import Notes, Window, agree, gathered
from headrace_observe.bench.rows import load_name

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

__all__ = ["Load", "Plan", "Point", "measure"]

WINDOWS = 3
"""The number of windows in a row that must agree."""


class Load(Protocol):
    """A load that `measure` can run; see `headrace_observe.bench.load`."""

    about: dict[str, Any]
    clock_covers: str
    notes: list[Notes]
    by_rate: bool

    @property
    def ended(self) -> bool:
        """Whether no request will be sent any more, and all are answered."""

    def start(self) -> None:
        """Begin to send."""

    def stop(self) -> None:
        """Send no more."""


@dataclass(frozen=True)
class Plan:
    """How long a load is watched.

    Attributes:
        warm_up_s: Seconds of load before the first window.
        window_s: Seconds of a window. A window in which fewer than ten requests end is made longer.
        tolerance: The most by which three windows in a row may differ from their mean, as a share of the mean.
        seconds: Watch one window of so many seconds. None: watch until three windows agree.
        longest_s: Seconds after which to end even if no three windows agree.
    """

    warm_up_s: float = 1.0
    window_s: float = 1.0
    tolerance: float = 0.05
    seconds: float | None = None
    longest_s: float = 30.0


@dataclass
class Point:
    """The figures of one load on one configuration.

    Attributes:
        load: ``{"kind": "closed", "clients": 10}`` or ``{"kind": "open", "rate": 200.0}``.
        clock: A text that says what the latencies cover.
        window: The requests that ended in the measured time. All figures come from these.
        stable: Whether three windows agreed. None if a fixed time was measured.
        interrupted: Whether Ctrl-C ended the measurement.
        nodes: For each node, the number of batches by their size.
        usage: CPU and GPU use, as `headrace_observe.bench.usage.meter` gives it.
        more: Further keys of the JSON object.
    """

    load: dict[str, Any]
    clock: str
    window: Window = field(repr=False)
    stable: bool | None = None
    interrupted: bool = False
    nodes: dict[str, Counter[int]] = field(default_factory=dict)
    usage: dict[str, Any] = field(default_factory=dict)
    more: dict[str, Any] = field(default_factory=dict)

    @property
    def seconds(self) -> float:
        """How long the window is."""
        return self.window.seconds

    @property
    def ok(self) -> int:
        """How many requests succeeded."""
        return len(self.window.latencies)

    @property
    def failed(self) -> dict[str, int]:
        """How many requests failed, by the code of their error."""
        return dict(sorted(self.window.failed.items()))

    @property
    def throughput_rps(self) -> float:
        """Successful requests per second."""
        return self.window.throughput_rps

    @property
    def batch_size(self) -> dict[str, Any]:
        """Mean and histogram of the sizes of batches, by node."""
        return {name: batch_sizes(sizes) for name, sizes in self.nodes.items()}

    @property
    def latency_ms(self) -> dict[str, float | None]:
        """Mean, p50, p90, p99 and max of the successful requests, in milliseconds."""
        return latency_ms(self.window.latencies)

    def __str__(self) -> str:
        ms, failed = self.latency_ms, self.window.failed.total()
        times = [f"{key} {ms[key]:.3f} ms" for key in ("p50", "p90", "p99") if ms["p50"]]
        figures = [f"{self.throughput_rps:.1f} requests per second", *times, f"{failed} failed"]
        figures += [f"{code}: {text}" for code, text in self.window.errors.items()]
        return f"{load_name(self.load)}: {', '.join(figures)}; the clock: {self.clock}"

    @classmethod
    def of_all(cls, points: Sequence[Point]) -> Point:
        """Join several points of one load into one, as if their windows had been a single window.

        Percentiles come from all latencies. The use of processors is the mean over the time of all windows. The
        use of GPUs is that at the end of the last one.

        Args:
            points: The points, at least one.
        """
        last = points[-1]
        window = Window(0.0, sum(point.window.seconds for point in points))
        nodes: dict[str, Counter[int]] = {}
        for point in points:
            window.latencies.extend(point.window.latencies)
            window.failed.update(point.window.failed)
            window.errors.update(point.window.errors)
            for name, sizes in point.nodes.items():
                nodes.setdefault(name, Counter()).update(sizes)
        usage = dict(last.usage)
        if all("cpu" in point.usage for point in points) and window.seconds:
            used = sum(point.usage["cpu"]["cores"] * point.window.seconds for point in points)
            usage["cpu"] = {**usage["cpu"], "cores": round(used / window.seconds, 3)}
        return replace(last, window=window, nodes=nodes, usage=usage)

    def count_batches(self, before: Mapping[str, Any], after: Mapping[str, Any]) -> None:
        """Set ``nodes`` to the batches that ran between two ``stats()`` of a pipeline."""
        was = _batches(before)
        self.nodes = {
            name: sizes - was.get(name, Counter()) for name, sizes in _batches(after).items()
        }

    def to_dict(self) -> dict[str, Any]:
        """Return the figures as plain data for JSON."""
        return {
            "load": self.load,
            "clock": self.clock,
            "seconds": round(self.seconds, 4),
            "stable": self.stable,
            "interrupted": self.interrupted,
            "ok": self.ok,
            "failed": self.failed,
            "throughput_rps": round(self.throughput_rps, 3),
            "latency_ms": self.latency_ms,
            "latency_histogram": latency_histogram(self.window.latencies),
            "batch_size": self.batch_size,
            **self.usage,
            **self.more,
        }


def measure(
    load: Load,
    plan: Plan,
    *,
    stats: Callable[[], Mapping[str, Any]] = dict,
    meter: Callable[[], Callable[[], dict[str, Any]]] = lambda: dict,
    clock: Callable[[], float] = time.perf_counter,
    wait: Callable[[float], object] | None = None,
) -> Point:
    """Run a load and give its figures. The load is stopped at the end.

    Ctrl-C ends it early. The figures then come from the time until Ctrl-C.

    Args:
        load: The load, not started.
        plan: How long the load is watched.
        stats: The method ``stats`` of the pipeline, for batch sizes.
        meter: Called at the beginning of a window. It gives a function that is called at the end of the window and
            gives the use of CPU and GPU in between.
        clock: Gives the time in seconds. The same clock as that of the load.
        wait: Waits so many seconds.
    """
    watch = _Watch(load, plan, stats, meter, clock, wait or threading.Event().wait)
    try:
        load.start()
        watch.run()
        watch.ended = load.ended
    except KeyboardInterrupt:
        watch.interrupted = True
    finally:
        load.stop()
    return watch.point()


class _Watch:
    """The windows of one load, in order."""

    def __init__(
        self,
        load: Load,
        plan: Plan,
        stats: Callable[[], Mapping[str, Any]],
        meter: Callable[[], Callable[[], dict[str, Any]]],
        clock: Callable[[], float],
        wait: Callable[[float], object],
    ) -> None:
        self._load, self._plan = load, plan
        self._stats, self._meter, self._clock, self._wait = stats, meter, clock, wait
        self.interrupted = self.ended = False
        self._stable: bool | None = None
        # The start of each window: its time, the pipeline's `stats()` and the meter at that time.
        self._starts: list[tuple[float, Mapping[str, Any], Callable[[], dict[str, Any]]]] = []
        self._windows: list[Window] = []
        self._first = 0
        self._begin()

    def _begin(self) -> None:
        self._starts.append((self._clock(), self._stats(), self._meter()))

    def run(self) -> None:
        """Watch until the windows agree, the time is over, or nothing is sent any more."""
        plan = self._plan
        self._rest(plan.warm_up_s)
        # The warm-up is dropped: figures count from here. If there was no warm-up, `_begin` has recorded the counts
        # before the first request. If the load has ended already, there is only the warm-up, and it is kept.
        if plan.warm_up_s and not self._load.ended:
            self._starts.clear()
            self._begin()
        if plan.seconds is not None:
            self._rest(plan.seconds)
            return
        self._stable = False
        last_moment = self._clock() + plan.longest_s
        while not self._stable and self._clock() < last_moment and not self._load.ended:
            self._rest(plan.window_s)
            start, end = self._starts[-1][0], self._clock()
            window = gathered(self._load.notes, start, end)
            if not window.comparable:
                continue
            self._windows.append(window)
            latest = self._windows[-WINDOWS:]
            self._stable = len(latest) == WINDOWS and agree(
                latest, plan.tolerance, by_rate=self._load.by_rate
            )
            if self._stable:
                self._first = len(self._windows) - WINDOWS
            else:
                self._begin()

    def _rest(self, seconds: float) -> None:
        until = self._clock() + seconds
        while not self._load.ended and (left := until - self._clock()) > 0:
            self._wait(min(left, 0.2))

    def point(self) -> Point:
        """Return the figures of the windows that agree; if none agree, of all the time since the warm-up."""
        end = self._clock()
        start, before, used = self._starts[min(self._first, len(self._starts) - 1)]
        if self.ended:  # with the last answer, which was some time before the watch looked
            end = max(start, max(note.last for note in self._load.notes) + 1e-9)
        point = Point(
            load=self._load.about,
            clock=self._load.clock_covers,
            window=gathered(self._load.notes, start, end),
            stable=self._stable,
            interrupted=self.interrupted,
            usage=used(),
        )
        point.count_batches(before, self._stats())
        return point


def _batches(stats: Mapping[str, Any]) -> dict[str, Counter[int]]:
    """Return the counts by batch size of each node from ``stats()``."""
    return {
        name: Counter({int(size): n for size, n in node["batch_size"]["histogram"].items()})
        for name, node in stats.get("nodes", {}).items()
    }
