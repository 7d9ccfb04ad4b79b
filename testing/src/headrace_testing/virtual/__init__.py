"""Virtual time: a block in which sleeps and timeouts take none."""

from __future__ import annotations

import _thread
import os
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import headrace
from headrace_testing.virtual.standins import Selector, standins, wake
from headrace_testing.virtual.world import BEGIN_S, HIDDEN, Real, World, simulated

if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import FrameType

__all__ = ["virtual_time"]

_WEEK_S = 7 * 24 * 3600.0
_VERSIONS = ((3, 10), (3, 13))


@contextmanager
def virtual_time(*, limit_s: float = _WEEK_S) -> Iterator[Callable[[], float]]:
    """Run a block, and all threads that are started in it, in virtual time.

    One of these threads runs at a time, until it waits. Time stands still while one can run. When none can, it jumps to the next time for
    which one waits. So a pipeline that is made in the block, the sleeps and timeouts of its backends, and coroutines that ``asyncio.run``
    runs in it take as long as the Python code in them, and do the same each time. Threads and pipelines from before the block are as
    they were. At its end open pipelines are closed, and threads that still run are ended where they wait.

    Args:
        limit_s: How many virtual seconds the block may take.

    Yields:
        A clock: it gives the virtual seconds since the block began, to the nanosecond.

    Raises:
        RuntimeError: The block stands in another one or in a coroutine, or this Python is none whose threads are known, and in the
            thread of the block while it waits: nobody can go on, the limit is over, or a thread waits for what is not in virtual time.
    """
    if why := _refusal():
        raise RuntimeError(f"virtual_time: {why}")
    world, me = World(limit_s), threading.get_ident()
    names = standins()
    with ExitStack() as undo:
        undo.callback(_swap, {standin: real for real, standin in names.items()})
        undo.callback(_end, world, me)
        undo.enter_context(_event_loops())
        undo.enter_context(_interrupts(world))
        simulated[me] = world.first
        _swap(names)
        with headrace.plugins.threads_apart(lambda: world.now_s):
            yield lambda: round(world.now_s - BEGIN_S, 9)


def _refusal() -> str:
    """Say why no block can begin here; an empty text where one can."""
    version = sys.version_info[:2]
    if sys.implementation.name != "cpython" or not _VERSIONS[0] <= version <= _VERSIONS[1]:
        return "it knows the threads of CPython 3.10 to 3.13"
    if not getattr(sys, "_is_gil_enabled", lambda: True)() or os.name == "nt":
        return "it runs on Linux and macOS, and where threads take turns"
    if simulated:
        return "a block runs already, and there is one at a time in a process"
    asyncio = sys.modules.get("asyncio")
    if asyncio is not None and asyncio._get_running_loop() is not None:
        return "a loop that runs waits in real time: write `with virtual_time(): asyncio.run(...)`"
    return ""


def _end(world: World, me: int) -> None:
    """End the threads of a block."""
    left = world.end()
    del simulated[me]
    if left:
        problem = (
            "threads of virtual time have not ended: each waits for what is not in virtual time"
        )
        warnings.warn(f"{problem}: {', '.join(left)}", RuntimeWarning, stacklevel=2)


def _swap(names: Mapping[Any, Any]) -> None:
    """Put other objects in place of those that modules have names for, as ``from time import sleep`` makes one."""
    by_id = {id(real): other for real, other in names.items()}
    for name, module in sys.modules.copy().items():
        if name.startswith(__name__):
            continue
        namespace = getattr(module, "__dict__", None)
        if type(namespace) is dict:
            for key, value in namespace.copy().items():
                if id(value) in by_id:
                    namespace[key] = by_id[id(value)]


@contextmanager
def _event_loops() -> Iterator[None]:
    """Let an event loop that waits in virtual time hear of what other threads give it."""
    from asyncio.selector_events import BaseSelectorEventLoop

    loops: Any = BaseSelectorEventLoop
    tell = loops._write_to_self

    def told(loop: Any) -> None:
        tell(loop)
        if isinstance(loop._selector, Selector):
            wake(loop._selector.waiters)

    loops._write_to_self = told
    try:
        yield
    finally:
        loops._write_to_self = tell


@contextmanager
def _interrupts(world: World) -> Iterator[None]:
    """Let Ctrl-C come where it can: neither in the midst of a change of the world, nor in what is one call into C elsewhere."""
    before = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(before):
        yield
        return
    handler = partial(_on_interrupt, world, before)
    signal.signal(signal.SIGINT, handler)
    try:
        yield
    finally:
        if signal.getsignal(signal.SIGINT) is handler:
            signal.signal(signal.SIGINT, before)


def _on_interrupt(
    world: World,
    before: Callable[[int, FrameType | None], object],
    number: int,
    frame: FrameType | None,
) -> None:
    if frame is None or world.first.asleep or not frame.f_code.co_filename.startswith(HIDDEN):
        before(number, frame)
    else:
        Real.start_new_thread(_again, (number,))


def _again(number: int) -> None:
    """Let a signal come again in a moment."""
    Real.sleep(0.001)
    _thread.interrupt_main(signal.Signals(number))
