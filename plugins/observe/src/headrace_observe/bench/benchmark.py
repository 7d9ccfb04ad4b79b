"""Measures pipelines: the class `Benchmark` for Python, and `measure_loads` for ``headrace bench`` and ``tune``."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import headrace
from headrace_observe.bench.load import MOST_CLIENTS, ClosedLoop, OpenLoop
from headrace_observe.bench.measurement import Plan, Point, measure
from headrace_observe.bench.notes import gathered
from headrace_observe.bench.usage import meter

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterable, Sequence

    from typing_extensions import Self

__all__ = ["Benchmark", "LoadSpec", "measure_loads"]

_JOIN_S = 5.0
"""The most seconds to wait, at the end of a load, for requests that are not answered yet."""


class Benchmark:
    """Measure a pipeline from Python, with the method names of torch's ``ThroughputBenchmark``.

    ::

        with headrace_observe.Benchmark({"backend": "Identity", "max": 4}) as bench:
            bench.add_input({"data": 1})
            print(bench.benchmark(clients=4, total=1000, warm_up=20).latency_ms["p99"])

    Args:
        source: An argument of `headrace.pipe`, or a `headrace.Pipeline`, which stays open at the end.
        clock: Gives the time in seconds. For tests.
    """

    def __init__(
        self,
        source: str
        | os.PathLike[str]
        | Mapping[str, Any]
        | headrace.PipelineConfig
        | headrace.Pipeline,
        *,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._own = not isinstance(source, headrace.Pipeline)
        self.pipeline: headrace.Pipeline = (
            source if isinstance(source, headrace.Pipeline) else headrace.pipe(source)
        )
        self._samples: list[dict[str, Any]] = []
        self._clock = clock

    def add_input(self, request: Mapping[str, Any]) -> None:
        """Add a request to send. Several are sent in turn, each as a copy of its dict.

        Raises:
            TypeError: It is no dict.
        """
        if not isinstance(request, Mapping):
            kind = type(request).__name__
            raise TypeError(f'a request is a dict, as {{"data": ...}}; got {kind}')
        self._samples.append(dict(request))

    def run_once(self, request: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Send one request and give the answered copy of it, as a check before measuring.

        Args:
            request: The request. None for the first that was added with `add_input`.

        Raises:
            ValueError: No request was given or added.
        """
        if request is None:
            request = self._first()
        answered: dict[str, Any] = self.pipeline(dict(request))
        return answered

    def benchmark(self, clients: int = 1, total: int = 100, warm_up: int = 10) -> Point:
        """Send ``warm_up`` and then ``total`` requests from ``clients`` threads.

        The clock covers ``pipe(request)`` from call to return in the thread of the client.

        Args:
            clients: Threads, each of which sends its next request when it has its answer.
            total: Requests that are measured, in all.
            warm_up: Requests that are sent before these, in all, and not measured.

        Raises:
            ValueError: Nothing was added with `add_input`, or a number is too small or too large.
        """
        self._first()
        if not 1 <= clients <= MOST_CLIENTS or total < 1 or warm_up < 0:
            raise ValueError(
                f"clients are 1 to {MOST_CLIENTS}, total is at least 1, warm_up at least 0; got "
                f"clients={clients}, total={total}, warm_up={warm_up}"
            )
        if warm_up:
            self._counted(clients, warm_up)
        before, used, began = self.pipeline.stats(), meter(), self._clock()
        load = self._counted(clients, total)
        # A window leaves out requests that ended exactly at its end, so the end lies just after the last request.
        window = gathered(load.notes, began, self._clock() + 1e-9)
        point = Point(load.about, load.clock_covers, window, usage=used())
        point.count_batches(before, self.pipeline.stats())
        return point

    def _first(self) -> dict[str, Any]:
        if not self._samples:
            raise ValueError("there is nothing to send: call add_input first")
        return self._samples[0]

    def _counted(self, clients: int, total: int) -> ClosedLoop:
        load = ClosedLoop(self.pipeline, self._samples, clients, total=total, clock=self._clock)
        load.run()
        return load

    def close(self) -> None:
        """Close the pipeline if it was made here."""
        if self._own:
            self.pipeline.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@dataclass(frozen=True)
class LoadSpec:
    """A load that can be made for any pipeline.

    Attributes:
        clients: The number of clients of a closed loop. None for an open loop.
        about: The description of an open loop in the figures.
        arrivals: Gives the arrival times of an open loop, in seconds from its start.
    """

    clients: int | None = None
    about: dict[str, Any] = field(default_factory=dict)
    arrivals: Callable[[], Iterable[float]] = tuple

    def on(
        self, pipeline: headrace.Pipeline, samples: Sequence[dict[str, Any]]
    ) -> ClosedLoop | OpenLoop:
        """Make the load, not started."""
        if self.clients is not None:
            return ClosedLoop(pipeline, samples, self.clients)
        return OpenLoop(pipeline.submit, samples, self.arrivals(), dict(self.about))


def measure_loads(
    pipeline: headrace.Pipeline,
    samples: Sequence[dict[str, Any]],
    loads: Iterable[LoadSpec],
    plan: Plan,
    done: Callable[[Point], object],
) -> bool:
    """Measure a pipeline under each load in turn.

    Args:
        pipeline: A warm pipeline.
        samples: The requests.
        loads: The loads.
        plan: How long each load is watched.
        done: Called with the point of each load as soon as it is measured.

    Returns:
        Whether all were measured to their end. False after Ctrl-C.
    """
    for spec in loads:
        load = spec.on(pipeline, samples)
        point = measure(load, plan, stats=pipeline.stats, meter=meter)
        done(point)
        if point.interrupted:
            return False
        _settle(load, pipeline)
    return True


def _settle(load: ClosedLoop | OpenLoop, pipeline: headrace.Pipeline) -> None:
    """Wait until open requests are answered, so that they do not run during the next measurement."""
    load.join(_JOIN_S)
    pause = threading.Event()
    until = time.monotonic() + _JOIN_S
    while time.monotonic() < until:
        nodes = pipeline.stats()["nodes"].values()
        waiting = any(node["waiting"] for node in nodes)
        if not waiting and not any(i["busy"] for node in nodes for i in node["instances"]):
            return
        pause.wait(0.01)
