"""Requests as parsed, without the bytes of their tensors: clients repeat them, so each is parsed only once."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import orjson

from headrace.keys import REQUEST_SIZE
from headrace_serve.datatypes import from_json
from headrace_serve.threads import MANY
from headrace_tensors import DATATYPES

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["COPIED_BYTES", "IN_JSON", "ParsedRequest", "PlainInputs", "PlainOutputs"]

IN_JSON = -1
"""The number of bytes of a tensor whose elements are in the JSON."""

COPIED_BYTES = 4096
"""Smaller tensors are copied to bytes, because making a view of their bytes takes longer."""


@dataclass(slots=True)
class ParsedRequest:
    """A request for one model, without the bytes of its tensors.

    Attributes:
        inputs: Name, datatype, shape and number of bytes of each tensor.
        outputs, parameters: As in `headrace_serve.inference.messages.Asked`.
        wanted: The form in which the client wants the outputs, a `headrace_serve.http.tensors.Wanted`.
        size: The bytes of all tensors together.
        checked: Whether it was found to fit the signature of the model.
        plain: How the request of the pipeline is made where all inputs are numbers. None where it is not known, or not so.
        again: The last answer where all outputs were plain arrays. None for none.
    """

    inputs: Sequence[tuple[str, str, tuple[int, ...], int]]
    outputs: list[str] | None
    parameters: dict[str, Any]
    wanted: Any
    size: int = 0
    checked: bool = False
    plain: PlainInputs | None = None
    again: PlainOutputs | None = None

    def __post_init__(self) -> None:
        self.size = sum(tensor[3] for tensor in self.inputs)

    def note_checked(self, model: Any) -> None:
        """Note that it fits the signature of a model."""
        self.checked = True
        told = self.parameters.keys() <= _OF_THE_SERVER
        if told and not (
            model.signature.by_item or model.fields or model.signature.sequence_key is not None
        ):
            self.plain = PlainInputs.of(model.signature.inputs, self.inputs)


_OF_THE_SERVER = {"binary_data_output"}
"""Parameters that change nothing for the pipeline."""


@dataclass(frozen=True, slots=True)
class PlainInputs:
    """How the arrays of a request are views of its bytes.

    Attributes:
        arrays: Of each the key of the request, dtype, number of elements, shape, and the bytes before it.
        rows: The key ``request_size`` of the request. None for none.
    """

    arrays: Sequence[tuple[str, np.dtype[Any], int, tuple[int, ...], int]]
    rows: int | None

    @classmethod
    def of(
        cls, ports: Mapping[str, Any], inputs: Sequence[tuple[str, str, tuple[int, ...], int]]
    ) -> PlainInputs | None:
        """Return how inputs are read that fit these ports. None where one of them is no array of numbers."""
        arrays, rows, place = [], set(), 0
        for name, datatype, shape, size in inputs:
            port, dtype, count = ports[name], DATATYPES[datatype], math.prod(shape)
            fits = size in (count * dtype.itemsize, IN_JSON)
            if datatype in ("BYTES", "BF16") or port.text or port.each or not fits:
                return None
            if port.batch_axis is not None:
                rows.add(shape[port.batch_axis])
            arrays.append((port.key, dtype, count, shape, place))
            place += size
        return cls(arrays, next(iter(rows), None)) if len(rows) < 2 else None

    def request(self, body: bytes, start: int) -> dict[str, Any]:
        """Return the request of the pipeline for a body in which the bytes of all tensors begin at a place, one after the other."""
        request: dict[str, Any] = {}
        for key, dtype, count, shape, place in self.arrays:
            request[key] = np.frombuffer(body, dtype, count, start + place).reshape(shape)
        if self.rows is not None:
            request[REQUEST_SIZE] = self.rows
        return request

    def request_of(
        self, inputs: Sequence[tuple[str, str, tuple[int, ...], int]], values: Sequence[Any]
    ) -> dict[str, Any]:
        """Return the request of the pipeline for the elements of all inputs, as JSON has them.

        Raises:
            InputError: As `headrace_serve.datatypes.from_json`.
        """
        request: dict[str, Any] = {}
        for (key, *_), (name, datatype, shape, _), value in zip(
            self.arrays, inputs, values, strict=True
        ):
            request[key] = from_json(name, datatype, shape, value)
        if self.rows is not None:
            request[REQUEST_SIZE] = self.rows
        return request


@dataclass(frozen=True, slots=True)
class PlainOutputs:
    """An answer of plain arrays.

    Attributes:
        names: The outputs. None where the result itself is the only one.
        forms: Dtype and shape of each.
        heads: The JSON before their bytes, or, where it has their elements, before those of each and behind the last.
        absent: Optional outputs that this answer lacks. One that has them is written anew.
        content_type: The type of the answer.
        headers: Its headers.
    """

    names: Sequence[str] | None
    forms: Sequence[tuple[np.dtype[Any], tuple[int, ...]]]
    heads: Sequence[bytes]
    absent: Sequence[str]
    content_type: str
    headers: Mapping[str, str]

    def parts(self, result: Any, identifier: str) -> list[bytes | memoryview] | None:
        """Return the body of the answer for another result, of a request with an id. None where it differs in more than its numbers."""
        names, heads = self.names, self.heads
        if (names is not None) is not (type(result) is dict):
            return None
        if self.absent and any(name in result for name in self.absent):
            return None
        is_binary = len(heads) == 1
        if is_binary and identifier:
            return None
        parts: list[bytes | memoryview] = [heads[0]] if is_binary else []
        for place, (dtype, shape) in enumerate(self.forms):
            array = result if names is None else result.get(names[place])
            if type(array) is not np.ndarray or array.dtype != dtype or array.shape != shape:
                return None
            if is_binary:
                small = array.nbytes < COPIED_BYTES
                parts.append(
                    array.tobytes() if small else np.ascontiguousarray(array).data.cast("B")
                )
                continue
            if array.size > MANY or (dtype.kind == "f" and not _all(np.isfinite(array), None)):
                return None
            flat = np.ascontiguousarray(array).reshape(-1)
            parts += (heads[place], orjson.dumps(flat, None, orjson.OPT_SERIALIZE_NUMPY))
        if not is_binary:
            parts.append(heads[-1])
            parts.append(b',"id":%b}' % orjson.dumps(identifier) if identifier else b"}")
        return parts


_all = np.logical_and.reduce
