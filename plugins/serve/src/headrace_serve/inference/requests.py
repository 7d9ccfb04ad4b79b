"""Runs one inference: converts tensors to requests of the pipeline, and their results to tensors."""

from __future__ import annotations

import json
from functools import partial as partly
from typing import TYPE_CHECKING, Any

import numpy as np

from headrace import keys
from headrace.errors import ContractError, InputError, RequestError, RequestsFailed, among
from headrace_serve.errors import ItemError, refusal
from headrace_serve.inference.classification import classified
from headrace_serve.inference.messages import Answer
from headrace_serve.inference.outcomes import run_soon
from headrace_serve.inference.parameters import (
    FINAL,
    SEQUENCES,
    add_context,
    call_arguments,
    check_parameters,
    flag,
    for_pipeline,
    of_sequence,
)
from headrace_serve.inference.results import elements_of, tensors_of
from headrace_serve.threads import call_by_size

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from numpy.typing import NDArray

    from headrace_serve.admission.limits import Limits
    from headrace_serve.inference.messages import Asked, Encoded, Tensor
    from headrace_serve.models.model import Model
    from headrace_serve.models.signature import Port
    from headrace_serve.monitoring.run_times import RunTimes

__all__ = [
    "RESPONSE_PARAMETERS",
    "begin",
    "check_written",
    "infer",
    "item_count",
    "made_request",
    "prepared",
    "request_of",
    "with_classes",
    "written",
]

_PASSING = (429, 503, 504)
RESPONSE_PARAMETERS = "response_parameters"
"""The key under which a backend writes parameters of the response."""


async def infer(
    model: Model,
    asked: Asked,
    *,
    limits: Limits,
    priority_default: int,
    debug_errors: bool,
    failed_item: Callable[[BaseException], None],
) -> Answer:
    """Run what a client asks for. The arguments by name are those of `Service`.

    With the parameter ``partial`` the errors of items are given to ``failed_item``, and raise nothing.

    Raises:
        InputError: The inputs, outputs or parameters are wrong.
        ItemError: One of the items failed.
        RequestError, ClosedError: As ``pipe.call_async`` raises them.
        asyncio.CancelledError: The client went away. Its requests have left the queues in which they waited.
    """
    values, call, fixed = await begin(model, asked, limits, priority_default)
    partial = flag("partial", asked.parameters)
    parameters: dict[str, Any] = {}
    if FINAL in asked.parameters and flag(FINAL, asked.parameters):
        parameters["triton_final_response"] = True  # a request has one response
    if model.signature.by_item:
        count = item_count(model, values)
        requests = [made_request(model, values, fixed, item) for item in range(count)]
        _at_the_edges(requests)
        results, failed = await _run_items(model, requests, call, partial=partial)
        write = partly(_written, model, results, failed, asked.outputs, partial=partial)
        outputs = await call_by_size(elements_of(list(results.values())), write)
        check_written(model, outputs, limits)
        outputs = await with_classes(model, outputs, asked)
        for error in failed.values():
            failed_item(error)
        if failed:
            parameters["errors"] = _errors_text(failed, debug=debug_errors)
        return Answer(model, asked.id, outputs, len(results), parameters)
    if partial:
        raise InputError(f"parameter 'partial' is for inputs of items, and {model.name!r} has none")
    request = made_request(model, values, fixed, None)
    await run_soon(model.pipe, request, **call)
    return await written(model, asked, request, limits, parameters)


async def written(
    model: Model, asked: Asked, request: dict[str, Any], limits: Limits, parameters: dict[str, Any]
) -> Answer:
    """Return the answer of a request of the pipeline that has ended, with these parameters.

    Raises:
        ContractError, NotJsonError: As `headrace_serve.inference.results.tensors_of`, and as `check_written`.
    """
    result = request["result"]
    write = partly(tensors_of, model, [result], by_item=False, wanted=asked.outputs)
    outputs = await call_by_size(elements_of(result), write)
    check_written(model, outputs, limits)
    outputs = await with_classes(model, outputs, asked)
    parameters |= request.get(RESPONSE_PARAMETERS) or {}
    rows, by_name = request.get(keys.REQUEST_SIZE, 1), isinstance(result, dict)
    return Answer(model, asked.id, outputs, rows, parameters, by_name=by_name)


async def begin(
    model: Model, asked: Asked, limits: Limits, priority_default: int
) -> tuple[dict[str, NDArray[Any]], dict[str, Any], dict[str, Any]]:
    """Read the inputs of what a client asks for, and check it. The arguments are those of `infer`.

    Returns:
        The elements of the inputs by their names, the arguments of ``pipe.call_async``, and the keys of the request of the
        pipeline that are no inputs.

    Raises:
        InputError: The inputs, outputs or parameters are wrong.
    """
    elements = sum([tensor.elements for tensor in asked.inputs])
    if elements > limits.max_elements:
        _check_elements(asked.inputs, limits)
    values = await call_by_size(elements, _arrays, model, asked.inputs)
    parsed = asked.parsed
    if parsed is None or not parsed.checked:
        check_parameters(asked.parameters, model.signature.sequence_key)
        _check_inputs(model, asked.inputs, all_needed=asked.fields is None)
        _check_outputs(model, asked.outputs)
        if parsed is not None:
            parsed.note_checked(model)
    call = call_arguments(asked.parameters, asked.timeout_s, limits, priority_default)
    return values, call, _same_for_all_items(model, asked)


def _same_for_all_items(model: Model, asked: Asked) -> dict[str, Any]:
    """Return the keys of the pipeline's request that are not tensors."""
    identifier = asked.id or asked.request_id
    fixed: dict[str, Any] = {keys.REQUEST_ID: identifier} if identifier else {}
    client = asked.client
    if model.signature.sequence_key is not None:
        fixed |= of_sequence(asked.parameters, model.signature.sequence_key)
        client = {**client, SEQUENCES[1]: "required"}  # as in Triton, if a backend leaves it open
    add_context(fixed, asked.parameters, asked.times, client, for_pipeline(asked))
    return {**fixed, **(asked.fields or {})}


def _at_the_edges(requests: Sequence[dict[str, Any]]) -> None:
    """Let only the first item of a request begin a sequence, and only the last one end it."""
    for flag_of, others in (("sequence_start", requests[1:]), ("sequence_end", requests[:-1])):
        for request in others:
            request.pop(flag_of, None)


def request_of(model: Model, tensors: list[Tensor], more: Mapping[str, Any]) -> dict[str, Any]:
    """Make one request of the pipeline from tensors, for `prepared`.

    Args:
        model: The model that the request is for.
        tensors: Its inputs. An input of items has one item.
        more: Further keys of the request.

    Raises:
        InputError: The tensors are not those that the model takes.
    """
    _check_inputs(model, tensors)
    ports = model.signature.inputs
    values = {tensor.name: _as_said(ports[tensor.name], tensor.array) for tensor in tensors}
    return made_request(model, values, more, 0)


def prepared(
    request: dict[str, Any],
    parameters: Mapping[str, Any],
    times: RunTimes | None,
    client: Mapping[str, Any],
    *,
    limits: Limits,
    priority_default: int,
) -> Mapping[str, Any]:
    """Complete a request of `request_of`, and give the arguments of ``pipe.call_async`` for it.

    Args:
        request: The request. It is changed.
        parameters: ``timeout``, ``priority`` and the trace, as far as the client has sent them.
        times: Records when the request waits and runs in the pipeline. None: it is not measured.
        client: As `Asked` has it.
        limits: The limits that hold for the model.
        priority_default: As `Service` has it.

    Raises:
        InputError: A parameter is wrong.
    """
    if parameters or client or times is not None:
        add_context(request, parameters, times, client)
    return call_arguments(parameters, None, limits, priority_default)


async def _run_items(
    model: Model, requests: list[dict[str, Any]], call: dict[str, Any], *, partial: bool
) -> tuple[dict[int, Any], dict[int, BaseException]]:
    """Run a request per item. Return the results and the errors, by the items' indexes.

    With ``partial`` the other results are enough. But if all items fail and the first one's error means overload,
    deadline or closing, that error is raised nevertheless, because with its status the client, or a load balancer,
    retries.
    """
    if len(requests) == 1:  # a call with a single dict is cheaper than one with a list
        try:
            await run_soon(model.pipe, requests[0], **call)
        except RequestError as error:
            if not partial or refusal(error).status in _PASSING:
                raise ItemError(0, error) from error
            return {}, {0: error}
        return {0: requests[0]["result"]}, {}
    try:
        await model.pipe.call_async(requests, **call)
    except RequestsFailed as error:
        failed = {i: each for i, each in enumerate(error.errors) if each is not None}
        first, why = next(iter(failed.items()))
        none_left = len(failed) == len(requests)
        if not partial or (none_left and refusal(why).status in _PASSING):
            raise ItemError(first, why) from why
        return {i: sent["result"] for i, sent in enumerate(requests) if i not in failed}, failed
    return {i: sent["result"] for i, sent in enumerate(requests)}, {}


def _written(
    model: Model,
    results: dict[int, Any],
    failed: dict[int, BaseException],
    wanted: list[str] | None,
    *,
    partial: bool,
) -> list[Tensor]:
    """Return the outputs of items, with ``partial``, results that cannot be written count as failed.

    The loop ends, because each turn removes results. The next turn may also fail, at another output.
    """
    while True:
        try:
            return tensors_of(model, list(results.values()), by_item=True, wanted=wanted)
        except RequestsFailed as error:
            errors = zip(list(results), error.errors, strict=True)
            lost = {index: failure for index, failure in errors if failure is not None}
            if not partial:
                raise ItemError(*next(iter(lost.items()))) from error
        for index in lost:
            del results[index]
        failed |= lost


def _errors_text(failed: dict[int, BaseException], *, debug: bool) -> str:
    """Return the errors of items as JSON text, because a parameter cannot hold a list."""
    rows = []
    for index, error in sorted(failed.items()):
        refused = refusal(error, debug=debug)
        rows.append({"index": index, "code": refused.code, "message": refused.text})
    return json.dumps(rows)


def _arrays(model: Model, inputs: Sequence[Encoded]) -> dict[str, NDArray[Any]]:
    """Read the elements of the inputs, which may be other ones than the model has."""
    ports = model.signature.inputs
    return {tensor.name: _as_said(ports.get(tensor.name), tensor.array()) for tensor in inputs}


def _check_elements(inputs: Sequence[Encoded], limits: Limits) -> None:
    elements = sum(tensor.elements for tensor in inputs if tensor.datatype == "BYTES")
    if elements > limits.max_elements:
        raise InputError(
            f"the inputs of BYTES have {elements} elements together, which are more than the"
            f" {limits.max_elements} that one request may hold"
        )


def check_written(model: Model, outputs: Sequence[Tensor], limits: Limits) -> None:
    """Check the number of elements of BYTES in an answer.

    Raises:
        ContractError: They are more than an answer may hold.
    """
    elements = sum([tensor.array.size for tensor in outputs if tensor.datatype == "BYTES"])
    if elements > limits.max_elements:
        raise ContractError(
            f"the outputs of BYTES of model {model.name!r} have {elements} elements together",
            hint=f"An answer may hold {limits.max_elements}: max_elements of Limits, or of the model.",
        )


async def with_classes(model: Model, outputs: list[Tensor], asked: Asked) -> list[Tensor]:
    """Return the outputs, with classes instead of the values of those for which the client has asked so."""
    counts = asked.classes
    if not counts:
        return outputs
    elements = sum(tensor.array.size for tensor in outputs if tensor.name in counts)

    def work() -> list[Tensor]:
        return [classified(model, t, counts[t.name]) if t.name in counts else t for t in outputs]

    return await call_by_size(elements, work)


def _check_inputs(
    model: Model, inputs: Sequence[Tensor | Encoded], *, all_needed: bool = True
) -> None:
    """Check the tensors against the signature."""
    ports = model.signature.inputs
    names = set()
    for tensor in inputs:
        port = ports.get(tensor.name)
        if port is None:
            raise InputError(
                f"model {model.name!r} has no input {tensor.name!r}",
                hint=among(tensor.name, ports),
            )
        if tensor.name in names:
            raise InputError(f"input {tensor.name!r} is there twice")
        _check(port, tensor)
        names.add(tensor.name)
    for name, port in ports.items():
        if all_needed and name not in names and not port.optional:
            raise InputError(f"input {name!r} of model {model.name!r} is missing")


def _check(port: Port, tensor: Tensor | Encoded) -> None:
    if tensor.datatype != port.datatype or not port.fits(_items_of(port, tensor.shape)):
        raise InputError(
            f"input {tensor.name!r}",
            expected=f"{port.datatype} {list(port.shape)}",
            got=f"{tensor.datatype} {list(tensor.shape)}",
        )


def _items_of(port: Port, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Give the shape of an input without a last axis of one element, which MLServer's codecs add to items of BYTES."""
    if port.each and port.shape == (-1,) and len(shape) == 2 and shape[1] == 1:
        return shape[:1]
    return shape


def _check_outputs(model: Model, wanted: list[str] | None) -> None:
    for name in wanted or ():
        if name not in model.signature.outputs:
            raise InputError(
                f"model {model.name!r} has no output {name!r}",
                hint=among(name, model.signature.outputs),
            )


def item_count(model: Model, values: Mapping[str, NDArray[Any]]) -> int:
    """Return the number of items, which must be the same in all inputs of items."""
    each = [name for name, port in model.signature.inputs.items() if port.each]
    lengths = {name: len(values[name]) for name in each if name in values}
    if len(set(lengths.values())) > 1:
        counts = ", ".join(f"{name!r} {length}" for name, length in lengths.items())
        raise InputError(f"the inputs have different numbers of items: {counts}")
    return next(iter(lengths.values()), 1)


def made_request(
    model: Model, values: Mapping[str, NDArray[Any]], fixed: Mapping[str, Any], item: int | None
) -> dict[str, Any]:
    """Return the dict of one request of the pipeline.

    Args:
        model: The model.
        values: The elements of the inputs, by their names.
        fixed: The keys that are no inputs.
        item: The item that the request is for, by its place in inputs of items. None: it is for all of them.

    Raises:
        InputError: Inputs have different numbers of rows.
        FieldError: The request lacks a field of the model's JSON.
    """
    request: dict[str, Any] = dict(fixed)
    for name, port in model.signature.inputs.items():
        if name not in values:
            continue
        array = values[name]
        if port.batch_axis is not None:
            rows = array.shape[port.batch_axis]
            if request.setdefault(keys.REQUEST_SIZE, rows) != rows:
                raise InputError(
                    f"input {name!r} has {rows} rows, others have {request[keys.REQUEST_SIZE]}"
                )
        request[port.key] = array if item is None or not port.each else array[item]
    return request if model.fields is None else model.fields.completed(request)


def _as_said(port: Port | None, array: NDArray[Any]) -> NDArray[Any]:
    """Return the elements of an input as the model takes them: bytes as text where it takes text."""
    if port is None:
        return array
    if port.each:
        array = array.reshape(_items_of(port, array.shape))
    if not port.text or array.dtype != object:
        return array
    texts = np.empty(array.shape, object)
    try:
        texts.reshape(-1)[:] = [value.decode("utf-8") for value in array.flat]
    except UnicodeDecodeError:
        raise InputError(f"input {port.name!r}: its elements are no UTF-8 text") from None
    return texts
