"""Tensors, for both protocols: checks of shapes, elements as bytes, inputs and outputs in shared memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from headrace.errors import InputError
from headrace_serve.aside import apart
from headrace_serve.datatypes import check_size, raw_bytes
from headrace_serve.errors import unknown_parameter
from headrace_serve.inference.classification import CLASSIFICATION, class_count
from headrace_serve.inference.messages import Encoded
from headrace_serve.inference.parameters import with_trace, without_nulls
from headrace_serve.outlines import COPIED_BYTES
from headrace_tensors import DATATYPES, join_elements

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from headrace_serve.access_log import AccessLine
    from headrace_serve.inference.messages import Answer, Asked, Tensor
    from headrace_serve.models.model import Model
    from headrace_serve.models.signature import Port
    from headrace_serve.shared_memory import Access, Place

__all__ = [
    "check_items",
    "check_number",
    "complete",
    "elements_in",
    "place_outputs",
    "placed_input",
    "read_form",
    "read_outputs",
    "tensor_view",
]

_MOST_AXES = 32
_LONGEST_AXIS = (1 << 40) - 1
_MOST_ELEMENTS = 1 << 56
"""numpy cannot make an array with this many elements of eight bytes, not even an empty one with an axis of 0."""

_FEW = 64
"""So many inputs and outputs of a request are read, so that an error names the one that the model does not have."""


def read_form(
    model: Model, name: str, datatype: Any, shape: Any, most_items: int
) -> tuple[str, tuple[int, ...]]:
    """Check datatype and shape of an input, before any of its elements is read, and return them.

    Raises:
        InputError: There is no such datatype, the shape is none, or there are more than ``most_items`` items.
    """
    if not isinstance(datatype, str) or datatype not in DATATYPES:
        raise InputError(
            f"datatype of input {name!r}", expected=", ".join(DATATYPES), got=repr(datatype)[:40]
        )
    found = _read_shape(name, shape)
    check_items(model, name, found, most_items)
    return datatype, found


def _read_shape(name: str, shape: Any) -> tuple[int, ...]:
    if not isinstance(shape, list) or len(shape) > _MOST_AXES:
        raise InputError(
            f"shape of input {name!r}", expected=f"a list of up to {_MOST_AXES} lengths"
        )
    elements = 1
    for axis in shape:
        if type(axis) is not int or not 0 <= axis <= _LONGEST_AXIS:
            raise InputError(
                f"shape of input {name!r}",
                expected=f"whole numbers from 0 to {_LONGEST_AXIS}",
                got=repr(axis)[:40],
            )
        elements *= axis or 1
    # An axis of 0 counts as 1, because numpy refuses such shapes too.
    if elements >= _MOST_ELEMENTS:
        raise InputError(f"shape of input {name!r}", expected="fewer elements", got=str(shape)[:80])
    return tuple(shape)


def check_items(model: Model, name: str, shape: tuple[int, ...], most: int) -> None:
    """Check the number of items of an input, before any of them is read.

    Raises:
        InputError: They are more than ``most``.
    """
    port = model.signature.inputs.get(name)
    if port is not None and port.each and shape and shape[0] > most:
        raise InputError(f"{shape[0]} items are more than the {most} that one request may hold")


def check_number(what: str, number: int, ports: Mapping[str, Port]) -> None:
    """Check the number of inputs or outputs of a request, before any of them is read.

    Raises:
        InputError: They are many more than the model has.
    """
    most = max(_FEW, len(ports))
    if number > most:
        raise InputError(f"the request has {number} {what}", expected=f"at most {most}")


def placed_input(
    name: str,
    datatype: str,
    shape: tuple[int, ...],
    place: Place,
    access: Access,
    parameters: dict[str, Any],
) -> Encoded:
    """Return an input that is in shared memory, with its other parameters.

    Raises:
        InputError: The size of the place does not fit datatype and shape, or a client has shortened the memory.
        BodyTooLargeError, OverloadedError: The input has too many bytes.
    """
    check_size(name, datatype, shape, place.byte_size)
    return Encoded(name, datatype, shape, access.read(place), parameters=parameters)


def read_outputs(
    asked: Iterable[tuple[str, dict[str, Any]]], access: Access, known: Collection[str] = ()
) -> tuple[dict[str, dict[str, Any]], dict[str, Place], dict[str, int]]:
    """Read what a client says of the outputs that it wants.

    Args:
        asked: Name and parameters of each.
        access: The shared memory.
        known: The parameters that the protocol has for outputs beside those of both.

    Returns:
        By the names of the outputs: these parameters, the places in shared memory, and the numbers of classes.

    Raises:
        InputError: An output is there twice, or a parameter is wrong or unknown.
        UnsupportedError: Shared memory is not allowed.
    """
    found: dict[str, dict[str, Any]] = {}
    places: dict[str, Place] = {}
    classes: dict[str, int] = {}
    for name, given in asked:
        where = f"output {name!r}"
        if name in found:
            raise InputError(f"{where} is there twice")
        place = access.place(where, given)
        if place is not None:
            places[name] = place
        found[name] = left = without_nulls(given)
        if CLASSIFICATION in left:
            classes[name] = class_count(where, left.pop(CLASSIFICATION))
        for key in left:
            if key not in known:
                raise unknown_parameter(key, where, [*known, CLASSIFICATION])
    return found, places, classes


def complete(asked: Asked, request_id: str, sent: Mapping[str, str], line: AccessLine) -> None:
    """Add to what a client asks for what stands beside its request, in headers or metadata."""
    asked.request_id = request_id
    asked.parameters = with_trace(asked.parameters, sent)
    line.note_ids(asked.id, asked.parameters)


def tensor_view(tensor: Tensor) -> bytes | memoryview:
    """Return a tensor's elements in row-major order, little-endian; a large array in that form is not copied."""
    if tensor.datatype == "BYTES":
        return join_elements(map(raw_bytes, tensor.array.flat))
    array = tensor.array
    array = array.view("u2") if tensor.datatype == "BF16" else array
    array = array.astype(DATATYPES[tensor.datatype], copy=False)
    if array.nbytes < COPIED_BYTES:
        return array.tobytes()
    return np.ascontiguousarray(array).data.cast("B")


def elements_in(tensors: Iterable[Tensor]) -> int:
    """Return the number of elements of BYTES, which Python writes one by one."""
    return sum(one.array.size for one in tensors if one.datatype == "BYTES")


async def place_outputs(answer: Answer, places: Mapping[str, Place], access: Access) -> None:
    """Write the outputs that the client wants in shared memory to their places.

    Raises:
        InputError: An output does not fit its place, or a client has shortened the memory.
    """
    placed = [tensor for tensor in answer.outputs if tensor.name in places]
    views = await apart(elements_in(placed), lambda: [tensor_view(one) for one in placed])
    for tensor, view in zip(placed, views, strict=True):
        access.regions.write(tensor.name, places[tensor.name], view)
        tensor.placed = True
