"""Runs what may take minutes in a thread that nothing waits for when the server ends."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["aside"]

T = TypeVar("T")


async def aside(function: Callable[..., T], *args: Any, **named: Any) -> T:
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

    threading.Thread(target=work, name="headrace-serve-aside", daemon=True).start()
    return await outcome
