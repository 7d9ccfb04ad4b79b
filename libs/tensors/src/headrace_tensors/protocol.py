"""Tensors as the Open Inference Protocol has them: names of datatypes, elements as bytes, raw tensors in messages of gRPC.

Source:
    `open_inference_grpc.proto` of the protocol, and the encoding of Protocol Buffers.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any, Final

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

__all__ = [
    "CONTENTS",
    "DATATYPES",
    "bf16_bits",
    "bf16_values",
    "join_elements",
    "read_elements",
    "split_raw",
    "varint_of",
]

DATATYPES: Final[dict[str, np.dtype[Any]]] = {
    "BOOL": np.dtype("?"),
    **{f"UINT{8 * size}": np.dtype(f"<u{size}") for size in (1, 2, 4, 8)},
    **{f"INT{8 * size}": np.dtype(f"<i{size}") for size in (1, 2, 4, 8)},
    **{f"FP{8 * size}": np.dtype(f"<f{size}") for size in (2, 4, 8)},
    "BF16": np.dtype("<u2"),
    "BYTES": np.dtype(object),
}
"""Each datatype of the protocol with its numpy dtype. numpy has no BF16, so uint16 holds its bits."""

CONTENTS: Final = {
    "BOOL": "bool_contents",
    **dict.fromkeys(("INT8", "INT16", "INT32"), "int_contents"),
    "INT64": "int64_contents",
    **dict.fromkeys(("UINT8", "UINT16", "UINT32"), "uint_contents"),
    "UINT64": "uint64_contents",
    "FP32": "fp32_contents",
    "FP64": "fp64_contents",
    "BYTES": "bytes_contents",
}
"""The field of a message that holds the elements of each datatype. FP16 and BF16 travel as raw bytes only."""

_LENGTH: Final = struct.Struct("<I")


def bf16_bits(array: NDArray[np.float32]) -> NDArray[np.uint16]:
    """Round each float32 to the nearest BF16, ties to even, and give its bits as uint16. NaN stays NaN."""
    bits = np.ascontiguousarray(array, "<f4").view("<u4")
    nearest = (bits + (0x7FFF + (bits >> 16 & 1))) >> 16
    bf16: NDArray[np.uint16] = np.where(np.isnan(array), bits >> 16 | 0x40, nearest).astype("<u2")
    return bf16


def bf16_values(bits: NDArray[np.uint16]) -> NDArray[np.float32]:
    """Return the values of BF16 as float32, which holds all of them."""
    return (bits.astype("<u4") << 16).view("<f4")


def join_elements(elements: Iterable[bytes]) -> bytes:
    """Return the bytes of a BYTES tensor: each element follows its length, a little-endian uint32."""
    return b"".join([part for item in elements for part in (_LENGTH.pack(len(item)), item)])


def read_elements(data: Any, count: int) -> list[bytes]:
    """Return the elements of a BYTES tensor.

    Args:
        data: A buffer with its bytes.
        count: How many elements its shape says it has.

    Raises:
        ValueError: The buffer does not hold so many elements, or more. The message begins with ``it`` or ``element``.
    """
    elements = []
    place, view = 0, memoryview(data)
    for index in range(count):
        if place + _LENGTH.size > len(view):
            raise ValueError(f"it ends before element {index} of {count}")
        (length,) = _LENGTH.unpack_from(view, place)
        place += _LENGTH.size
        if place + length > len(view):
            left = len(view) - place
            raise ValueError(f"element {index} says it has {length} bytes, {left} are left")
        elements.append(bytes(view[place : place + length]))
        place += length
    if place != len(view):
        raise ValueError(f"it has {len(view) - place} bytes behind its last element")
    return elements


def varint_of(value: int) -> bytes:
    """Return a whole number from 0 as a message writes it."""
    encoded = bytearray()
    while value > 127:
        encoded.append(value & 127 | 128)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def split_raw(data: bytes, field: int) -> tuple[bytes, list[memoryview]]:
    """Return a message without its raw tensors, and these, which are not copied.

    A message that is malformed, or has a field behind the raw tensors or without a length, comes back whole.

    Args:
        data: The message.
        field: The number of the field with the raw tensors, below 16.
    """
    view, place, rest = memoryview(data), 0, []
    raw: list[memoryview] = []
    last = field << 3 | 2
    while place < len(data):
        start, tag = place, data[place]
        length, place = _read_varint(data, place + 1)
        if tag & 7 != 2 or not 8 < tag <= last or length < 0 or place + length > len(data):
            return data, []
        if tag == last:
            raw.append(view[place : place + length])
        else:
            rest.append(view[start : place + length])
        place += length
    return b"".join(rest), raw


def _read_varint(data: bytes, place: int) -> tuple[int, int]:
    """Return the value of a varint of up to five bytes (-1 if there is none), and the place behind it."""
    value = 0
    for shift, byte in enumerate(data[place : place + 5]):
        value |= (byte & 127) << 7 * shift
        if byte < 128:
            return value, place + shift + 1
    return -1, place
