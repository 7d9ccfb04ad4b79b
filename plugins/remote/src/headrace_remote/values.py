"""Requests to tensors, and tensors to results."""

from __future__ import annotations

import math
import zlib
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

import headrace_tensors as tensors
from headrace.errors import BackendError, InputError
from headrace_formats import read_json
from headrace_remote.signature import DTYPES

if TYPE_CHECKING:
    from collections.abc import Hashable, Mapping, Sequence
    from typing import TypeGuard

    from numpy.typing import NDArray

    from headrace_remote.signature import Port, Signature

__all__ = ["SEQUENCE", "Item", "Sequenced", "group_of", "read_item", "read_rows", "result_of"]

SEQUENCE: Final = ("sequence_id", "sequence_start", "sequence_end")
"""Keys of a request, and parameters of the protocol, that say to which sequence it belongs and where it stands in it."""


class Sequenced(NamedTuple):
    """Where a request stands in a sequence, whose state the server keeps.

    Attributes:
        identifier: The sequence: a number other than 0, or a text.
        start, end: Whether it is the first one, and the last one.
    """

    identifier: int | str
    start: bool
    end: bool

    def choose(self, number: int) -> int:
        """Return which of so many servers has the sequence: always the same one."""
        return zlib.crc32(str(self.identifier).encode("utf-8", "replace")) % number


class Item:
    """What one request sends.

    Attributes:
        rows: How many rows it has along the batch axis, 1 where there is none.
        sample: Whether it is one sample, so that its result has no batch axis.
        shapes: The shapes of its tensors without the batch axis. None for an optional input that it does not bring.
        parts: The elements by input: bytes, or an array in row-major order, little-endian. ``b""`` for one that it
            does not bring.
        sequence: Its place in a sequence. None without a sequence.
    """

    __slots__ = ("parts", "rows", "sample", "sequence", "shapes")

    def __init__(
        self,
        rows: int,
        sample: bool,
        shapes: tuple[tuple[int, ...] | None, ...],
        parts: tuple[bytes | NDArray[Any], ...],
        sequence: Sequenced | None = None,
    ) -> None:
        self.rows = rows
        self.sample = sample
        self.shapes = shapes
        self.parts = parts
        self.sequence = sequence


def read_item(request: Mapping[str, Any], signature: Signature) -> Item:
    """Read the inputs of a model from a request.

    Args:
        request: A request. ``request_size`` (default 1) is the number of rows that it must have.
        signature: Inputs and outputs of the model.

    Raises:
        InputError: A key is missing, or its value has another dtype or shape than the model's.
    """
    size = request.get("request_size", 1)
    usual = signature.usual
    sequence = _sequence_of(request) if signature.sequences else None
    if usual is not None:
        key, dtype, fixed = usual
        value = request.get(key)
        # Most requests are an array for a model with one input, which needs none of the work below.
        if type(value) is np.ndarray and value.dtype == dtype and value.flags.c_contiguous:
            shape = value.shape
            if shape == fixed and size == 1:
                return Item(1, True, (fixed,), (value,), sequence)
            if shape[1:] == fixed and shape[:1] == (size,):
                return Item(size, False, (fixed,), (value,), sequence)
    read = tensors.read_item(request, signature, signature.keys, _array)
    arrays = [(port, read.tensors.get(port.name)) for port in signature.inputs]
    shapes = tuple(
        None if array is None else array.shape[1:] if port.batched else array.shape
        for port, array in arrays
    )
    parts = tuple(b"" if array is None else _elements_of(array, port) for port, array in arrays)
    return Item(read.rows, read.sample, shapes, parts, sequence)


def _sequence_of(request: Mapping[str, Any]) -> Sequenced | None:
    """Return where a request stands in a sequence. None where it has none of the keys.

    Raises:
        InputError: One of them has a value that the protocol does not take.
    """
    if not ("sequence_id" in request or "sequence_start" in request or "sequence_end" in request):
        return None
    name = request.get("sequence_id")
    if not _names_sequence(name):
        text, got = "this request belongs to no sequence", repr(name)[:40]
        expected = "a number of 64 bits other than 0, or a text that is not empty"
        raise InputError(text, key="sequence_id", expected=expected, got=got)
    flags = []
    for key in SEQUENCE[1:]:
        value = request.get(key, False)
        if not isinstance(value, (bool, np.bool_)):
            raise InputError(
                "this is no flag", key=key, expected="True or False", got=repr(value)[:40]
            )
        flags.append(bool(value))
    return Sequenced(name if isinstance(name, str) else int(name), *flags)


def _names_sequence(value: Any) -> TypeGuard[int | str]:
    if isinstance(value, str):
        return _element(value) not in (b"", None)  # None: it is no text of Unicode
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)):
        return False
    return value != 0 and -(1 << 63) <= int(value) < 1 << 63


def group_of(item: Item, signature: Signature) -> Hashable:
    """Return what items in one call must share.

    These are which optional inputs they bring, the shapes of all, and the values of optional inputs without batch
    axis, of which a call has one. An item of a sequence shares its call with no other.

    Args:
        item: An item.
        signature: Inputs and outputs of the model.
    """
    if item.sequence is not None:
        return item
    if not signature.shared:
        return item.shapes
    values = [item.parts[place] for place in signature.shared]
    return item.shapes, *(part if isinstance(part, bytes) else part.tobytes() for part in values)


def _array(value: Any, port: Port, key: str) -> NDArray[Any]:
    """Return a value as an array of the port's dtype; the dtype of an array is never converted."""
    if port.datatype == "BYTES":
        return _texts(value, port, key)
    return tensors.host_array(value, port, key)


def _texts(value: Any, port: Port, key: str) -> NDArray[Any]:
    """Return bytes and texts as an array of bytes; one without axes is one element."""
    if isinstance(value, (str, bytes, bytearray, memoryview)):
        array: NDArray[Any] = np.empty((), object)
        array[()] = value
    elif isinstance(value, (list, tuple)) or type(value) is np.ndarray:
        array = _nested(value)
    else:
        array = np.empty((), object)
    flat = [_element(element) for element in array.reshape(-1)]
    if None in flat:
        got = tensors.text_of(value) if type(value) is np.ndarray else type(value).__name__
        raise InputError(
            "this is neither bytes nor text", key=key, expected=port.accepts(), got=got
        )
    elements = np.empty(len(flat), object)
    elements[:] = flat
    return elements.reshape(array.shape)


def _nested(value: Any) -> NDArray[Any]:
    try:
        array = np.asarray(value, object)
    except ValueError:  # lists of different lengths
        array = np.empty(1, object)
    return array


def _element(value: Any) -> bytes | None:
    if isinstance(value, str):
        try:
            return value.encode()
        except UnicodeEncodeError:
            return None
    return bytes(value) if isinstance(value, (bytes, bytearray, memoryview)) else None


def _elements_of(array: NDArray[Any], port: Port) -> bytes | NDArray[Any]:
    """Return the elements in row-major order, little-endian; an array in that form is not copied."""
    if port.datatype == "BYTES":
        return tensors.join_elements(array.reshape(-1))
    if port.datatype == "BF16":
        array = tensors.bf16_bits(array)
    return np.ascontiguousarray(array)


def read_rows(
    port: Port, datatype: str, shape: tuple[int, ...], data: Any, *, is_json: bool, text: bool
) -> NDArray[Any]:
    """Return an output of an answer as an array. BYTES as objects, which are ``bytes``, or what JSON text holds.

    Args:
        port: The output.
        datatype: The datatype of the answer.
        shape: The shape of the answer.
        data: A buffer with its elements in row-major order, little-endian. For BYTES each follows its length.
        is_json: Whether the elements are JSON text.
        text: Whether BYTES become str.

    Raises:
        BackendError: Datatype, shape and bytes do not fit together.
    """
    name = port.name
    if datatype not in DTYPES:
        raise BackendError(f"the server sent output {name!r} with the datatype {datatype!r}")
    count = math.prod(shape)
    if datatype == "BYTES":
        alone = is_json and not port.batched and count == 1
        try:
            elements = tensors.read_elements(data, count)  # first: the shape may say any number
            array = np.empty(count, object)
            array[:] = [read_json(e) if is_json else e.decode() if text else e for e in elements]
            return array.reshape(() if alone else shape)
        except ValueError as error:
            raise BackendError(f"output {name!r} of the server cannot be read: {error}") from error
    dtype = tensors.DATATYPES[datatype]
    if min(shape, default=0) < 0 or len(data) != count * dtype.itemsize:
        raise BackendError(
            f"the server sent {len(data)} bytes for output {name!r}, {datatype} {list(shape)}"
        )
    array = np.frombuffer(data, dtype)
    if datatype == "BF16":
        array = tensors.bf16_values(array)
    return array.reshape(shape)


def result_of(arrays: Sequence[NDArray[Any]], signature: Signature, start: int, item: Item) -> Any:
    """Return the result of one request: an array, or a dict of arrays by output name. Its memory is its own.

    Args:
        arrays: The outputs of the answer, in the order of the signature.
        signature: Inputs and outputs of the model.
        start: Where the rows of the request begin.
        item: The request.
    """
    if signature.one_array and item.sample:
        sample: Any = arrays[0][start]
        return sample.copy() if type(sample) is np.ndarray else np.asarray(sample)
    outputs = {}
    for port, array in zip(signature.outputs, arrays, strict=True):
        value: Any = array
        if port.batched:
            value = array[start] if item.sample else array[start : start + item.rows]
        elif array.dtype == object and not array.ndim:
            value = array[()]
        if type(value) is np.ndarray:
            value = value.copy()
        elif port.datatype != "BYTES":
            value = np.asarray(value)
        outputs[port.name] = value
    return outputs if len(outputs) > 1 else next(iter(outputs.values()))
