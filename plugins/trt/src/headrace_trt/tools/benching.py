"""Measures how fast an engine is alone, with trtexec's method, until its throughput is stable."""

from __future__ import annotations

import time
from collections import deque
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from headrace.errors import SetupError
from headrace_tensors.device_arrays import item_bytes
from headrace_trt.engines.signature import read_signature
from headrace_trt.running.execution import Execution
from headrace_trt.running.memory import Buffer, DevicePool, PinnedArena, Stream, close_all
from headrace_trt.running.outputs import nbytes_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from headrace_tensors import Signature
    from headrace_trt.engines.engine import Engine
    from headrace_trt.libraries.cuda import Cuda

__all__ = ["EngineBench", "Lane", "bench_engine"]

_DEPTH = 2
"""The number of runs that are queued ahead on each stream, as in trtexec, so that the device never waits."""

_STABLE = 0.02
_WINDOWS = 3


@dataclass(frozen=True)
class EngineBench:
    """The result of a measurement.

    Attributes:
        shapes: Shape of every input.
        rows: Rows of one run.
        streams: How many contexts ran at a time, each on a stream of its own.
        cuda_graph: Whether runs were recorded as CUDA graphs.
        copies: Whether copies from and to the host are part of each run.
        runs: The number of measured runs.
        seconds: The time of all measured runs together.
        runs_per_s: Runs per second, of all streams.
        latency_ms: Time of one run on the device by events: p50, p90, p99, mean.
        stable: Whether the last windows differed by less than 2 %.
        clock: A text that says what the clock covers.
    """

    shapes: Mapping[str, tuple[int, ...]]
    rows: int
    streams: int
    cuda_graph: bool
    copies: bool
    runs: int
    seconds: float
    runs_per_s: float
    latency_ms: Mapping[str, float]
    stable: bool
    clock: str

    @property
    def rows_per_s(self) -> float:
        """Rows per second, of all streams."""
        return self.runs_per_s * self.rows

    def as_dict(self) -> dict[str, Any]:
        """Return everything, JSON-able."""
        return {**asdict(self), "rows_per_s": self.rows_per_s}


class Lane:
    """One context on a stream of its own, whose inputs and outputs keep their addresses."""

    def __init__(
        self,
        engine: Engine,
        cuda: Cuda,
        signature: Signature,
        shapes: Mapping[str, tuple[int, ...]],
        *,
        profile: int,
        copies: bool,
    ) -> None:
        self._cuda = cuda
        self._copies = copies
        self.stream = Stream(cuda)
        self.pool = DevicePool(cuda, self.stream.handle, engine.ordinal)
        self.arena = PinnedArena(cuda)
        self.buffers: list[Buffer] = []
        self._ways: list[tuple[int, int, int, bool]] = []
        self._events: list[tuple[int, int]] = []
        self._waiting: deque[tuple[int, int]] = deque()
        self.graph: Any = None
        self._values: list[NDArray[Any]] = []
        self._opened: list[Any] = [self.stream, self.pool, self.arena]
        try:
            self.execution = Execution(
                engine, profile, signature, self.stream.handle, pool=self.pool
            )
            self._opened.insert(0, self.execution)
            self._prepare(signature, shapes)
        except BaseException:
            self.close()
            raise

    def _prepare(self, signature: Signature, shapes: Mapping[str, tuple[int, ...]]) -> None:
        """Allocate events, inputs and outputs, and run once."""
        for _ in range(_DEPTH):
            pair = self._cuda.event_create(timing=True), self._cuda.event_create(timing=True)
            self._events.append(pair)
        pointers = {}
        for port in signature.inputs:
            if port.is_shape:
                values = np.asarray(port.best, port.dtype)
                self._values.append(values)
                pointers[port.name] = values.ctypes.data
                continue
            pointers[port.name] = self._buffer(
                _drawn(port.dtype, shapes[port.name]), to_device=True
            )
        outputs = self.execution.set_shapes(shapes, pointers)
        for port in (*signature.outputs, *signature.unwanted):
            if -1 in outputs[port.name]:
                raise SetupError(f"the size of output {port.name!r} depends on the data")
            zeros = np.zeros(nbytes_of(port, outputs[port.name]), np.uint8)
            pointers[port.name] = self._buffer(zeros, to_device=False)
        for name, pointer in pointers.items():
            self.execution.bind(name, pointer)
        self.enqueue()
        self._cuda.stream_synchronize(self.stream.handle)

    def _buffer(self, content: NDArray[np.uint8], *, to_device: bool) -> int:
        nbytes = content.nbytes
        buffer = Buffer(self._cuda)
        self.buffers.append(buffer)
        buffer.reserve(nbytes)
        host, view = self.arena.take(max(nbytes, 1))
        view[:nbytes] = content
        self._cuda.copy(buffer.pointer, host, nbytes, self.stream.handle)
        self._ways.append((buffer.pointer, host, nbytes, to_device))
        return buffer.pointer

    def record(self) -> None:
        """Record a run as a graph."""
        self._cuda.begin_capture(self.stream.handle)
        self.enqueue()
        self.graph = self._cuda.end_capture(self.stream.handle)

    def enqueue(self) -> None:
        """Queue a run, with its copies."""
        if self.graph is not None:
            self._cuda.graph_launch(self.graph, self.stream.handle)
            return
        if self._copies:
            for device, host, nbytes, to_device in self._ways:
                if to_device:
                    self._cuda.copy(device, host, nbytes, self.stream.handle)
        self.execution.enqueue()
        if self._copies:
            for device, host, nbytes, to_device in self._ways:
                if not to_device:
                    self._cuda.copy(host, device, nbytes, self.stream.handle)

    def step(self) -> float | None:
        """Queue a run. If `_DEPTH` runs are queued already, wait for the oldest and give its time in ms; else None."""
        oldest_ms = self.settle() if len(self._waiting) == _DEPTH else None
        start, end = self._events[0]
        self._events.append(self._events.pop(0))
        self._cuda.event_record(start, self.stream.handle)
        self.enqueue()
        self._cuda.event_record(end, self.stream.handle)
        self._waiting.append((start, end))
        return oldest_ms

    def settle(self) -> float:
        """Wait for the oldest queued run, and give its time in ms."""
        start, end = self._waiting.popleft()
        self._cuda.event_synchronize(end)
        return self._cuda.event_elapsed_ms(start, end)

    def close(self) -> None:
        """Give everything back."""
        self._cuda.stream_synchronize(self.stream.handle)
        if self.graph is not None:
            self._cuda.graph_destroy(self.graph)
        for pair in self._events:
            for event in pair:
                self._cuda.event_destroy(event)
        close_all([*self._opened, *self.buffers])


def bench_engine(  # noqa: PLR0913 - all by name
    engine: Engine,
    cuda: Cuda,
    *,
    shapes: Mapping[str, Sequence[int]] | None = None,
    profile: int = 0,
    streams: int = 1,
    cuda_graph: bool = False,
    copies: bool = False,
    window_s: float = 0.25,
    most_s: float = 5.0,
) -> EngineBench:
    """Measure an engine alone, on random inputs.

    Args:
        engine: The engine.
        cuda: The CUDA runtime.
        shapes: Shapes of inputs by name. An input that is left out has the profile's best shape.
        profile: The index of the optimization profile.
        streams: The number of contexts that run at a time, each on a stream of its own.
        cuda_graph: Whether runs are recorded as CUDA graphs.
        copies: Whether each run copies its inputs from pinned memory and its outputs back.
        window_s: Seconds of a window, at most a third of ``most_s``. The measurement ends when the last three windows
            differ by less than 2 %.
        most_s: Seconds after which the measurement ends in any case.

    Raises:
        SetupError: The profile does not take a shape, or the size of an output depends on the data.
    """
    signature = read_signature(engine, profile)
    chosen = _shapes_to_run(signature, shapes or {})
    lanes: list[Lane] = []
    try:
        for _ in range(streams):
            lane = Lane(engine, cuda, signature, chosen, profile=profile, copies=copies)
            lanes.append(lane)
            if cuda_graph:
                lane.record()
        measured = _measure(lanes, min(window_s, most_s / _WINDOWS), most_s)
    finally:
        close_all(list(lanes))
    runs, seconds, times, stable = measured
    sorted_ms = np.sort(np.asarray(times))
    latency = {f"p{q}": float(np.percentile(sorted_ms, q)) for q in (50, 90, 99)}
    covers = (
        "each run with its copies from and to pinned host memory"
        if copies
        else ("each run; inputs and outputs stay on the device")
    )
    batched = next(port for port in signature.inputs if port.batched)
    return EngineBench(
        chosen,
        chosen[batched.name][0],
        streams,
        cuda_graph,
        copies,
        runs,
        seconds,
        runs / seconds,
        {**latency, "mean": float(sorted_ms.mean())},
        stable,
        f"host clock from the first enqueue to the last result; latency by events around {covers}",
    )


def _drawn(dtype: str, shape: Sequence[int]) -> NDArray[np.uint8]:
    """Return the bytes of an input: random numbers for uint8, float16 and float32, because zeros would run faster.

    Other types are zeros. Integers may be indices, and the index 0 always exists.
    """
    random = np.random.default_rng(0)
    if dtype == "uint8":
        return random.integers(0, 256, int(np.prod(shape)), np.uint8)
    if dtype in ("float16", "float32"):
        return random.random(shape, np.float32).astype(dtype).reshape(-1).view(np.uint8)
    return np.zeros(item_bytes(dtype) * int(np.prod(shape)), np.uint8)


def _shapes_to_run(
    signature: Signature, shapes: Mapping[str, Sequence[int]]
) -> dict[str, tuple[int, ...]]:
    """Return the shape of every input: the given one, else the profile's best.

    Raises:
        SetupError: An input is unknown, or the profile does not take a shape.
    """
    names = [port.name for port in signature.inputs]
    for name in shapes:
        if name not in names:
            raise SetupError(f"there is no input {name!r}", hint=f"There are: {', '.join(names)}.")
    chosen = {}
    for port in signature.inputs:
        if port.is_shape:
            if port.name in shapes:
                raise SetupError(
                    f"the values of input {port.name!r} decide shapes: the best of the profile are taken"
                )
            chosen[port.name] = tuple(n for n in port.shape if n is not None)
            continue
        shape = tuple(shapes.get(port.name, port.best))
        fits = len(shape) == len(port.best) and all(
            low <= n <= high for low, n, high in zip(port.low, shape, port.high, strict=True)
        )
        if not fits:
            raise SetupError(f"input {port.name!r} takes {port.text()}, not {list(shape)}")
        chosen[port.name] = shape
    return chosen


def _measure(
    lanes: Sequence[Lane], window_s: float, most_s: float
) -> tuple[int, float, list[float], bool]:
    """Run windows until they agree; give runs, seconds and times of the last windows."""
    windows: deque[tuple[int, float, list[float]]] = deque(maxlen=_WINDOWS)
    begun = time.monotonic()
    stable = False
    while not stable and (len(windows) < _WINDOWS or time.monotonic() - begun < most_s):
        windows.append(_window(lanes, window_s))
        rates = [runs / seconds for runs, seconds, _ in windows]
        stable = len(windows) == _WINDOWS and max(rates) - min(rates) <= _STABLE * max(rates)
    return (
        sum(runs for runs, _, _ in windows),
        sum(seconds for _, seconds, _ in windows),
        [ms for _, _, times in windows for ms in times],
        stable,
    )


def _window(lanes: Sequence[Lane], window_s: float) -> tuple[int, float, list[float]]:
    times: list[float] = []
    begun = time.monotonic()
    while time.monotonic() - begun < window_s:
        for lane in lanes:
            ended_ms = lane.step()
            if ended_ms is not None:
                times.append(ended_ms)
    for lane in lanes:
        while lane._waiting:
            times.append(lane.settle())
    return len(times), time.monotonic() - begun, times
