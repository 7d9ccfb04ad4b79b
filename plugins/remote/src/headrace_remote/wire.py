"""A call's bytes: ``ModelInferRequest`` from items, and the outputs of a ``ModelInferResponse``.

The large parts, the raw tensors, are put beside what protobuf writes, and read without it, so that each is copied
once. The numbers of the fields are those of the Open Inference Protocol.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from google.protobuf.message import DecodeError

from headrace.errors import BackendError
from headrace_remote.protocol import message
from headrace_remote.signature import DTYPES
from headrace_remote.values import read_rows
from headrace_tensors import CONTENTS, join_elements, split_raw, varint_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from headrace_remote.signature import Port, Signature
    from headrace_remote.values import Item, Sequenced

__all__ = ["Answer", "Reader", "Writer"]

_REQUEST: Final = message("ModelInferRequest")
_RESPONSE: Final = message("ModelInferResponse")
_ID: Final = bytes([3 << 3 | 2])
_RAW_INPUT: Final = bytes([7 << 3 | 2])
_LONGEST_ID_BYTES: Final = 1024
_MOST_HEADS: Final = 256
_LONGEST_OUTLINE_BYTES: Final = 2048


@dataclass(frozen=True)
class Answer:
    """What a server has sent back.

    Attributes:
        arrays: The outputs, in the order of the signature.
        errors: The text of the parameter ``errors``, with which ``headrace serve`` gives the errors of single
            items. ``""`` where there is none.
    """

    arrays: list[NDArray[Any]]
    errors: str


class Writer:
    """Writes the messages of calls.

    Args:
        model: The name of the model.
        version: Its version, ``""`` for the server's choice.
        signature: Inputs and outputs.
        all_outputs: Whether the signature has all outputs of the model, so that they need no names.
        partial: Whether to ask ``headrace serve`` for an outcome per item.
        priority: The protocol's parameter of this name. 0: it is not sent.
    """

    def __init__(
        self,
        model: str,
        version: str,
        signature: Signature,
        *,
        all_outputs: bool,
        partial: bool,
        priority: int,
    ) -> None:
        self._base = _REQUEST(model_name=model, model_version=version)
        if partial:
            self._base.parameters.add(key="partial").value.bool_param = True
        if priority:
            self._base.parameters.add(key="priority").value.int64_param = priority
        if not all_outputs:
            for port in signature.outputs:
                self._base.outputs.add(name=port.name)
        self._inputs = signature.inputs
        self._heads: dict[Any, bytes] = {}

    def write(self, items: Sequence[Item], identifier: str = "") -> bytes:
        """Return the bytes of a call. The items are of one group (`headrace_remote.values.group_of`).

        Args:
            items: What the requests send, at least one.
            identifier: The ``id`` of the call.
        """
        rows = sum(item.rows for item in items)
        outline = rows, items[0].shapes
        head = self._heads.get(outline)
        if head is None:
            head = self._head(*outline)
            if len(self._heads) >= _MOST_HEADS:
                self._heads.clear()
            self._heads[outline] = head
        parts: list[Any] = [head]
        if identifier:
            raw = identifier.encode("utf-8", "replace")[:_LONGEST_ID_BYTES]
            raw = raw.decode("utf-8", "ignore").encode()
            parts += (_ID, varint_of(len(raw)), raw)
        if items[0].sequence is not None:
            parts.append(_parameters_of(items[0].sequence))
        for place, port in enumerate(self._inputs):
            if items[0].shapes[place] is None:
                continue
            buffers = [item.parts[place] for item in (items if port.batched else items[:1])]
            size = sum([b.nbytes if isinstance(b, np.ndarray) else len(b) for b in buffers])
            parts += (_RAW_INPUT, varint_of(size), *buffers)
        return b"".join(parts)

    def _head(self, rows: int, shapes: tuple[tuple[int, ...] | None, ...]) -> bytes:
        request = _REQUEST()
        request.CopyFrom(self._base)
        for port, shape in zip(self._inputs, shapes, strict=True):
            if shape is None:
                continue
            whole = (rows, *shape) if port.batched else shape
            request.inputs.add(name=port.name, datatype=port.datatype, shape=whole)
        written: bytes = request.SerializeToString()
        return written


def _parameters_of(sequence: Sequenced) -> bytes:
    """Return the parameters of a sequence, as they stand in the message."""
    request = _REQUEST()
    value = request.parameters.add(key="sequence_id").value
    if isinstance(sequence.identifier, str):
        value.string_param = sequence.identifier
    else:
        value.int64_param = sequence.identifier
    for key, flag in (("sequence_start", sequence.start), ("sequence_end", sequence.end)):
        if flag:
            request.parameters.add(key=key).value.bool_param = True
    written: bytes = request.SerializeToString()
    return written


class Reader:
    """Reads the bytes of ``ModelInferResponse``.

    Args:
        signature: Its outputs are looked for by name.
        text: Whether BYTES become str.
    """

    def __init__(self, signature: Signature, *, text: bool) -> None:
        self._outputs = signature.outputs
        self._text = text
        self._outlines: dict[bytes, _Outline] = {}

    def read(self, data: bytes) -> Answer:
        """Return the outputs of an answer.

        Raises:
            BackendError: The bytes are no such message, or lack an output.
        """
        rest, raw = split_raw(data, 6)
        outline = self._outlines.get(rest)
        if outline is None:
            outline = _Outline(_parsed(rest), self._outputs)
            # Most answers differ in their raw tensors alone.
            if len(rest) <= _LONGEST_OUTLINE_BYTES:
                if len(self._outlines) >= _MOST_HEADS:
                    self._outlines.clear()
                self._outlines[rest] = outline
        return outline.answer(raw, self._outputs, text=self._text)


class _Outline:
    """An answer without its raw tensors: where the outputs stand, their datatypes and shapes."""

    def __init__(self, answer: Any, ports: Sequence[Port]) -> None:
        by_name = {output.name: place for place, output in enumerate(answer.outputs)}
        for port in ports:
            if port.name not in by_name:
                known = ", ".join(map(repr, by_name)) or "none"
                raise BackendError(
                    f"the server's answer lacks the output {port.name!r}; it has: {known}"
                )
        places = [by_name[port.name] for port in ports]
        self._count = len(answer.outputs)
        self._tensors = [_described(answer.outputs[place], place) for place in places]
        self._contents = answer.raw_output_contents
        self._typed = [answer.outputs[place].contents for place in places]
        self._errors = next(
            (o.value.string_param for o in answer.parameters if o.key == "errors"), ""
        )

    def answer(self, raw: Sequence[Any], ports: Sequence[Port], *, text: bool) -> Answer:
        """Return the outputs, whose elements are in ``raw``, or in the message itself."""
        raw = raw or self._contents
        if raw and len(raw) != self._count:
            raise BackendError(f"the server sent {len(raw)} raw contents for {self._count} outputs")
        arrays = []
        for port, typed, (place, datatype, shape, is_json) in zip(
            ports, self._typed, self._tensors, strict=True
        ):
            elements = raw[place] if raw else _from_contents(port.name, datatype, typed)
            arrays.append(read_rows(port, datatype, shape, elements, is_json=is_json, text=text))
        return Answer(arrays, self._errors)


def _described(output: Any, place: int) -> tuple[int, str, tuple[int, ...], bool]:
    """Return the place of an output, its datatype and shape, and whether its elements are JSON text."""
    datatype = str(output.datatype)
    kinds = {parameter.key: parameter.value.string_param for parameter in output.parameters}
    is_json = datatype == "BYTES" and kinds.get("content_type") == "application/json"
    return place, datatype, tuple(output.shape), is_json


def _parsed(data: bytes) -> Any:
    try:
        return _RESPONSE.FromString(data)
    except DecodeError as error:
        raise BackendError(f"the server's answer is no ModelInferResponse: {error}") from error


def _from_contents(name: str, datatype: str, contents: Any) -> bytes:
    """Return typed contents as the raw bytes of the same elements."""
    if datatype == "BYTES":
        return join_elements(contents.bytes_contents)
    field = CONTENTS.get(datatype)
    if field is None:
        raise BackendError(f"the server sent output {name!r}, {datatype}, without raw contents")
    return np.array(getattr(contents, field), DTYPES[datatype]).tobytes()
