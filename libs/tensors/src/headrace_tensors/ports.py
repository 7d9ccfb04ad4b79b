"""Inputs and outputs of a model: names, shapes, dtypes, and which axis is the batch axis."""

from __future__ import annotations

import functools
import re
import sys
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final, NoReturn

from headrace.errors import SetupError, among

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

__all__ = [
    "STRING",
    "Port",
    "Signature",
    "batch_axis_hint",
    "batch_length",
    "choose_keys",
    "counted_rows",
    "refuse_other_axes",
    "refuse_two_batches",
    "refuse_unknown",
]

STRING: Final = "str"
"""The dtype of string tensors, which numpy holds as arrays of ``str`` objects."""

_NAMELESS: Final = re.compile(
    r"\?|-?\d+|unk__\d+|.*_dim_\d+|.*_dynamic_axes_\d+|.*DynamicDimension\.\d+"
)
"""Names that exporters (tf2onnx, torch.onnx, paddle2onnx) make up for axes of unknown length, which tell nothing."""


@dataclass(frozen=True)
class Port:
    """One input or output of a model.

    Attributes:
        name: The name in the model.
        dtype: The name of the dtype as numpy writes it. `STRING` for strings. A plugin may have its engine's dtype
            here, whose text is that name. None: the model does not declare it.
        shape: An int per fixed axis, None per dynamic one. ``()`` for a scalar, and for an output whose shape the
            model does not declare. None for an input whose rank it does not declare.
        batched: Whether it has a batch axis.
        axis: The index of the batch axis.
        names: The name that the model gives each dynamic axis. None where it gives none.
        optional: Whether a run may leave it out, since the model has a value for it.
    """

    name: str
    dtype: Any
    shape: Any
    batched: bool
    axis: int = field(default=0, kw_only=True)
    names: tuple[str | None, ...] = field(default=(), kw_only=True)
    optional: bool = field(default=False, kw_only=True)

    @property
    def sample_names(self) -> tuple[str | None, ...]:
        """The names of the axes without the batch axis."""
        return self.names[: self.axis] + self.names[self.axis + 1 :]

    @property
    def sample_shape(self) -> tuple[int | None, ...]:
        """The shape without the batch axis."""
        shape: tuple[int | None, ...] = self.shape[: self.axis] + self.shape[self.axis + 1 :]
        return shape

    @functools.cached_property
    def exact(self) -> tuple[int, ...] | None:
        """The shape of all samples; None if an axis is dynamic, or there is no batch axis."""
        if self.shape is None:
            return None
        fixed = tuple(n for n in self.sample_shape if n is not None)
        return fixed if self.batched and len(fixed) == len(self.sample_shape) else None

    @functools.cached_property
    def _ranges(self) -> tuple[tuple[int, int, int], ...]:
        """The axes of all samples, each with its least and its greatest length."""
        ranges = []
        for axis, fixed in enumerate(self.shape):
            if self.batched and axis == self.axis:
                continue
            least, most = (fixed, fixed) if fixed is not None else self.limits(axis) or (0, None)
            ranges.append((axis, least, sys.maxsize if most is None else most))
        return tuple(ranges)

    def limits(self, axis: int) -> tuple[int, int | None] | None:
        """Return the least and the greatest length (None: any) of a dynamic axis; None if all are taken."""
        return None

    def takes(self, axis: int, length: int) -> bool:
        """Return whether an axis may have a length."""
        fixed = self.shape[axis]
        if fixed is not None:
            return bool(length == fixed)
        bounds = self.limits(axis)
        return bounds is None or (
            bounds[0] <= length and (bounds[1] is None or length <= bounds[1])
        )

    def text(self, *, sample: bool = False) -> str:
        """Return ``float32 [1..8, 3, 48, *]``; of one sample, without the batch axis, if ``sample``."""
        kind = "a tensor" if self.dtype is None else str(self.dtype).removeprefix("torch.")
        if self.shape is None:
            return kind
        axes = [self._axis_text(axis) for axis in range(len(self.shape))]
        if sample:
            del axes[self.axis]
        return f"{kind} [{', '.join(axes)}]"

    def _axis_text(self, axis: int) -> str:
        if self.shape[axis] is not None:
            return str(self.shape[axis])
        bounds = self.limits(axis)
        if bounds is None:
            return "*"
        least, most = bounds
        return str(least) if least == most else f"{least}..{'' if most is None else most}"

    def accepts(self) -> str:
        """Return a text for errors that says what a request may hold for the input."""
        if not self.batched:
            return self.text()
        if self.shape is None:
            return f"{self.text()}: a sample, or rows with `request_size`"
        return f"{self.text(sample=True)} (one sample) or {self.text()} (`request_size` rows)"

    def describe(self) -> dict[str, Any]:
        """Return dtype, shape, whether there is a batch axis, and which if not the first. JSON-able."""
        about = {"dtype": self.dtype, "shape": list(self.shape), "batched": self.batched}
        if self.axis:
            about["batch_axis"] = self.axis
        if self.optional:
            about["optional"] = True
        return about


@dataclass(frozen=True)
class Signature:
    """All inputs and the wanted outputs, in order.

    Attributes:
        inputs: All inputs, each of which a run needs unless it is optional.
        outputs: The wanted outputs.
        rows: The batch size to which the model is fixed. None: any in the range.
        low_rows, high_rows: The least and the largest batch of one run. None: no largest.
        unwanted: The other outputs, for a model that computes them nevertheless.
        label: What errors call the model: ``"model"`` or ``"engine"``.
        sizes: The only numbers of rows with which a run is made, ascending; more than the last run as they are. Empty: any.
    """

    inputs: tuple[Any, ...]
    outputs: tuple[Any, ...] = ()
    rows: int | None = None
    low_rows: int = 1
    high_rows: int | None = None
    unwanted: tuple[Any, ...] = ()
    label: str = "model"
    sizes: tuple[int, ...] = ()

    def with_sizes(self, sizes: Collection[int]) -> Signature:
        """Return the same with the option ``row_sizes``, without the sizes that are out of the range.

        Raises:
            SetupError: None is in the range, or an output has no batch axis.
        """
        low, most = self.low_rows, self.most_rows
        fitting = sorted(n for n in set(sizes) if low <= n and (most is None or n <= most))
        if sizes and not self.fills:
            raise SetupError(
                f"`row_sizes` fills up runs, and an output of the {self.label} has no batch axis: it would be computed"
                " with copies of a row",
                hint="Leave row_sizes out, or the output with `outputs`.",
            )
        if sizes and not fitting:
            raise SetupError(
                f"`row_sizes` has none of the numbers of rows that the {self.label} takes: {low} to {most}"
            )
        return replace(self, sizes=tuple(fitting))

    def filled(self, rows: int) -> int:
        """Return the number of rows with which a run of ``rows`` rows is made; copies of the last row fill it up."""
        return self.rows or next((n for n in self.sizes if n >= rows), max(rows, self.low_rows))

    @functools.cached_property
    def passed(self) -> tuple[int, ...]:
        """The places of outputs that are inputs: an engine may return the very array that it was given."""
        takes = {port.name for port in self.inputs}
        return tuple(place for place, port in enumerate(self.outputs) if port.name in takes)

    @functools.cached_property
    def one_at_a_time(self) -> bool:
        """Whether requests cannot share a run, because an output without batch axis belongs to the whole run.

        Inputs without batch axis do not count: requests with equal values share a run.
        """
        return any(not port.batched for port in self.outputs)

    @functools.cached_property
    def fills(self) -> bool:
        """Whether a run may be filled up with copies of a row; an output without batch axis would be computed from them."""
        return not self.one_at_a_time

    @functools.cached_property
    def least_rows(self) -> int:
        """The fewest rows that a request may bring; fewer than the model takes are filled up with copies of a row."""
        return 1 if self.fills else self.rows or self.low_rows

    @functools.cached_property
    def most_rows(self) -> int | None:
        """The most rows that a request may bring; None: any."""
        return self.high_rows if self.rows is None else self.rows

    def as_inputs(self) -> dict[str, dict[str, Any]]:
        """Return the needed inputs as ``context.store.scope`` holds them under ``"inputs"``, for earlier elements."""
        needed = (port for port in self.inputs if not port.optional)
        return {port.name: _as_input(port) for port in needed}


def _as_input(port: Any) -> dict[str, Any]:
    about = {"dtype": port.dtype, "shape": list(port.shape)}
    return {**about, "batch_axis": port.axis} if port.axis else about


def counted_rows(number: int) -> str:
    """Return ``1 row`` or ``2 rows``."""
    return f"{number} row" if number == 1 else f"{number} rows"


def batch_length(first: Mapping[str, int | None], refusal: str) -> int | None:
    """Return the length of the batch axis: None if an input's axis is dynamic, else 1, else their only length.

    Args:
        first: For each input that may have a batch axis, the length of that axis. None for a dynamic one.
        refusal: The error if the lengths are fixed and differ.

    Raises:
        SetupError: The inputs have no common length.
    """
    lengths = set(first.values())
    if None in lengths:
        return None
    if 1 in lengths:
        return 1
    if len(lengths) > 1:
        raise SetupError(refusal, hint="Name those without one in `unbatched`.")
    return lengths.pop()


def refuse_other_axes(
    inputs: Sequence[Port],
    outputs: Sequence[Port],
    told: Iterable[str] = (),
    *,
    shared: bool = False,
) -> None:
    """Refuse outputs if the names of their axes say that the first axis is not the batch, or not the only one.

    The lengths show it only in batches of another length than the axis. In other batches the rows would go to the wrong
    requests. If the first axis is fixed, a later axis with the batch's name is the batch axis.

    Args:
        inputs: The inputs.
        outputs: The wanted outputs.
        told: Names of outputs whose batch axis the user has said, or that they have none.
        shared: Whether requests may share a run, so that rows of several meet in an output with two batch axes.

    Raises:
        SetupError: An output's first axis has a name, and it is not that of the batch axis, or another axis has.
    """
    batches: set[str] = set()
    others: set[str] = set()
    for port in inputs:
        for axis, name in enumerate(port.names):
            if name is not None:
                (batches if port.batched and axis == port.axis else others).add(name)
    free = any(port.batched and port.shape[port.axis] is None for port in inputs)
    # Where an input has the name on another axis, too, it stands for no length.
    telling = {name for name in batches - others if not _NAMELESS.fullmatch(name)}
    for port in outputs:
        shown = [name or length for name, length in zip(port.names, port.shape, strict=False)]
        if shared and port.batched and len([name for name in port.names if name in telling]) > 1:
            refuse_two_batches(port.name, shown)
        if port.name in told or not port.names:
            continue
        first, *rest = port.names
        within = [axis for axis, name in enumerate(rest, 1) if name in batches]
        named = first is not None and not _NAMELESS.fullmatch(first)
        known = any(not _NAMELESS.fullmatch(name) for name in batches) or not free
        other = first in others or (named and known)
        if first in batches or not (within or (port.batched and other)):
            continue
        if not within and not batches:  # the batch axis has no name either
            within = [
                axis
                for axis, name in enumerate(rest, 1)
                if name is None and port.shape[axis] is None
            ]
        if not within:  # an exporter fixes the batch axis of an input and of its outputs alike
            rows = {port.shape[port.axis] for port in inputs if port.batched} - {None}
            within = [axis for axis, length in enumerate(port.shape) if axis and length in rows]
        raise SetupError(
            f"by the names of its axes, the first axis of output {port.name} {shown} is not the batch axis",
            hint=batch_axis_hint(port.name, within),
        )


def batch_axis_hint(name: str, axes: Sequence[int]) -> str:
    """Return what to do about an output whose batch axis is another one, or which has none.

    Args:
        name: The output.
        axes: Its axes that are as long as the batch.
    """
    alone = f"name {name!r} in `unbatched`: requests then run alone, and each gets all of it."
    if not axes:
        return f"If it has no batch axis, {alone}"
    listed = " or ".join(map(str, axes))
    return (
        f"Axis {listed} may be it: `batch_axis = {{{name} = {axes[0]}}}`. If it has none, {alone}"
    )


def refuse_two_batches(name: str, axes: Sequence[object]) -> NoReturn:
    """Refuse an output in which each row of a run meets all others.

    Raises:
        SetupError: Always.
    """
    raise SetupError(
        f"output {name} {[*axes]} has two batch axes: each request would get values that belong to others",
        hint="max = 1 runs each request alone. Or name in `unbatched` what belongs to the whole run: this output, or"
        " the input that all requests share.",
    )


def choose_keys(
    signature: Signature,
    inputs: Mapping[str, str],
    reserved: Iterable[str] = (),
    *,
    from_data: bool = False,
) -> dict[str, str]:
    """Return the key of the request for each input: ``data`` for the only needed one, else its name.

    Args:
        signature: Inputs and outputs of the model.
        inputs: The keys of some inputs by the inputs' names, which win over the defaults.
        reserved: Keys with another meaning. An optional input of such a name is read only if ``inputs`` has a key for
            it, as one whose key another input has.
        from_data: Whether inputs also come in a dict under ``data``, so that one may be named ``result``.

    Raises:
        SetupError: ``inputs`` names an input that the model does not have, or an input would be read from ``result``,
            which no request brings.
    """
    names = [port.name for port in signature.inputs]
    refuse_unknown("inputs", inputs, names, signature.label)
    needed = [port.name for port in signature.inputs if not port.optional]
    alone = {needed[0]: "data"} if len(needed) == 1 else {name: name for name in needed}
    keys = {**alone, **inputs}
    for name, key in (inputs if from_data else keys).items():
        if key == "result":
            raise SetupError(
                f"input {name!r} would be read from the key 'result', which is removed from every request",
                hint=f"Name another key in `inputs`: {{{name} = 'KEY'}}.",
            )
    taken = {*keys.values(), *reserved}
    keys.update({name: name for name in names if name not in keys and name not in taken})
    return keys


def refuse_unknown(
    option: str, names: Iterable[str], known: Sequence[str], label: str = "model"
) -> None:
    """Refuse names in an option that the model does not have.

    Raises:
        SetupError: A name is unknown. The error has the nearest known name.
    """
    for name in names:
        if name not in known:
            raise SetupError(
                f"`{option}` names {name!r}, which the {label} does not have",
                hint=among(name, known),
            )
