"""Tensors, for both protocols: checks of shapes and of the outputs that clients want, elements as bytes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from headrace.errors import InputError
from headrace_serve.datatypes import raw_bytes
from headrace_serve.errors import NO_REGIONS, unknown_parameter
from headrace_serve.inference.classification import CLASSIFICATION, class_count
from headrace_serve.inference.parameters import with_trace, without_nulls
from headrace_serve.inference.parsed_requests import COPIED_BYTES
from headrace_tensors import DATATYPES, join_elements

if TYPE_CHECKING:
    from collections.abc import Collection, Container, Iterable, Mapping

    from headrace_serve.inference.messages import Asked, Tensor
    from headrace_serve.models.model import Model
    from headrace_serve.models.signature import Port
    from headrace_serve.monitoring.access_log import AccessLine

__all__ = [
    "check_items",
    "check_number",
    "complete",
    "elements_in",
    "read_form",
    "read_outputs",
    "refuse_region",
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
    axes = _read_shape(name, shape)
    check_items(model, name, axes, most_items)
    return datatype, axes


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


def check_number(kind: str, number: int, ports: Mapping[str, Port]) -> None:
    """Check the number of inputs or outputs of a request, before any of them is read.

    Raises:
        InputError: They are many more than the model has.
    """
    most = max(_FEW, len(ports))
    if number > most:
        raise InputError(f"the request has {number} {kind}", expected=f"at most {most}")


def refuse_region(where: str, parameters: Container[str]) -> None:
    """Refuse a tensor that is in shared memory, by its parameters.

    Raises:
        InputError: It is.
    """
    if "shared_memory_region" in parameters:
        raise InputError(f"{where} has a shared_memory_region; {NO_REGIONS}")


def read_outputs(
    asked: Iterable[tuple[str, dict[str, Any]]], known: Collection[str] = ()
) -> tuple[dict[str, dict[str, Any]], dict[str, int]]:
    """Read what a client says of the outputs that it wants.

    Args:
        asked: Name and parameters of each.
        known: The parameters that the protocol has for outputs beside those of both.

    Returns:
        By the names of the outputs: these parameters, and the numbers of classes.

    Raises:
        InputError: An output is there twice, or a parameter is wrong or unknown.
    """
    parameters: dict[str, dict[str, Any]] = {}
    classes: dict[str, int] = {}
    for name, given in asked:
        where = f"output {name!r}"
        if name in parameters:
            raise InputError(f"{where} is there twice")
        refuse_region(where, given)
        parameters[name] = left = without_nulls(given)
        if CLASSIFICATION in left:
            classes[name] = class_count(where, left.pop(CLASSIFICATION))
        for key in left:
            if key not in known:
                raise unknown_parameter(key, where, [*known, CLASSIFICATION])
    return parameters, classes


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
    return sum(tensor.array.size for tensor in tensors if tensor.datatype == "BYTES")
