"""Reads and writes the bodies of inferences over REST: JSON, followed by the binary data of tensors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import orjson

from headrace.errors import InputError
from headrace_serve.client_input import whole_number
from headrace_serve.datatypes import ONLY_BINARY, as_json_values, from_json
from headrace_serve.errors import ItemError, NotJsonError
from headrace_serve.http.bodies import SMALL_JSON_BYTES
from headrace_serve.inference.messages import Asked, Encoded
from headrace_serve.inference.parameters import flag, with_trace, without_nulls
from headrace_serve.inference.parsed_requests import IN_JSON, ParsedRequest, PlainOutputs
from headrace_serve.inference.results import JSON
from headrace_serve.inference.tensors import (
    check_number,
    read_form,
    read_outputs,
    refuse_region,
    tensor_view,
)
from headrace_serve.threads import call_by_size
from headrace_tensors import DATATYPES

if TYPE_CHECKING:
    from headrace_serve.http.exchange import Exchange
    from headrace_serve.inference.messages import Answer, Tensor
    from headrace_serve.models.model import Model

__all__ = [
    "HEADER_LENGTH",
    "HEADER_LENGTH_BYTES",
    "OCTETS",
    "Wanted",
    "read_again",
    "read_body",
    "write_body",
]

HEADER_LENGTH = "inference-header-content-length"
"""The header with the number of bytes of the JSON, behind which the binary data begins."""

HEADER_LENGTH_BYTES = HEADER_LENGTH.encode()
OCTETS = "application/octet-stream"

_OF_INPUTS = ("name", "shape", "datatype", "parameters", "data")
_KEYS = ("id", "model_name", "parameters", "inputs", "outputs")


class Wanted:
    """The form in which a client wants the outputs.

    Attributes:
        binary: Whether an output is wanted as binary data, by its name. The key None is for all other outputs.
    """

    def __init__(self, binary: dict[str | None, bool]) -> None:
        self.binary = binary

    def is_binary(self, name: str) -> bool:
        """Return whether an output is wanted as binary data."""
        return self.binary.get(name, self.binary.get(None, False))


def read_again(exchange: Exchange, model: Model, body: bytes) -> dict[str, Any] | None:
    """Return the request of the pipeline for a body of a form that an earlier request has had. None for any other.

    The form of a body with binary data is its JSON, that of JSON is the JSON without the elements of its tensors.

    Raises:
        HeadraceError: As `read_body`.
    """
    length, known = exchange.varying.get(HEADER_LENGTH_BYTES), model.rest_requests.known
    if length is not None:
        place = whole_number(length.decode("latin-1"))
        form = None if place is None else known.get(body[:place])
        if form is None or form.plain is None or form.size != len(body) - (place or 0):
            return None
        request = form.plain.request(body, place or 0)
    else:
        if len(body) > min(SMALL_JSON_BYTES, exchange.limits.max_json_bytes):
            return None
        document: Any = exchange.parsed_now(body)
        exchange.document = document
        text, values, identifier = _without_elements(document)
        form = known.get(text)
        if form is None or form.plain is None:
            return None
        exchange.identifier = identifier
        request = form.plain.request_of(form.inputs, values)
    exchange.form = form
    if traced := exchange.traced:
        exchange.parameters = with_trace({}, traced)
    return request


def _without_elements(document: Any) -> tuple[bytes, list[Any], str]:
    """Return the JSON of a request without its id and the elements of its tensors, these, and the id; ``b""`` where it may be wrong."""
    try:
        plain = {**document, "inputs": [{**tensor} for tensor in document["inputs"]]}
        values = [tensor.pop("data") for tensor in plain["inputs"]]
        identifier = plain.pop("id", "")
        if type(identifier) is str:
            return b"JSON" + orjson.dumps(plain), values, identifier
    except (TypeError, KeyError):
        pass
    return b"", [], ""


async def read_body(
    body: bytes | memoryview, header_length: str, model: Model, exchange: Exchange
) -> tuple[Asked, Wanted]:
    """Read the body of a request.

    Args:
        body: The whole body, decompressed.
        header_length: The value of the header `HEADER_LENGTH`, ``""`` without it.
        model: The model that the path names. The body may name it too, as kserve's client does.
        exchange: The request.

    Raises:
        InputError: The body is malformed, or names a region of shared memory.
    """
    length = len(body)
    if header_length:
        given = whole_number(header_length)
        if given is None or given > length:
            raise InputError(
                "the header Inference-Header-Content-Length",
                expected=f"a number up to {length}, the bytes of the body",
                got=header_length[:20],
            )
        length = given
    head, binary = bytes(body[:length]), memoryview(body)[length:]
    known = model.rest_requests.known.get(head) if header_length else None
    if known is not None and known.size == len(binary):
        return _filled(known, binary), known.wanted
    parsed: Any = exchange.document
    if parsed is None:
        parsed = await exchange.parsed(head)
    exchange.note_identifier(parsed)
    document = _object("the request", parsed, _KEYS)
    if document.get("model_name", model.name) != model.name:
        raise InputError(
            "model_name",
            expected=f"{model.name!r}, as in the path",
            got=repr(document["model_name"])[:40],
        )
    parameters = without_nulls(_parameters("the request", document))
    reader = _Reader(binary, model, exchange.limits.max_items)
    listed = _list("inputs", document, required=True)
    check_number("inputs", len(listed), model.signature.inputs)
    inputs = [reader.tensor(tensor) for tensor in listed]
    reader.end()
    outputs, wanted, classes = _outputs(document, parameters, model)
    identifier = document.get("id", "")
    if not isinstance(identifier, str):
        raise InputError("id", expected="a string", got=type(identifier).__name__)
    asked = Asked(inputs, outputs, identifier, parameters, classes=classes)
    _keep(model, asked, reader.sizes, wanted, _without_elements(parsed)[0] if not binary else head)
    return asked, wanted


def _keep(model: Model, asked: Asked, sizes: list[int], wanted: Wanted, text: bytes) -> None:
    """Keep what a request has said, if all that is not said there are the elements of its inputs, and the id of one of JSON."""
    if asked.classes or not text or any(tensor.parameters for tensor in asked.inputs):
        return
    in_json = not sizes
    if in_json:
        sizes = [IN_JSON] * len(asked.inputs)
    elif asked.id or len(sizes) < len(asked.inputs):
        return
    inputs = [
        (tensor.name, tensor.datatype, tensor.shape, size)
        for tensor, size in zip(asked.inputs, sizes, strict=True)
    ]
    asked.parsed = ParsedRequest(inputs, asked.outputs, dict(asked.parameters), wanted)
    model.rest_requests.keep(text, asked.parsed)


def _filled(parsed: ParsedRequest, binary: memoryview) -> Asked:
    """Build what a request asks for from an earlier request, as parsed, and its own binary data."""
    inputs, place = [], 0
    for name, datatype, shape, size in parsed.inputs:
        data = binary[place : place + size]
        inputs.append(Encoded(name, datatype, shape, data))
        place += size
    return Asked(inputs, parsed.outputs, "", dict(parsed.parameters), parsed=parsed)


def _object(where: str, value: Any, keys: tuple[str, ...]) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise InputError(where, expected="a JSON object", got=type(value).__name__)
    fields = without_nulls(value)
    for key in fields:
        if key not in keys:
            raise InputError(f"{where} has a key {key!r}", expected=", ".join(keys))
    return fields


def _list(name: str, document: dict[str, Any], *, required: bool = False) -> list[Any]:
    listed = document.get(name, None if required else [])
    if not isinstance(listed, list):
        got = "nothing" if listed is None else type(listed).__name__
        raise InputError(name, expected="a list of objects", got=got)
    return listed


def _parameters(where: str, document: dict[str, Any]) -> dict[str, Any]:
    given = document.get("parameters", {})
    if not isinstance(given, dict):
        raise InputError(f"parameters of {where}", expected="an object", got=type(given).__name__)
    return given


class _Reader:
    """Reads the inputs in their order. Their binary data is in the body in the same order.

    Attributes:
        sizes: The number of bytes of each input that had binary data.
    """

    def __init__(self, binary: memoryview, model: Model, most_items: int) -> None:
        self._binary = binary
        self._model = model
        self._most_items = most_items
        self._place = 0
        self.sizes: list[int] = []

    def tensor(self, document: Any) -> Encoded:
        """Read one input."""
        document = _object("an input", document, _OF_INPUTS)
        name = _name("an input", document)
        datatype, shape = read_form(
            self._model, name, document.get("datatype"), document.get("shape"), self._most_items
        )
        parameters = _parameters(f"input {name!r}", document)
        refuse_region(f"input {name!r}", parameters)
        parameters = without_nulls(parameters)
        size = parameters.pop("binary_data_size", None)
        if size is None:
            return Encoded(name, datatype, shape, document.get("data"), from_json, parameters)
        if "data" in document:
            raise InputError(f"input {name!r} has both data and binary_data_size")
        return Encoded(name, datatype, shape, self._take(name, size), parameters=parameters)

    def _take(self, name: str, size: Any) -> memoryview:
        left = len(self._binary) - self._place
        if isinstance(size, bool) or not isinstance(size, int) or not 0 <= size <= left:
            raise InputError(
                f"binary_data_size of input {name!r}",
                expected=f"a number up to {left}, the bytes that are left",
                got=repr(size)[:40],
            )
        self._place += size
        self.sizes.append(size)
        return self._binary[self._place - size : self._place]

    def end(self) -> None:
        """Refuse a body with bytes behind the last input's data."""
        if self._place != len(self._binary):
            raise InputError(f"the body has {len(self._binary) - self._place} bytes of no input")


def _name(where: str, document: dict[str, Any]) -> str:
    name = document.get("name")
    if not isinstance(name, str):
        raise InputError(f"name of {where}", expected="a string", got=repr(name)[:40])
    return name


def _outputs(
    document: dict[str, Any], parameters: dict[str, Any], model: Model
) -> tuple[list[str] | None, Wanted, dict[str, int]]:
    binary: dict[str | None, bool] = {None: flag("binary_data_output", parameters)}
    listed = _list("outputs", document)
    check_number("outputs", len(listed), model.signature.outputs)
    asked = []
    for output in listed:
        said = _object("an output", output, ("name", "parameters"))
        name = _name("an output", said)
        asked.append((name, _parameters(f"output {name!r}", said)))
    outputs, classes = read_outputs(asked, ("binary_data",))
    binary |= {name: flag("binary_data", given) for name, given in outputs.items() if given}
    return list(outputs) or None, Wanted(binary), classes


def _json_values(answer: Answer, tensor: Tensor) -> Any:
    """Return the elements of an output for JSON. The error of one that JSON cannot hold names its item.

    With ``partial``, the numbers of rows and items differ once an item has failed.
    """
    name, datatype = tensor.name, tensor.datatype
    try:
        return as_json_values(name, datatype, tensor.array)
    except (InputError, NotJsonError):
        by_item = answer.model.signature.by_item and "errors" not in answer.parameters
        if not by_item or datatype in ONLY_BINARY:
            raise
    for index, row in enumerate(tensor.array):
        try:
            as_json_values(name, datatype, np.asarray(row, tensor.array.dtype))
        except (InputError, NotJsonError) as error:
            raise ItemError(index, error) from error
    raise AssertionError("unreachable: one of the rows has failed")


async def write_body(
    answer: Answer, wanted: Wanted, parsed: ParsedRequest | None
) -> tuple[list[bytes | memoryview], int | None]:
    """Write the body of an answer.

    Args:
        answer: The answer.
        wanted: The form in which the client wants the outputs.
        parsed: The request as parsed, which keeps the JSON for the next answer with outputs of these shapes.
            None for an answer with parameters, which are its own, such as the errors of items.

    Returns:
        The parts of the body, JSON first, and the number of bytes of the JSON if binary data follows it, else None.

    Raises:
        InputError, NotJsonError, ItemError: The client wants an output as JSON, which cannot hold its elements.
    """
    elements = 0
    for tensor in answer.outputs:
        if tensor.datatype == "BYTES" or not wanted.is_binary(tensor.name):
            elements += tensor.array.size
    return await call_by_size(elements, _written, answer, wanted, parsed)


def _written(
    answer: Answer, wanted: Wanted, parsed: ParsedRequest | None
) -> tuple[list[bytes | memoryview], int | None]:
    """Write the body of an answer; see `write_body`."""
    parts: list[bytes | memoryview] = []
    outputs: list[dict[str, Any]] = []
    for tensor in answer.outputs:
        output: dict[str, Any] = {
            "name": tensor.name, "datatype": tensor.datatype, "shape": list(tensor.shape)
        }  # fmt: skip
        parameters = dict(tensor.parameters)
        if wanted.is_binary(tensor.name):
            parts.append(tensor_view(tensor))
            parameters["binary_data_size"] = len(parts[-1])
        else:
            output["data"] = _json_values(answer, tensor)
        if parameters:
            output["parameters"] = parameters
        outputs.append(output)
    document: dict[str, Any] = {
        "model_name": answer.model.name, "model_version": answer.model.version, "outputs": outputs
    }  # fmt: skip
    if answer.id:
        document["id"] = answer.id
    if answer.parameters:
        document["parameters"] = answer.parameters
    header = orjson.dumps(document, option=orjson.OPT_SERIALIZE_NUMPY)
    # The number of bytes follows from the shapes, but for BYTES.
    fixed = all(tensor.datatype != "BYTES" for tensor in answer.outputs)
    if parsed is not None and fixed and len(parts) == len(outputs) and not answer.id:
        parsed.again = _again(answer, parsed.outputs, [header])
    elif parsed is not None and fixed and not parts and outputs:
        parsed.again = _again(answer, parsed.outputs, _pieces(answer, outputs))
    return [header, *parts], len(header) if parts else None


def _pieces(answer: Answer, outputs: list[dict[str, Any]]) -> list[bytes]:
    """Return what stands before the elements of each output in an answer of JSON, and behind those of the last one."""
    named = {"model_name": answer.model.name, "model_version": answer.model.version}
    before, pieces = orjson.dumps(named)[:-1] + b',"outputs":[', []
    for output in outputs:
        about = orjson.dumps({key: output[key] for key in ("name", "datatype", "shape")})
        pieces.append(before + about[:-1] + b',"data":')
        before = b"},"
    return [*pieces, b"}]"]


def _again(answer: Answer, wanted: list[str] | None, heads: list[bytes]) -> PlainOutputs | None:
    """Return how to write the same answer with other numbers. None where that is not all."""
    forms, ports, is_binary = [], answer.model.signature.outputs, len(heads) == 1
    for tensor in answer.outputs:
        if (
            tensor.datatype == "BF16"
            or tensor.parameters
            or tensor.array.dtype != DATATYPES[tensor.datatype]
        ):
            return None
        forms.append((tensor.array.dtype, tensor.array.shape))
    whole = len(ports) == 1 and not answer.by_name
    names = [tensor.name for tensor in answer.outputs]
    absent = [name for name in (ports if wanted is None else wanted) if name not in names]
    headers = {HEADER_LENGTH: str(len(heads[0]))} if is_binary else {}
    kind = OCTETS if is_binary else JSON
    return PlainOutputs(None if whole else names, forms, heads, absent, kind, headers)
