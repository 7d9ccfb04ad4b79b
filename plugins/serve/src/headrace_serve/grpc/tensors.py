"""Reads the gRPC messages of inferences into `Asked`, and writes `Answer` as such messages."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from headrace.errors import InputError
from headrace_serve.datatypes import from_json
from headrace_serve.grpc.messages import message
from headrace_serve.inference.messages import Answer, Asked, Encoded
from headrace_serve.inference.parsed_requests import ParsedRequest
from headrace_serve.inference.tensors import (
    check_number,
    read_form,
    read_outputs,
    refuse_region,
    tensor_view,
)
from headrace_tensors import CONTENTS, DATATYPES, split_raw, varint_of

if TYPE_CHECKING:
    from headrace_serve.models.model import Model

__all__ = ["RESPONSE", "Received", "as_streamed", "read_message", "read_request", "write_response"]

REQUEST: Final = message("inference.ModelInferRequest")
RESPONSE: Final = message("inference.ModelInferResponse")

_LARGE_BYTES: Final = 64 << 10
"""From this size of a message on, protobuf's copies of the raw tensors cost more than `split_raw`."""

_SIZE: Final = "binary_data_size"
_BINARY: Final = "binary_data_output"
_RAW_OUTPUT: Final = bytes([6 << 3 | 2])
_STREAMED: Final = bytes([2 << 3 | 2])


class Received:
    """A ``ModelInferRequest`` with its raw tensors beside it.

    Attributes:
        message: The message. A large one is parsed without ``raw_input_contents``.
        raw: The entries of ``raw_input_contents``.
        size: The bytes of the message as it was received.
        model_name, id: Those of the message.
    """

    def __init__(self, request: Any, raw: list[Any], size: int) -> None:
        self.message = request
        self.raw = raw
        self.size = size
        self.model_name: str = request.model_name
        self.id: str = request.id

    def head_bytes(self) -> bytes:
        """Remove the id and the raw tensors from the message, and give its other bytes."""
        self.message.ClearField("id")
        self.message.ClearField("raw_input_contents")
        written: bytes = self.message.SerializeToString()
        return written


def read_message(data: bytes) -> Received:
    """Parse a ``ModelInferRequest``; the raw tensors of a large message are not copied."""
    rest, raw = split_raw(data, 7) if len(data) >= _LARGE_BYTES else (data, [])
    request = REQUEST.FromString(rest)
    return Received(request, raw or list(request.raw_input_contents), len(data))


def read_request(
    received: Received, timeout_s: float | None, model: Model, most_items: int
) -> Asked:
    """Read what a message asks for.

    Args:
        received: The message.
        timeout_s: Seconds to the deadline of the call, or None.
        model: The model that the message is for.
        most_items: The most elements of an input of items.

    Raises:
        InputError: The message is malformed, or names a region of shared memory.
    """
    request, raw = received.message, received.raw
    written = received.head_bytes() if raw else b""
    known = model.grpc_requests.known.get(written)
    if known is not None and len(known.inputs) == len(raw):
        return _filled(known, received, timeout_s)
    for tensor in request.inputs:
        refuse_region(f"input {tensor.name!r}", tensor.parameters)
        if raw and tensor.HasField("contents"):  # in Triton's words
            text = f"contents field must not be specified when using raw_input_contents for {tensor.name!r}"
            raise InputError(f"{text} for model {model.name!r}")
    if raw and len(raw) != len(request.inputs):
        raise InputError(
            f"raw_input_contents has {len(raw)} entries for {len(request.inputs)} inputs"
        )
    check_number("inputs", len(request.inputs), model.signature.inputs)
    check_number("outputs", len(request.outputs), model.signature.outputs)
    left = iter(raw)
    inputs = []
    for tensor in request.inputs:
        form = read_form(model, tensor.name, str(tensor.datatype), list(tensor.shape), most_items)
        inputs.append(_tensor(tensor, *form, next(left) if raw else None))
    wanted = [(output.name, _values(output.parameters)) for output in request.outputs]
    outputs, classes = read_outputs(wanted)
    parameters = _values(request.parameters)
    if parameters.pop(_BINARY, True) is not True:
        raise InputError(f"parameter {_BINARY!r}", expected="true: all tensors of gRPC are binary")
    asked = Asked(inputs, list(outputs) or None, received.id, parameters, timeout_s)
    asked.classes = classes
    if raw and not classes and not any(tensor.parameters for tensor in request.inputs):
        said = [(t.name, t.datatype, t.shape, len(r)) for t, r in zip(inputs, raw, strict=True)]
        model.grpc_requests.keep(
            written, ParsedRequest(said, asked.outputs, dict(parameters), None)
        )
    return asked


def _filled(parsed: ParsedRequest, received: Received, timeout_s: float | None) -> Asked:
    """Build what a message asks for from an earlier message, as parsed, and its own id and raw tensors."""
    inputs = [
        Encoded(name, datatype, shape, data)
        for (name, datatype, shape, _), data in zip(parsed.inputs, received.raw, strict=True)
    ]
    parameters = dict(parsed.parameters)
    return Asked(inputs, parsed.outputs, received.id, parameters, timeout_s, parsed=parsed)


def _values(parameters: Any) -> dict[str, Any]:
    """Return the values of parameters.

    Raises:
        InputError: One has none.
    """
    values = {}
    for name, parameter in parameters.items():
        which = parameter.WhichOneof("parameter_choice")
        if which is None:
            raise InputError(f"parameter {name!r} has no value")
        values[name] = getattr(parameter, which)
    return values


def _tensor(tensor: Any, datatype: str, shape: tuple[int, ...], raw: bytes | None) -> Encoded:
    """Return an input whose parameters, but for ``binary_data_size``, which kserve's client sends, are for the pipeline."""
    parameters = _values(tensor.parameters)
    size = parameters.pop(_SIZE, None)
    if size is not None and (raw is None or size != len(raw)):
        sent = "no such parameter" if raw is None else f"{len(raw)}, the bytes that were sent"
        size_of = f"{_SIZE} of input {tensor.name!r}"
        raise InputError(size_of, expected=sent, got=repr(size)[:40])
    if raw is not None:
        return Encoded(tensor.name, datatype, shape, raw, parameters=parameters)
    return Encoded(tensor.name, datatype, shape, tensor.contents, _contents, parameters)


def _contents(name: str, datatype: str, shape: tuple[int, ...], contents: Any) -> Any:
    if datatype not in CONTENTS:
        raise InputError(f"input {name!r}: {datatype} travels in raw_input_contents only")
    for field, _ in contents.ListFields():
        if field.name != CONTENTS[datatype]:
            raise InputError(
                f"input {name!r}: {datatype}", expected=CONTENTS[datatype], got=field.name
            )
    elements = getattr(contents, CONTENTS[datatype])
    if len(elements) != math.prod(shape):
        raise InputError(
            f"input {name!r}", expected=f"data of shape {list(shape)}", got=f"[{len(elements)}]"
        )
    values = list(elements)
    if datatype not in ("FP32", "FP64", "BYTES"):
        return from_json(name, datatype, shape, values)
    array = np.empty(len(values), DATATYPES[datatype])
    array[:] = values
    return array.reshape(shape)


def write_response(answer: Answer) -> bytes:
    """Write the bytes of a ``ModelInferResponse``; its tensors are copied once, as raw bytes."""
    model = answer.model
    response = RESPONSE(model_name=model.name, model_version=model.version, id=answer.id)
    for name, value in answer.parameters.items():
        kind = "bool_param" if isinstance(value, bool) else "string_param"
        setattr(response.parameters[name], kind, value)
    raw: list[Any] = []
    for tensor in answer.outputs:
        form = {"name": tensor.name, "datatype": tensor.datatype, "shape": tensor.shape}
        output = response.outputs.add(**form)
        for name, value in tensor.parameters.items():
            output.parameters[name].string_param = value
        elements = tensor_view(tensor)
        raw += (_RAW_OUTPUT, varint_of(len(elements)), elements)
    return b"".join([response.SerializeToString(), *raw])


def as_streamed(response: bytes) -> bytes:
    """Write a ``ModelStreamInferResponse`` around the bytes of a ``ModelInferResponse``."""
    return b"".join([_STREAMED, varint_of(len(response)), response])
