"""What a model takes and gives: names, shapes, dtypes, and which axis is the batch."""

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
        name: Its name in the model.
        dtype: The name of its numpy dtype; `STRING` for strings.
        shape: An int per fixed axis, None per dynamic one; ``()`` for a scalar and for an output
            of which the model tells no shape.
        batched: True when it has a batch axis.
        axis: Which of its axes that is.
    """

    name: str
    dtype: str
    shape: tuple[int | None, ...]
    batched: bool
    axis: int = 0

    @property
    def sample_shape(self) -> tuple[int | None, ...]:
        """The shape without the batch axis."""
        return (*self.shape[: self.axis], *self.shape[self.axis + 1 :])

    @functools.cached_property
    def exact(self) -> tuple[int, ...] | None:
        """The one shape that samples have; None where an axis is dynamic, or there is no batch axis."""
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
    """All inputs, and the outputs that are wanted, in order.

    Attributes:
        inputs: Every input that a run must be given.
        outputs: The outputs of a run.
        rows: The batch size the model is fixed to, or None.
    """

    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    rows: int | None

    @property
    def one_at_a_time(self) -> bool:
        """Whether requests cannot share a run: an array belongs to the run as a whole.

        A scalar input does not count: requests with equal scalars can.
        """
        return any(not port.batched and port.shape for port in self.inputs) or any(
            not port.batched for port in self.outputs
        )


def read_signature(
    session: Any,
    *,
    outputs: Sequence[str] | None = None,
    unbatched: Iterable[str] = (),
    batch_axis: Mapping[str, int] | None = None,
) -> Signature:
    """Read the signature of a session.

    The first axis is the batch axis, or the one that ``batch_axis`` says: of all inputs that have
    an axis, except those named in ``unbatched``, and those where it is fixed while another input's
    is dynamic (or fixed to 1). An output has none if it is named, if that axis is fixed to
    something else than the batch, or if no input has one.

    Args:
        session: An ``onnxruntime.InferenceSession``.
        outputs: Names of the outputs wanted, in order; None means all.
        unbatched: Names of inputs and outputs without batch axis.
        batch_axis: Which axis is the batch, per input or output where it is not the first.

    Raises:
        SetupError: An unknown name, an axis that is not there or not the batch, a type numpy cannot
            hold, or no batch axis while ``unbatched`` names nothing.
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
    first = {
        node.name: _axis(node.shape[axes.get(node.name, 0)])
        for node in takes
        if node.shape and node.name not in named
    }
    if not first and not named:
        raise SetupError(
            f"the model has no input with a batch axis; its inputs: {_listed(takes)}",
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
    return Signature(tuple(inputs), tuple(results), rows)


def _batch_of(first: Mapping[str, int | None], nodes: Sequence[Any]) -> int | None:
    """Choose between the first axes of the inputs: a dynamic one, else 1, else the only one."""
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
    """Tell whether the batch axis of an output is, or may be, the batch."""
    length = _axis(node.shape[axes.get(node.name, 0)]) if node.shape else None
    return length is None or length == rows


def _axis(length: object) -> int | None:
    return length if isinstance(length, int) and length > 0 else None


def _port(node: Any, axes: Mapping[str, int], batched: bool) -> Port:
    kind = node.type.removeprefix("tensor(").removesuffix(")")
    if not node.type.startswith("tensor(") or kind not in _DTYPES:
        raise SetupError(
            f"{node.name!r} is a {node.type}, which numpy cannot hold",
            hint=f"Supported are tensors of {', '.join(sorted(_DTYPES))}; leave an output out by"
            " naming the others in `outputs`.",
        )
    shape = tuple(map(_axis, node.shape))
    return Port(node.name, _DTYPES[kind], shape, batched, axes.get(node.name, 0))


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
        if node.shape and axis >= len(node.shape):
            raise SetupError(
                f"`batch_axis` says {node.name} = {axis}, and its axes are {list(node.shape)}",
                hint="Axes are counted from 0.",
            )


def refuse_unknown(option: str, names: Iterable[str], nodes: Sequence[Any]) -> None:
    """Refuse names in an option that are none of the inputs or outputs ``nodes``.

    Raises:
        SetupError: One of them is unknown; it tells the nearest known one.
    """
    known = [node.name for node in nodes]
    for name in names:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            raise SetupError(
                f"`{option}` names {name!r}, which the model does not have",
                hint=f"Did you mean {near[0]!r}?" if near else f"It has: {', '.join(known)}.",
            )
