"""Reads the inputs and outputs of a session, and which axis is the batch axis."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from headrace.errors import SetupError
from headrace_tensors import (
    STRING,
    Port,
    Signature,
    batch_length,
    refuse_other_axes,
    refuse_unknown,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

__all__ = ["read_signature"]

_DTYPES: Final[Mapping[str, str]] = {
    "float": "float32",
    "double": "float64",
    "string": STRING,
    **{
        name: name
        for name in (
            *("float16", "bool"),
            *("int8", "int16", "int32", "int64"),
            *("uint8", "uint16", "uint32", "uint64"),
        )
    },
}


def read_signature(
    session: Any,
    *,
    outputs: Sequence[str] | None = None,
    unbatched: Iterable[str] = (),
    batch_axis: Mapping[str, int] | None = None,
    shared: bool = False,
) -> Signature:
    """Read the signature of a session.

    The batch axis of an input is its first axis, or the axis that ``batch_axis`` names. An input has no batch
    axis if it is a scalar, if ``unbatched`` names it, or if that axis is fixed while another input's is dynamic (or
    fixed to 1). An optional input, for which the model has a value, has one only if that axis is dynamic. An output
    has no batch axis if ``unbatched`` names it, if its axis is fixed to another length than the batch, or if no input
    has one.

    Args:
        session: An ``onnxruntime.InferenceSession``.
        outputs: Names of the wanted outputs, in order. None means all.
        unbatched: Names of inputs and outputs without batch axis. ``"all"`` names all.
        batch_axis: The index of the batch axis, for inputs and outputs whose batch axis is not the first.
        shared: Whether requests may share a run, so that no output may have two batch axes.

    Raises:
        SetupError: A name is unknown, an axis in ``batch_axis`` does not exist or is not the batch, numpy cannot hold
            a type, the first axis of an output has the name of another axis, or no input has a batch axis while
            ``unbatched`` is empty.
    """
    takes, gives = list(session.get_inputs()), list(session.get_outputs())
    optional = list(session.get_overridable_initializers())
    optional = [node for node in optional if _kind(node) in _DTYPES]
    everything = [*takes, *optional, *gives]
    axes = dict(batch_axis or {})
    known = [node.name for node in everything]
    named = frozenset(known if unbatched == "all" else unbatched)
    refuse_unknown("unbatched", named, known)
    refuse_unknown("batch_axis", axes, known)
    _refuse_axes(axes, named, everything)
    by_name = {node.name: node for node in gives}
    if outputs is not None:
        refuse_unknown("outputs", outputs, list(by_name))
        gives = [by_name[name] for name in outputs]
    _refuse_types(takes, gives, list(by_name.values()))
    first = {
        node.name: _axis(node.shape[axes.get(node.name, 0)])
        for node in takes
        if node.shape and node.name not in named
    }
    if not first and not named:
        text = f"no input with a batch axis; its inputs: {_listed(takes)}" if takes else "no input"
        raise SetupError(
            f"the model has {text}",
            hint="Name its outputs in `unbatched` to run requests one at a time. An input without a "
            "declared shape counts as a scalar: export it with shapes.",
        )
    rows = (
        batch_length(first, f"the inputs have no common batch axis: {_listed(takes)}")
        if first
        else None
    )
    inputs = [_port(node, axes, first.get(node.name, ...) == rows) for node in takes]
    for node in optional:
        free = bool(first) and rows is None and node.shape and node.name not in named
        batched = free and _axis(node.shape[axes.get(node.name, 0)]) is None
        inputs.append(_port(node, axes, bool(batched), optional=True))
    results = [
        _port(node, axes, bool(first) and node.name not in named and _is_batch(node, axes, rows))
        for node in gives
    ]
    for port in (*inputs, *results):
        if port.name in axes and not port.batched and port.name not in named:
            raise SetupError(
                f"`batch_axis` says {port.name} = {port.axis}, and {port.text()} is fixed there to "
                f"another length than the batch, {'any' if rows is None else rows}"
            )
    refuse_other_axes(inputs, results, {*axes, *named}, shared=shared)
    return Signature(tuple(inputs), tuple(results), rows)


def _is_batch(node: Any, axes: Mapping[str, int], rows: int | None) -> bool:
    """Return whether the axis of an output is, or may be, as long as the batch."""
    length = _axis(node.shape[axes.get(node.name, 0)]) if node.shape else None
    return length is None or length == rows


def _axis(length: object) -> int | None:
    return length if isinstance(length, int) and length >= 0 else None


def _port(node: Any, axes: Mapping[str, int], batched: bool, *, optional: bool = False) -> Port:
    return Port(
        node.name,
        _DTYPES[_kind(node)],
        tuple(map(_axis, node.shape)),
        batched,
        axis=axes.get(node.name, 0),
        names=tuple(name if isinstance(name, str) else None for name in node.shape),
        optional=optional,
    )


def _kind(node: Any) -> str:
    """Return ONNX Runtime's name of the dtype of a tensor; of a sequence or an optional value the whole type."""
    kind: str = node.type
    return kind.removeprefix("tensor(").removesuffix(")") if kind.startswith("tensor(") else kind


def _refuse_types(takes: Sequence[Any], gives: Sequence[Any], all_outputs: Sequence[Any]) -> None:
    tensors = f"Supported are tensors of {', '.join(sorted(_DTYPES))}"
    for node in takes:
        if _kind(node) not in _DTYPES:
            raise SetupError(
                f"the input {node.name!r} has the type {node.type}, which numpy cannot hold",
                hint=f"{tensors}. Export the model with tensors as inputs.",
            )
    rest = [node.name for node in all_outputs if _kind(node) in _DTYPES]
    for node in gives:
        if _kind(node) in _DTYPES:
            continue
        if node.type.startswith("seq(map("):
            tensors = (
                "A ZipMap makes a dict of each row's probabilities. Without it they are a tensor: export with"
                " options={'zipmap': False}, or {id(model): {'zipmap': False}}, of skl2onnx"
            )
        raise SetupError(
            f"the output {node.name!r} has the type {node.type}, which numpy cannot hold",
            hint=f"{tensors}. {f'`outputs = {rest}` leaves it out.' if rest else ''}".rstrip(),
        )


def _listed(nodes: Iterable[Any]) -> str:
    return ", ".join(f"{node.name} {list(node.shape)}" for node in nodes)


def _refuse_axes(axes: Mapping[str, int], unbatched: Iterable[str], nodes: Iterable[Any]) -> None:
    for node in nodes:
        axis = axes.get(node.name)
        if axis is None:
            continue
        if node.name in unbatched:
            raise SetupError(f"{node.name!r} stands in `unbatched` and in `batch_axis`")
        # An output without a declared shape may have any rank.
        if axis < 0 or (node.shape and axis >= len(node.shape)):
            raise SetupError(
                f"`batch_axis` says {node.name} = {axis}, and its axes are {list(node.shape)}",
                hint="Axes are counted from 0.",
            )
