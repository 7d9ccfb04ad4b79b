"""Tensors, for both protocols: checks of shapes, elements as bytes, inputs and outputs in shared memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from headrace.errors import InputError
from headrace_serve.aside import apart
from headrace_serve.datatypes import DATATYPES, check_size, joined_elements
from headrace_serve.inference.messages import Encoded

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from headrace_serve.inference.messages import Answer, Tensor
    from headrace_serve.models.model import Model
    from headrace_serve.models.signature import Port
    from headrace_serve.shared_memory import Access, Place

__all__ = [
    "check_items",
    "check_number",
    "elements_in",
    "place_outputs",
    "placed_input",
    "read_shape",
    "tensor_view",
]

_MOST_AXES = 32
_LONGEST_AXIS = (1 << 40) - 1
_MOST_ELEMENTS = 1 << 56
"""numpy cannot make an array with this many elements of eight bytes, not even an empty one with an axis of 0."""

_FEW = 64
"""So many inputs and outputs of a request are read, so that an error names the one that the model does not have."""

_COPIED_BYTES = 4096
"""Smaller tensors are copied to bytes, because making a view of their bytes takes longer."""


def read_shape(name: str, shape: Any) -> tuple[int, ...]:
    """Check the shape of an input.

    Raises:
        InputError: The shape is no list of lengths, has too many axes, or too many elements.
    """
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
    name: str, datatype: str, shape: tuple[int, ...], place: Place, access: Access
) -> Encoded:
    """Return an input that is in shared memory.

    Raises:
        InputError: The size of the place does not fit datatype and shape, or a client has shortened the memory.
        BodyTooLargeError, OverloadedError: The input has too many bytes.
    """
    check_size(name, datatype, shape, place.byte_size)
    return Encoded(name, datatype, shape, access.read(place))


def tensor_view(tensor: Tensor) -> bytes | memoryview:
    """Return a tensor's elements in row-major order, little-endian; a large array in that form is not copied."""
    if tensor.datatype == "BYTES":
        return joined_elements(tensor.array)
    array = tensor.array
    array = array.view("u2") if tensor.datatype == "BF16" else array
    array = array.astype(DATATYPES[tensor.datatype], copy=False)
    if array.nbytes < _COPIED_BYTES:
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
