"""What a program says to the world that it runs in."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

from headrace_testing.interleavings.standins import Lock, sleep
from headrace_testing.interleavings.world import world

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator

T = TypeVar("T")


def check(holds: object, what: str | Callable[[], str]) -> None:
    """End the schedule with the verdict ``broken promise`` unless a condition holds, in whichever thread and however deep.

    Args:
        holds: The condition.
        what: What is wrong if it does not hold. A function makes the text only then.

    Raises:
        AssertionError: It does not hold, and no schedule runs.
    """
    if holds:
        return
    text = what() if callable(what) else what
    if world.runs:
        world.end("broken promise", text)
    raise AssertionError(text)


def settle(seconds: float = 2.0) -> None:
    """Wait until no other thread can run, let virtual time pass, and wait once more: before a program looks at sums."""
    for part in (0.0, seconds):
        sleep(part)
        if world.runs:
            world.wait(world.idlers, "all others to wait", None)


@contextmanager
def ctrl_c(times: int = 1) -> Iterator[None]:
    """Let Ctrl-C come anywhere in a block of the main thread, at most so often; the block ends by it without an error."""
    world.interrupts = times
    world.most_interrupts = max(world.most_interrupts, times)
    if world.tracer is not None:
        world.tracer.begin(sys._getframe(2))
    try:
        yield
    except KeyboardInterrupt:
        pass
    finally:
        world.interrupts, world.all[0].interrupted = 0, False
        if world.tracer is not None:
            world.tracer.forget()


def run_async(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine as `asyncio.run` does, with an event loop that waits under control."""
    import asyncio
    import selectors

    woken = Lock()
    woken.acquire()

    class Selector(selectors.SelectSelector):
        def select(self, timeout: float | None = None) -> list[Any]:
            woken.acquire(timeout=-1 if timeout is None else max(timeout, 0))
            return []

    class Loop(asyncio.SelectorEventLoop):
        def _write_to_self(self) -> None:
            if woken.locked():
                woken.release()

    loop = Loop(Selector())
    try:
        return loop.run_until_complete(coroutine)
    finally:
        loop.close()
