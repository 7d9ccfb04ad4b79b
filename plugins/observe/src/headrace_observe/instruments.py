"""Small instruments for your own code: the word `Benchmark`, the stopwatch `Timer`, and the list of GPUs, `gpus`."""

from __future__ import annotations

import contextlib
import copy
import functools
import importlib
import inspect
import shutil
import time
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, TypeVar

from pydantic import Field

import headrace
from headrace_observe.extras import library
from headrace_observe.figures import latency_ms

if TYPE_CHECKING:
    from collections.abc import Callable

    from typing_extensions import Self

    from headrace import InitContext
    from headrace.keys import Request

    Function = TypeVar("Function", bound=Callable[..., Any])

__all__ = ["Benchmark", "Timer", "gpus"]


class Benchmark(headrace.Backend):
    """Measure the backend inside: ``Benchmark(clients=10,total=1000,warm_up=20)[X]``.

    The requests of the batch are the samples. ``warm_up`` and then ``total`` requests, copies of
    the samples in turn, go through X in a closed loop: each of ``clients`` clients sends its next
    request when it has its answer.

    One thread runs X: it takes as many of the waiting requests as one batch as X and the node's ``max`` allow, the
    oldest first, and the clients are not threads. Only if X is ``Forward[node]`` is each client a thread that calls the node, so that the node's
    queue, policies and instances are measured.

    The figures are those of one load of ``headrace bench --json``, without its histogram of
    latencies: ``throughput_rps``, ``latency_ms`` (``mean``, ``p50``, ``p90``, ``p99``, ``max``),
    ``ok``, ``failed`` by code, ``seconds``, ``batch_size`` (empty if X is ``Forward[node]``: the batches of
    a node are in ``stats()``), ``cpu``, ``gpu``, and ``clock``, which says what the latencies cover. A request that fails is counted in ``failed``. If every request of a sample fails,
    the sample gets its first error instead of the figures.

    Reads:
        data: The data that X reads; other keys of the samples are sent along.

    Writes:
        result: The figures of all samples together, a dict that JSON can hold.

    Batch:
        1 or more samples, or the range of X.

    Raises:
        BackendError: The first error of X for a sample of which no request succeeded.

    Source:
        The word of torchpipe. Clients without threads are Headrace's own.
    """

    class Options(headrace.Options):
        """How many requests are sent, and by how many clients.

        Attributes:
            clients: How many send at a time.
            total: Requests that are measured, of all clients.
            warm_up: Requests before them that are not measured.
        """

        clients: int = Field(10, ge=1, le=10_000)
        total: int = Field(1000, ge=1)
        warm_up: int = Field(20, ge=0)

    takes = 1
    rerun = False  # a second run would take as long again

    def init(self, options: Any, context: InitContext) -> None:
        """Choose the closed loop for X: threads that call a node, or one thread that runs batches."""
        from headrace_observe.inner_load import of_backend, of_node

        self.chosen = options
        self.node_name = context.node_name
        (child,) = context.children
        self.child = child
        most = context.batch.max or max(context.batch.sizes or (), default=None)
        alone = functools.partial(of_backend, most=most)
        self.run_load = of_node if "calls_node" in child.describe() else alone

    def forward(self, batch: list[Request]) -> list[Exception | None] | None:
        """Run the samples through X, and give the figures as ``result``."""
        chosen, dependency = self.chosen, self.child
        samples = [{k: v for k, v in one.items() if k != "result"} for one in batch]
        if chosen.warm_up:
            self.run_load(dependency, samples, chosen.clients, chosen.warm_up, self.node_name)
        point, errors = self.run_load(
            dependency, samples, chosen.clients, chosen.total, self.node_name
        )
        figures = point.to_dict()
        del figures["latency_histogram"]
        for index, request in enumerate(batch):
            if index not in errors:
                request["result"] = copy.deepcopy(figures)  # each result belongs to its caller
        return [errors.get(index) for index in range(len(batch))] if errors else None


# The stopwatch. Timers may be nested, and may wait for a device.

_active: ContextVar[tuple[tuple[Timer, float], ...]] = ContextVar("headrace_timers", default=())
"""The timers that run in this thread or asyncio task, the innermost last, each with the time at which it began."""


class Timer:
    """Time a block, or each call of a function. One object sums up all its runs.

    ::

        load, whole = Timer("load"), Timer("whole")
        with whole:
            with load:
                ...
        print(whole)  # a line per timer: those that ran inside are indented below it

        @Timer("resize")
        def resize(image): ...

    Args:
        name: The name in the text of ``print(timer)``.
        device: ``"cuda"`` or ``"cuda:N"``: wait for all work of that device before each reading of the clock,
            at the beginning and at the end, so that the time covers the work itself and not only its launch.
            None: do not wait.
        clock: Gives the time in seconds. For tests.
        wait: Called instead of waiting for ``device``. For other devices and for tests.

    Attributes:
        name: As given.
        seconds: The time of each run that has ended, in the order of their ends.
        children: The timers that have run directly inside this one.

    Raises:
        TypeError: The name is no text, as with a bare ``@Timer``.
        ValueError: ``device`` is neither ``"cuda"`` nor ``"cuda:N"``.
        RuntimeError: The device does not exist. Raised at the first wait.
        MissingDependencyError: Neither torch nor cuda-bindings is installed, and one is needed to wait for a device.
    """

    def __init__(
        self,
        name: str = "",
        *,
        device: str | None = None,
        clock: Callable[[], float] = time.perf_counter,
        wait: Callable[[], object] | None = None,
    ) -> None:
        if not isinstance(name, str):
            raise TypeError('the name of a Timer is a text: write @Timer("name"), or @Timer()')
        self.name = name
        self.seconds: list[float] = []
        self.children: list[Timer] = []
        self._clock = clock
        self._wait = wait or _waiting_for(device)

    def __enter__(self) -> Self:
        if self._wait is not None:
            self._wait()
        _active.set((*_active.get(), (self, self._clock())))
        return self

    def __exit__(self, *raised: object) -> None:
        try:
            if self._wait is not None:
                self._wait()
        finally:
            ended = self._clock()
            *outer, (_, began) = _active.get()
            _active.set((*outer,))
            self.seconds.append(ended - began)
            around = outer[-1][0] if outer else self
            if around is not self and not any(child is self for child in around.children):
                around.children.append(self)

    def __call__(self, function: Function) -> Function:
        """Time each call of a function. A call of a coroutine function is timed until its coroutine ends.

        Raises:
            TypeError: The function is a generator: a call of it returns before any of its code runs.
        """
        if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
            raise TypeError(
                f"{function.__qualname__} is a generator, whose call returns at once: use the Timer as a "
                "context manager around the loop that takes its values"
            )
        wrapper: Any

        @functools.wraps(function)
        def timed(*args: Any, **options: Any) -> Any:
            with self:
                return function(*args, **options)

        @functools.wraps(function)
        async def timed_to_its_end(*args: Any, **options: Any) -> Any:
            with self:
                return await function(*args, **options)

        wrapper = timed_to_its_end if inspect.iscoroutinefunction(function) else timed
        return wrapper  # type: ignore[no-any-return]

    @property
    def count(self) -> int:
        """How many runs have ended."""
        return len(self.seconds)

    @property
    def total_s(self) -> float:
        """The sum of the times of all runs in seconds; a run inside a run of the same timer is counted in both."""
        return sum(self.seconds)

    @property
    def latency_ms(self) -> dict[str, float | None]:
        """Mean, p50, p90, p99 and max of the times of all runs, in milliseconds."""
        return latency_ms(self.seconds)

    def __str__(self) -> str:
        return "\n".join(self._lines("", ()))

    def _lines(self, indent: str, above: tuple[Timer, ...]) -> list[str]:
        latency = self.latency_ms
        name = f"{indent}{self.name or 'timer'}"
        if latency["mean"] is None:
            lines = [f"{name}: not run"]
        else:
            counted = "1 run" if self.count == 1 else f"{self.count} runs"
            times = ", ".join(f"{key} {latency[key]:.3f} ms" for key in ("mean", "p50", "p99"))
            lines = [f"{name}: {counted}, {times}, total {self.total_s:.3f} s"]
        around = (*above, self)
        for child in self.children:
            if not any(child is timer for timer in around):
                lines += child._lines(indent + "  ", around)
        return lines


def _waiting_for(device: str | None) -> Callable[[], object] | None:
    """Return a function that waits for all work of a device; None for no device."""
    if device is None:
        return None
    kind, _, number = device.partition(":")
    if kind != "cuda" or (number and not number.isdecimal()) or device.endswith(":"):
        raise ValueError(f"a device to wait for is 'cuda' or 'cuda:N', got {device!r}")
    try:
        torch = importlib.import_module("torch")
    except ImportError:
        purpose = "waiting for a CUDA device without torch"
        runtime = library("cuda.bindings.runtime", "gpu", purpose)
        return functools.partial(_synchronize, runtime, int(number) if number else None)
    return functools.partial(_by_torch, torch, device)


def _by_torch(torch: Any, device: str) -> None:
    try:
        torch.cuda.synchronize(device)
    except AssertionError as error:  # which a torch built without CUDA raises
        raise RuntimeError(f"waiting for the device failed: {error}") from error


def _synchronize(runtime: Any, ordinal: int | None) -> None:
    """Wait for a device with cuda-python; the current device of this thread does not change."""
    before = _checked(runtime.cudaGetDevice())
    if ordinal is not None and ordinal != before:
        _checked(runtime.cudaSetDevice(ordinal))
    try:
        _checked(runtime.cudaDeviceSynchronize())
    finally:
        if ordinal is not None and ordinal != before:
            _checked(runtime.cudaSetDevice(before))


def _checked(answer: tuple[Any, ...]) -> Any:
    error, *values = answer
    if int(error) != 0:
        raise RuntimeError(f"waiting for the device failed: CUDA gave {error.name}")
    return values[0] if values else None


# The GPUs.

_VALUES = (
    *("name", "uuid", "memory_used_bytes", "memory_total_bytes"),
    *("utilisation_percent", "temperature_c"),
)


def gpus() -> list[dict[str, Any]]:
    """List the GPUs of this machine. An empty list where there is none.

    Returns:
        Per GPU ``{"index", "name", "uuid", "memory_used_bytes", "memory_total_bytes",
        "utilisation_percent", "temperature_c", "processes"}``. Each process is ``{"pid",
        "memory_bytes"}``. A value that the driver does not give is None. ``utilisation_percent`` is the share of
        time in which a kernel ran, over the last sampling period of the driver (up to a second).

    Raises:
        MissingDependencyError: There is a driver, but nvidia-ml-py is not installed: the extra ``[gpu]``.
    """
    try:
        nvml = importlib.import_module("pynvml")
    except ImportError:
        if shutil.which("nvidia-smi") is None:
            return []
        nvml = library("pynvml", "gpu", "listing GPUs")
    try:
        nvml.nvmlInit()
    except nvml.NVMLError:  # no driver, no driver library, or no permission
        return []
    try:
        return [_gpu(nvml, index) for index in range(nvml.nvmlDeviceGetCount())]
    finally:
        with contextlib.suppress(nvml.NVMLError):
            nvml.nvmlShutdown()


def _gpu(nvml: Any, index: int) -> dict[str, Any]:
    def known(ask: Callable[[], Any]) -> Any:
        try:
            return ask()
        except nvml.NVMLError:
            return None

    handle = known(lambda: nvml.nvmlDeviceGetHandleByIndex(index))
    if handle is None:  # the driver has lost it
        return {"index": index, **dict.fromkeys(_VALUES), "processes": []}
    memory = known(lambda: nvml.nvmlDeviceGetMemoryInfo(handle))
    running = known(lambda: nvml.nvmlDeviceGetComputeRunningProcesses(handle)) or []
    return {
        "index": index,
        "name": known(lambda: nvml.nvmlDeviceGetName(handle)),
        "uuid": known(lambda: nvml.nvmlDeviceGetUUID(handle)),
        "memory_used_bytes": None if memory is None else memory.used,
        "memory_total_bytes": None if memory is None else memory.total,
        "utilisation_percent": known(lambda: nvml.nvmlDeviceGetUtilizationRates(handle).gpu),
        "temperature_c": known(
            lambda: nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU)
        ),
        "processes": [{"pid": p.pid, "memory_bytes": p.usedGpuMemory} for p in running],
    }
