"""Answers in parts: the parts of one request of the pipeline as they come, and its result last."""

from __future__ import annotations

import contextlib
from functools import partial
from typing import TYPE_CHECKING, Any

from headrace.errors import InputError, RequestsFailed
from headrace_serve.admission.part_bytes import StreamBytes
from headrace_serve.errors import ItemError
from headrace_serve.inference.messages import Answer
from headrace_serve.inference.parameters import flag
from headrace_serve.inference.requests import (
    begin,
    check_written,
    item_count,
    made_request,
    with_classes,
)
from headrace_serve.inference.results import elements_of, tensors_of
from headrace_serve.threads import call_by_size

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Mapping

    from headrace_serve.admission.limits import Limits
    from headrace_serve.admission.part_bytes import PartBytes
    from headrace_serve.inference.messages import Asked
    from headrace_serve.models.model import Model

__all__ = ["answers", "parts_of"]

_END: Any = object()


async def parts_of(
    model: Model, request: dict[str, Any], call: Mapping[str, Any], part_bytes: PartBytes
) -> AsyncGenerator[tuple[bool, Any]]:
    """Run a request. Who closes the generator before its end cancels it.

    Args:
        model: The model.
        request: The request of the pipeline. It is changed.
        call: The arguments of ``pipe.stream_async``.
        part_bytes: Counts a part until the next one is asked for.

    Returns:
        Pairs: whether it is the result, and the part or result.

    Raises:
        RequestError, ClosedError: As ``pipe.stream_async`` raises them, after the parts that have come.
    """
    held = StreamBytes(part_bytes)
    stream = model.pipe.stream_async(request, room=held.room, **call)
    try:
        part = await anext(stream)
        while True:
            # The request itself is the last thing, unless a backend gives it as a part: then more follows.
            more = await anext(stream, _END) if part is request else None
            if more is _END:
                break
            yield False, part
            held.sent()
            part = await anext(stream) if more is None else more
        yield True, request["result"]
    finally:
        held.end()
        await stream.aclose()


async def answers(
    model: Model, asked: Asked, *, limits: Limits, priority_default: int, part_bytes: PartBytes
) -> AsyncGenerator[tuple[bool, Answer | None]]:
    """Run what a client asks for, and give an answer for each part, and one for the result. See `parts_of`.

    Args:
        model: The model. A request for it has one item, if its inputs are of items.
        asked: What the client asks for.
        limits: The limits that hold for the model.
        priority_default: As `headrace_serve.service.Service` has it.
        part_bytes: See `parts_of`.

    Returns:
        Pairs: whether it is the last, and the answer. None for a result that is None.

    Raises:
        InputError: The inputs, outputs or parameters are wrong, or there are several items.
        ItemError: The one item failed by its result.
        RequestError, ClosedError: As `parts_of`.
    """
    values, call, fixed = await begin(model, asked, limits, priority_default)
    by_item = model.signature.by_item
    if flag("partial", asked.parameters):
        raise InputError("parameter 'partial' is for answers without parts")
    if by_item and (count := item_count(model, values)) != 1:
        raise InputError(f"{count} items", expected="one item, whose answer comes in parts")
    request = made_request(model, values, fixed, 0 if by_item else None)
    write = partial(tensors_of, model, by_item=by_item, wanted=asked.outputs)
    try:
        async with contextlib.aclosing(parts_of(model, request, call, part_bytes)) as parts:
            async for is_last, part in parts:
                if is_last and part is None:
                    yield True, None
                    continue
                outputs = await call_by_size(elements_of(part), write, [part])
                check_written(model, outputs, limits)
                outputs = await with_classes(model, outputs, asked)
                yield is_last, Answer(model, asked.id, outputs)
    except RequestsFailed as error:  # of the one item
        raise ItemError(0, next(failed for failed in error.errors if failed is not None)) from error
