"""The parameters of a request of inference: those that the server reads, and those that go to the pipeline."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

from headrace.errors import DeadlineExceededError, InputError
from headrace_serve.monitoring.run_times import TimedContext

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from headrace_serve.admission.limits import Limits
    from headrace_serve.inference.messages import Asked
    from headrace_serve.monitoring.run_times import RunTimes

__all__ = [
    "FINAL",
    "SEQUENCES",
    "TRACE",
    "TRACED",
    "UNBOUNDED",
    "add_context",
    "call_arguments",
    "check_parameters",
    "flag",
    "for_pipeline",
    "of_sequence",
    "telling_unit",
    "with_trace",
    "without_nulls",
]

_GREATEST = (1 << 63) - 1
SEQUENCES = ("sequence_id", "sequence_start", "sequence_end")
"""Parameters of sequences, which only models that keep state by key take."""
TRACE = ("traceparent", "tracestate", "baggage")
"""Headers, and parameters of the same names, that a request brings of its trace (W3C Trace Context, W3C Baggage)."""
TRACED = frozenset(name.encode() for name in TRACE)
_CALLING = {"timeout", "priority", *TRACE}
UNBOUNDED: dict[str, Any] = {"timeout": None, "priority": 0}
"""The arguments of a call without timeout and priority."""
FINAL = "triton_enable_empty_final_response"
"""Triton's C++ clients, such as perf_analyzer, send it with every gRPC request."""
_KNOWN = frozenset((*_CALLING, "partial", "binary_data_output", FINAL))
"""The parameters that the server reads; all others are the pipeline's."""
_OF_INPUTS = "inputs"
"""Under this name ``context["parameters"]`` has the parameters of inputs, by the inputs' names."""


def for_pipeline(asked: Asked) -> dict[str, Any]:
    """Return the parameters that are not the server's: those of the request, and under ``inputs`` those of each input."""
    if not asked.parameters and asked.parsed is not None:
        return {}  # a parsed request is kept only of requests without parameters of inputs
    others = asked.parameters.items()
    parameters = {k: v for k, v in others if k not in _KNOWN and k not in SEQUENCES}
    inputs = {tensor.name: tensor.parameters for tensor in asked.inputs if tensor.parameters}
    return {**parameters, _OF_INPUTS: inputs} if inputs else parameters


def without_nulls(document: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of an object of the protocol; one that is null is as if it were not there."""
    return {name: value for name, value in document.items() if value is not None}


def add_context(
    request: dict[str, Any],
    parameters: Mapping[str, Any],
    times: RunTimes | None,
    client: Mapping[str, Any],
    others: dict[str, Any] | None = None,
) -> None:
    """Add the key ``context`` to a request of the pipeline, if there is something for it.

    Args:
        request: The request. It is changed.
        parameters: Those of the protocol. The context has those of `TRACE`.
        times: Records when the request waits and runs. None: it is not measured.
        client: Further content of the context: who sends the request, and by which rules.
        others: The parameters for the pipeline, which become ``parameters`` of the context.
    """
    context = {**client, **{name: parameters[name] for name in TRACE if name in parameters}}
    if others:
        context["parameters"] = others
    if context:
        request["context"] = context
    if times is not None:
        request["context"] = TimedContext(request.get("context", {}), times)


def with_trace(parameters: Mapping[str, Any], sent: Mapping[str, str]) -> dict[str, Any]:
    """Return parameters, and what the headers of a request say of its trace where the parameters do not.

    A ``tracestate`` belongs to the ``traceparent`` beside it (W3C Trace Context, 3.3), and without it says nothing.
    """
    parents = {name: sent[name] for name in TRACE if name in sent}
    if "traceparent" in parameters or "traceparent" not in sent:
        parents.pop("tracestate", None)
    return {**parents, **parameters}


def flag(name: str, parameters: Mapping[str, Any]) -> bool:
    """Return a parameter that is true or false. False without it.

    Raises:
        InputError: It is neither.
    """
    value = parameters.get(name, False)
    if not isinstance(value, bool):
        raise InputError(f"parameter {name!r}", expected="true or false", got=repr(value)[:40])
    return value


def check_parameters(parameters: Mapping[str, Any], sequence_key: str | None = None) -> None:
    """Refuse the parameters of sequences where the model has none, and one that has the name of those of inputs.

    Raises:
        InputError: There is such a parameter.
    """
    for name in parameters:
        if name in SEQUENCES and sequence_key is None:
            hint = (
                "A model takes sequences whose entry node is StateFul(KEY)[...] of headrace-flow."
            )
            problem = f"parameter {name!r}: sequences are not supported by this model"
            raise InputError(problem, hint=hint)
        if name == _OF_INPUTS:
            raise InputError(f"parameter {name!r}: the parameters of inputs have this name")


def of_sequence(parameters: Mapping[str, Any], key: str) -> dict[str, Any]:
    """Return the keys of a request of the pipeline that say to which sequence it belongs, and where in it it stands.

    Args:
        parameters: Those of the protocol.
        key: The key that names the sequence.

    Raises:
        InputError: ``sequence_id`` is missing, 0, empty, or neither a number nor a text, or a flag is none.
    """
    identifier = parameters.get("sequence_id", 0)
    if isinstance(identifier, bool) or not isinstance(identifier, (int, str)) or not identifier:
        wanted = "a number other than 0, or a text that is not empty: this model keeps the state of sequences"
        raise InputError("parameter 'sequence_id'", expected=wanted, got=repr(identifier)[:40])
    flags = {name: True for name in SEQUENCES[1:] if flag(name, parameters)}
    return {key: identifier, **flags}


def call_arguments(
    given: Mapping[str, Any], timeout_s: float | None, limits: Limits, priority_default: int
) -> dict[str, Any]:
    """Return the arguments of ``pipe.call_async``.

    ``timeout`` is the shortest of transport, parameter and limit, in seconds, of ``priority`` the greater goes first.
    """
    if timeout_s is None and limits.max_timeout_ms is None and _CALLING.isdisjoint(given):
        return UNBOUNDED
    timeout_us = _whole("timeout", given.get("timeout", 0))
    times_s = [timeout_s] if timeout_s is not None else []
    if timeout_us:
        times_s.append(timeout_us / 1e6)
    if limits.max_timeout_ms is not None:
        times_s.append(limits.max_timeout_ms / 1e3)
    level = _whole("priority", given.get("priority", 0))
    for name in TRACE:
        if not isinstance(value := given.get(name, ""), str):
            raise InputError(f"parameter {name!r}", expected="a string", got=repr(value)[:40])
    return {
        "timeout": min(times_s) if times_s else None,
        "priority": priority_default - level if level else 0,
    }


@contextlib.contextmanager
def telling_unit(given: Mapping[str, Any]) -> Iterator[None]:
    """Add to the error of a deadline in which unit the request gave its ``timeout``."""
    try:
        yield
    except DeadlineExceededError as error:
        if timeout_us := given.get("timeout"):
            error.what += (
                f": its timeout was {timeout_us:,} microseconds; a second is timeout=1000000"
            )
        raise


def _whole(name: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= _GREATEST:
        unit = " of microseconds" if name == "timeout" else ""
        expected = f"a whole number{unit} from 0 to {_GREATEST}"
        raise InputError(f"parameter {name!r}", expected=expected, got=repr(value)[:40])
    return value
