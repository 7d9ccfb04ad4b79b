"""Inputs and outputs of a model: names, shapes, dtypes, and which axis is the batch axis."""

from __future__ import annotations

import difflib
import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from headrace.errors import SetupError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

__all__ = ["STRING", "Port", "Signature", "read_signature"]

STRING: Final = "str"
"""The dtype of string tensors, which numpy holds as arrays of ``str`` objects."""

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


@dataclass(frozen=True)
class Port:
    """One input or output of a model.

    Attributes:
        name: The name in the model.
        dtype: The name of the numpy dtype; `STRING` for strings.
        shape: An int per fixed axis, None per dynamic one; ``()`` for a scalar, and for an output whose shape the
            model does not declare.
        batched: Whether it has a batch axis.
        axis: The index of the batch axis.
        names: The name that the model gives each dynamic axis; None where it gives none.
    """

    name: str
    dtype: str
    shape: tuple[int | None, ...]
    batched: bool
    axis: int = 0
    names: tuple[str | None, ...] = ()

    @property
    def sample_names(self) -> tuple[str | None, ...]:
        """The names of the axes without the batch axis."""
        return (*self.names[: self.axis], *self.names[self.axis + 1 :])

    @property
    def sample_shape(self) -> tuple[int | None, ...]:
        """The shape without the batch axis."""
        return (*self.shape[: self.axis], *self.shape[self.axis + 1 :])

    @functools.cached_property
    def exact(self) -> tuple[int, ...] | None:
        """The shape of all samples; None if an axis is dynamic, or there is no batch axis."""
        fixed = tuple(n for n in self.sample_shape if n is not None)
        return fixed if self.batched and len(fixed) == len(self.sample_shape) else None

    def text(self, *, sample: bool = False) -> str:
        """Give ``float32 [*, 3, 48, *]``; of one sample, without the batch axis, if ``sample``."""
        axes = self.sample_shape if sample else self.shape
        return f"{self.dtype} [{', '.join('*' if n is None else str(n) for n in axes)}]"

    def describe(self) -> dict[str, Any]:
        """Give dtype, shape, whether there is a batch axis, and which if not the first. JSON-able."""
        about = {"dtype": self.dtype, "shape": list(self.shape), "batched": self.batched}
        return {**about, "batch_axis": self.axis} if self.axis else about


@dataclass(frozen=True)
class Signature:
    """All inputs and the wanted outputs, in order.

    Attributes:
        inputs: All inputs, each of which a run needs.
        outputs: The wanted outputs.
        rows: The batch size to which the model is fixed; None: any.
    """

    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    rows: int | None

    @functools.cached_property
    def passed(self) -> tuple[int, ...]:
        """The places of outputs that are inputs: for those ONNX Runtime may give the very array that it was given."""
        takes = {port.name for port in self.inputs}
        return tuple(place for place, port in enumerate(self.outputs) if port.name in takes)

    @property
    def one_at_a_time(self) -> bool:
        """Whether requests cannot share a run because an input or output without batch axis belongs to the whole run.

        A scalar input does not count, because requests with equal scalars can share a run.
        """
        return any(not port.batched and port.shape for port in self.inputs) or any(
            not port.batched for port in self.outputs
        )

    @property
    def fills(self) -> bool:
        """Whether a run may be filled up with copies of a row; an output without batch axis would be computed from them."""
        return all(port.batched for port in self.outputs)


def read_signature(
    session: Any,
    *,
    outputs: Sequence[str] | None = None,
    unbatched: Iterable[str] = (),
    batch_axis: Mapping[str, int] | None = None,
) -> Signature:
    """Read the signature of a session.

    The batch axis of an input is its first axis, or the axis that ``batch_axis`` names. An input has no batch
    axis if it is a scalar, if ``unbatched`` names it, or if that axis is fixed while another input's is dynamic (or
    fixed to 1). An output has no batch axis if ``unbatched`` names it, if its axis is fixed to
    another length than the batch, or if no input has one.

    Args:
        session: An ``onnxruntime.InferenceSession``.
        outputs: Names of the wanted outputs, in order; None means all.
        unbatched: Names of inputs and outputs without batch axis.
        batch_axis: The index of the batch axis, for inputs and outputs whose batch axis is not the first.

    Raises:
        SetupError: A name is unknown, an axis in ``batch_axis`` does not exist or is not the batch, numpy cannot hold
            a type, the first axis of an output has the name of another axis, or no input has a batch axis while
            ``unbatched`` is empty.
    """
    takes, gives = list(session.get_inputs()), list(session.get_outputs())
    named, axes = frozenset(unbatched), dict(batch_axis or {})
    refuse_unknown("unbatched", named, [*takes, *gives])
    refuse_unknown("batch_axis", axes, [*takes, *gives])
    _refuse_axes(axes, named, [*takes, *gives])
    by_name = {node.name: node for node in gives}
    if outputs is not None:
        refuse_unknown("outputs", outputs, gives)
        gives = [by_name[name] for name in outputs]
    _refuse_types([*takes, *gives])
    first = {
        node.name: _axis(node.shape[axes.get(node.name, 0)])
        for node in takes
        if node.shape and node.name not in named
    }
    if not first and not named:
        what = f"no input with a batch axis; its inputs: {_listed(takes)}" if takes else "no input"
        raise SetupError(
            f"the model has {what}",
            hint="Name its outputs in `unbatched` to run requests one at a time. An input without a "
            "declared shape counts as a scalar: export it with shapes.",
        )
    rows = _batch_of(first, takes) if first else None
    inputs = [_port(node, axes, first.get(node.name, ...) == rows) for node in takes]
    results = [
        _port(node, axes, bool(first) and node.name not in named and _is_batch(node, axes, rows))
        for node in gives
    ]
    for port in (*inputs, *results):
        if port.name in axes and not port.batched:
            raise SetupError(
                f"`batch_axis` says {port.name} = {port.axis}, and {port.text()} is fixed there to "
                f"another length than the batch, {'any' if rows is None else rows}"
            )
    _refuse_other_axes(takes, gives, axes, inputs, results)
    return Signature(tuple(inputs), tuple(results), rows)


def _batch_of(first: Mapping[str, int | None], nodes: Sequence[Any]) -> int | None:
    """Give the length of the batch axis: None if an input's axis is dynamic, else 1, else their only length."""
    lengths = set(first.values())
    if None in lengths:
        return None
    if 1 in lengths:
        return 1
    if len(lengths) > 1:
        raise SetupError(
            f"the inputs have no common batch axis: {_listed(nodes)}",
            hint="Name those without one in `unbatched`.",
        )
    return lengths.pop()


def _is_batch(node: Any, axes: Mapping[str, int], rows: int | None) -> bool:
    """Return whether the axis of an output is, or may be, as long as the batch."""
    length = _axis(node.shape[axes.get(node.name, 0)]) if node.shape else None
    return length is None or length == rows


def _refuse_other_axes(
    takes: Sequence[Any],
    gives: Sequence[Any],
    axes: Mapping[str, int],
    inputs: Sequence[Port],
    results: Sequence[Port],
) -> None:
    """Refuse outputs whose first axis is another one than the batch by the names that the model gives its axes.

    By their lengths that shows only in batches that are not as long as that axis; the others would be cut along it.
    """
    batches: set[str] = set()
    others: set[str] = set()
    for node, port in zip(takes, inputs, strict=True):
        for axis, name in enumerate(node.shape):
            if isinstance(name, str):
                (batches if port.batched and axis == port.axis else others).add(name)
    for node, port in zip(gives, results, strict=True):
        if not port.batched or node.name in axes:
            continue
        first, *rest = node.shape or [None]
        within = [axis for axis, name in enumerate(rest, 1) if name in batches]
        if isinstance(first, int) or first in batches or not (within or first in others):
            continue
        raise SetupError(
            f"by the names of its axes, the first axis of output {_listed([node])} is not the batch axis",
            hint=f"Say which one it is, `batch_axis = {{{port.name} = {within[0] if within else 0}}}`, or "
            "name it in `unbatched` if it has none.",
        )


def _axis(length: object) -> int | None:
    return length if isinstance(length, int) and length > 0 else None


def _port(node: Any, axes: Mapping[str, int], batched: bool) -> Port:
    shape = tuple(map(_axis, node.shape))
    names = tuple(name if isinstance(name, str) else None for name in node.shape)
    return Port(node.name, _DTYPES[_kind(node)], shape, batched, axes.get(node.name, 0), names)


def _kind(node: Any) -> str:
    """Give ONNX Runtime's name of the dtype of a tensor; of a sequence or an optional value the whole type."""
    kind: str = node.type
    return kind.removeprefix("tensor(").removesuffix(")") if kind.startswith("tensor(") else kind


def _refuse_types(nodes: Iterable[Any]) -> None:
    for node in nodes:
        if _kind(node) not in _DTYPES:
            raise SetupError(
                f"{node.name!r} has the type {node.type}, which numpy cannot hold",
                hint=f"Supported are tensors of {', '.join(sorted(_DTYPES))}; leave an output out by"
                " naming the others in `outputs`.",
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


def refuse_unknown(option: str, names: Iterable[str], nodes: Sequence[Any]) -> None:
    """Refuse names in an option that are not among the inputs or outputs ``nodes``.

    Raises:
        SetupError: A name is unknown; the error has the nearest known name.
    """
    known = [node.name for node in nodes]
    for name in names:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            raise SetupError(
                f"`{option}` names {name!r}, which the model does not have",
                hint=f"Did you mean {near[0]!r}?" if near else f"It has: {', '.join(known)}.",
            )
