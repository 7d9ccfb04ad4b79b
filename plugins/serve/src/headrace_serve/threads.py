"""Calls in other threads: of functions that would block the event loop, for minutes or for as long as many elements take."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["MANY", "Pool", "call_by_size", "call_in_thread"]

T = TypeVar("T")

MANY = 4096
"""More elements than these are read and written in another thread: they take the event loop about a millisecond."""


class Pool:
    """A bounded number of threads for one purpose, so that it takes none from any other.

    Args:
        purpose: Names the threads.
        most: The number of threads.
    """

    def __init__(self, purpose: str, most: int) -> None:
        self._threads = ThreadPoolExecutor(most, f"headrace-serve-{purpose}")

    async def run(self, function: Callable[..., T], *args: Any) -> T:
        """Call a function in one of the threads. What waits for one is dropped with who awaits it."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._threads, partial(function, *args))


_VALUES = Pool("values", 4)


async def call_by_size(elements: int, function: Callable[..., T], *args: Any) -> T:
    """Call a function. In another thread if it reads or writes so many elements that the event loop would be blocked.

    Args:
        elements: The elements that Python code reads or writes one by one.
        function: Must not use what belongs to the event loop.
        args: Its arguments.
    """
    if elements <= MANY:
        return function(*args)
    return await _VALUES.run(function, *args)


async def call_in_thread(function: Callable[..., T], *args: Any, **named: Any) -> T:
    """Call a function in a daemon thread of its own, and give its result.

    Unlike the threads of ``asyncio.to_thread`` this one keeps neither the event loop nor the process from ending:
    what the function gives after that is dropped.
    """
    loop = asyncio.get_running_loop()
    outcome: asyncio.Future[T] = loop.create_future()

    def settle(put: Callable[[Any], None], value: Any) -> None:
        if not outcome.done():
            put(value)

    def work() -> None:
        try:
            settled = partial(settle, outcome.set_result, function(*args, **named))
        except BaseException as error:  # noqa: BLE001 - raised where the result is awaited
            settled = partial(settle, outcome.set_exception, error)
        with contextlib.suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(settled)

    threading.Thread(target=work, name="headrace-serve-call", daemon=True).start()
    return await outcome
