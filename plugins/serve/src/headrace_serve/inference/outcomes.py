"""Awaits one request of a pipeline, begun with all others of its turn of the event loop."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headrace import Pipeline
    from headrace.keys import Request

__all__ = ["run_soon"]


async def run_soon(pipe: Pipeline, request: Request, **call: Any) -> None:
    """Run a request. The arguments are those of ``pipe.call_soon``.

    Raises:
        RequestError, ClosedError: As ``pipe.call_async`` raises them.
        asyncio.CancelledError: Who awaits was cancelled. ``abandoned`` says whether a backend still runs on the request.
    """
    done = asyncio.get_running_loop().create_future()

    def end(_: Any) -> None:
        if not done.done():
            done.set_result(None)

    begun = pipe.call_soon(request, end, **call)
    try:
        await done
    except BaseException as error:
        error.abandoned = begun.cancel()  # type: ignore[attr-defined]
        raise
    failure, begun.error = begun.error, None  # it will refer to this frame
    if failure is not None:
        try:
            raise failure
        finally:
            del failure
