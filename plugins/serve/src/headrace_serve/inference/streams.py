"""Answers in parts: the parts of one request of the pipeline as they come, and its result last."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Mapping

    from headrace_serve.models.model import Model

__all__ = ["parts_of"]

_END: Any = object()


async def parts_of(
    model: Model, request: dict[str, Any], call: Mapping[str, Any]
) -> AsyncGenerator[tuple[bool, Any]]:
    """Run a request; who closes the generator before its end cancels it.

    Args:
        model: The model.
        request: The request of the pipeline; it is changed.
        call: The arguments of ``pipe.stream_async``.

    Returns:
        Pairs: whether it is the result, and the part or result.

    Raises:
        RequestError, ClosedError: As ``pipe.stream_async`` raises them, after the parts that have come.
    """
    stream = model.pipe.stream_async(request, **call)
    try:
        found = await anext(stream)
        while True:
            # The request itself is the last thing, unless a backend gives it as a part: then more follows.
            more = await anext(stream, _END) if found is request else None
            if more is _END:
                break
            yield False, found
            found = await anext(stream) if more is None else more
        yield True, request["result"]
    finally:
        await stream.aclose()
