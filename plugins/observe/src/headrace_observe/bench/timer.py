"""The stopwatch `Timer`. Timers may be nested, and may wait for a device."""

from __future__ import annotations

import functools
import importlib
import inspect
import time
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, TypeVar

from headrace_observe.bench.figures import latency_ms
from headrace_observe.extras import library

if TYPE_CHECKING:
    from collections.abc import Callable

    from typing_extensions import Self

    Function = TypeVar("Function", bound=Callable[..., Any])

__all__ = ["Timer"]

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
