"""Optimization profiles: reads the shapes that a user writes, and gives a range of shapes for each input."""

from __future__ import annotations

import operator
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from headrace.errors import SetupError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import TypeAlias

    Shape: TypeAlias = tuple[int, ...]

__all__ = [
    "NetworkInput",
    "Profile",
    "ShapeRange",
    "choose_profiles",
    "parse_shapes",
    "refuse_names",
]

_KEYS = ("min", "opt", "max")


@dataclass(frozen=True)
class ShapeRange:
    """The shapes that an input may have (for a shape input: its values), per axis from min to max."""

    min: Shape
    opt: Shape
    max: Shape

    @property
    def ordered(self) -> bool:
        """Whether the three have the same number of axes, and min ≤ opt ≤ max holds on every axis."""
        sizes = {len(self.min), len(self.opt), len(self.max)}
        return len(sizes) == 1 and all(
            low <= best <= high
            for low, best, high in zip(self.min, self.opt, self.max, strict=True)
        )

    def text(self) -> str:
        """Return ``1x3x224x224..8x3x224x224, best 4x3x224x224``."""
        least, best, most = ("x".join(map(str, s)) for s in (self.min, self.opt, self.max))
        return f"{least}..{most}, best {best}"


@dataclass(frozen=True)
class Profile:
    """One optimization profile: a range per input of the network that needs one."""

    ranges: Mapping[str, ShapeRange]

    def as_dict(self) -> dict[str, dict[str, list[int]]]:
        """Return the profile as JSON has it: ``{input: {"min": [...], "opt": ..., "max": ...}}``."""
        return {
            name: {key: list(getattr(shapes, key)) for key in _KEYS}
            for name, shapes in sorted(self.ranges.items())
        }


@dataclass(frozen=True)
class NetworkInput:
    """An input of a network that is to be built.

    Attributes:
        name: The name of the input.
        shape: An int per fixed axis, -1 per dynamic one.
        is_shape: Whether the input's values decide shapes (a shape input, which is read on the host).
        axis_names: A name per axis, ``""`` for an axis without a name, or an empty tuple.
    """

    name: str
    shape: Shape
    is_shape: bool = False
    axis_names: tuple[str, ...] = ()

    def axis_text(self, axis: int) -> str:
        """Return ``2 ('height')``, or the number alone of an axis without a name."""
        name = self.axis_names[axis] if axis < len(self.axis_names) else ""
        return f"{axis} ({name!r})" if name else str(axis)


def parse_shapes(text: str | Mapping[str, Any]) -> dict[str, Shape]:
    """Read shapes as trtexec writes them, ``x:1x3x224x224,m:1x10``, or a table of lists.

    A name may hold colons. The last one ends it. ``x:scalar`` and ``x:`` are a tensor of no axis.

    Raises:
        SetupError: The text is of another form, or names an input twice.
    """
    if isinstance(text, Mapping):
        return {str(name): _shape_of(name, value) for name, value in text.items()}
    shapes: dict[str, Shape] = {}
    for part in filter(None, (part.strip() for part in str(text).split(","))):
        name, colon, numbers = part.rpartition(":")
        if not colon or not name.strip():
            raise SetupError(
                f"{part!r} is no shape",
                hint="Write NAME:1x3x224x224, several inputs separated by commas.",
            )
        name = name.strip().strip("'\"")
        if name in shapes:
            raise SetupError(f"input {name!r} has two shapes in {text!r}")
        shapes[name] = _shape_of(name, numbers)
    return shapes


def _shape_of(name: object, value: Any) -> Shape:
    if isinstance(value, str):
        value = value.strip()
        parts: Sequence[Any] = [] if value in ("", "scalar") else value.split("x")
    else:
        value = value.tolist() if hasattr(value, "tolist") else value
        parts = list(value) if isinstance(value, (list, tuple)) else [value]
    try:
        shape = tuple(int(p) if isinstance(p, str) else operator.index(p) for p in parts)
    except (TypeError, ValueError):
        shape = (-1,)
    if any(length < 0 for length in shape) or any(isinstance(part, bool) for part in parts):
        raise SetupError(
            f"{value!r} is no shape for input {str(name)!r}",
            hint="Write lengths of 0 or more, such as 1x3x224x224 or [1, 3, 224, 224].",
        )
    return shape


def refuse_names(read: Mapping[str, Mapping[str, Shape]]) -> None:
    """Refuse a profile whose `max` names no input, or whose `min` or `opt` names another input than `max`.

    Raises:
        SetupError: The range of such an input would be ignored.
    """
    most = read["max"]
    for key in ("min", "opt"):
        for name in read.get(key, {}):
            if name not in most:
                raise SetupError(f"a profile gives input {name!r} `{key}` and no `max`")
    if not most:
        raise SetupError("a profile's `max` names no input", hint="Write NAME:8x3x224x224.")


def choose_profiles(
    inputs: Sequence[NetworkInput],
    profiles: Sequence[Mapping[str, Any]] | None = None,
    *,
    min: int | None = None,  # noqa: A002 - the names of the node's keys
    max: int | None = None,  # noqa: A002
) -> tuple[Profile, ...]:
    """Return the optimization profiles of a network.

    Args:
        inputs: The inputs of the network.
        profiles: ``{min, opt, max}`` per profile, each as `parse_shapes` reads it. ``opt`` and ``min`` are
            ``max`` if they are left out. Inputs of fixed shape need no entry. An input of which only the first axis
            is dynamic may be left out if the other inputs of the profile agree on one batch range.
        min: Without ``profiles``, the fewest rows of a batch. None: 1.
        max: Without ``profiles``, the most rows of a batch. None: 1. There is then one profile from ``min`` to
            ``max``, best at ``max``.

    Raises:
        SetupError: An unknown input, a wrong number of axes, an order that is not min ≤ opt ≤ max,
            another length than a fixed axis has, or a dynamic axis without a range.
    """
    if not profiles:
        least, most = min or 1, max or 1
        batch = (least, most, most)
        needed = _needing(inputs)
        if not needed:
            return ()
        return (Profile({port.name: _by_batch(port, batch) for port in needed}),)
    return tuple(_written(inputs, profile, i) for i, profile in enumerate(profiles))


def _needing(inputs: Sequence[NetworkInput]) -> list[NetworkInput]:
    return [port for port in inputs if port.is_shape or -1 in port.shape]


def _by_batch(port: NetworkInput, batch: Shape) -> ShapeRange:
    """Return the range of an input whose only dynamic axis is the first."""
    if port.is_shape:
        raise SetupError(
            f"input {port.name!r} decides shapes and has no range of values",
            hint=f"Give one in `profiles`: min, opt and max, each such as {port.name}:1x1.",
        )
    open_axes = [axis for axis, length in enumerate(port.shape) if length == -1 and axis > 0]
    if open_axes:
        axes = ", ".join(map(port.axis_text, open_axes))
        raise SetupError(
            f"input {port.name!r} {_text(port.shape)} has a dynamic axis without a range: axis {axes}",
            hint="Give `profiles` a range for it: a list of {min, opt, max}, each such as"
            f" {port.name}:{'x'.join(str(n) if n >= 0 else '1' for n in port.shape)}.",
        )
    low, best, high = (
        (rows, *port.shape[1:]) if port.shape[0] == -1 else port.shape for rows in batch
    )
    return ShapeRange(low, best, high)


def _written(inputs: Sequence[NetworkInput], profile: Mapping[str, Any], index: int) -> Profile:
    unknown = [key for key in profile if key not in _KEYS]
    if unknown or profile.get("max") is None:
        raise SetupError(
            f"profile {index} must have `max`, and may have `min` and `opt`; it has"
            f" {', '.join(map(repr, profile)) or 'nothing'}"
        )
    read = {key: parse_shapes(profile[key]) for key in _KEYS if profile.get(key) is not None}
    most = read["max"]
    low, best = read.get("min", most), read.get("opt", most)
    names = [port.name for port in inputs]
    for name in {**low, **best, **most}:
        if name not in names:
            raise SetupError(
                f"profile {index} names input {name!r}, which the model does not have",
                hint=f"It has: {', '.join(names)}.",
            )
    refuse_names(read)
    ranges = {}
    for port in inputs:
        if port.name in most:
            shapes = [part.get(port.name, most[port.name]) for part in (low, best, most)]
            ranges[port.name] = _checked(port, ShapeRange(*shapes), index)
    batch = _common_batch(inputs, ranges)
    for port in _needing(inputs):
        if port.name not in ranges:
            if batch is None:
                raise SetupError(
                    f"profile {index} has no range for input {port.name!r} {_text(port.shape)}"
                )
            ranges[port.name] = _by_batch(port, batch)
    fixed = {port.name for port in inputs} - {port.name for port in _needing(inputs)}
    return Profile({name: shapes for name, shapes in ranges.items() if name not in fixed})


def _common_batch(inputs: Sequence[NetworkInput], ranges: Mapping[str, ShapeRange]) -> Shape | None:
    batches = {
        (r.min[0], r.opt[0], r.max[0])
        for port in inputs
        if not port.is_shape and port.shape[:1] == (-1,)
        for r in [ranges.get(port.name)]
        if r is not None
    }
    return batches.pop() if len(batches) == 1 else None


def _checked(port: NetworkInput, shapes: ShapeRange, index: int) -> ShapeRange:
    where = f"profile {index}, input {port.name!r} {_text(port.shape)}"
    for shape in (shapes.min, shapes.opt, shapes.max):
        if port.is_shape:
            continue
        if len(shape) != len(port.shape):
            raise SetupError(f"{where}: {_text(shape)} has another number of axes")
        for axis, (length, fixed) in enumerate(zip(shape, port.shape, strict=True)):
            if fixed not in (-1, length):
                raise SetupError(f"{where}: axis {axis} is fixed to {fixed}, not {length}")
    if not shapes.ordered:
        raise SetupError(f"{where}: {shapes.text()} is not min <= opt <= max on every axis")
    return shapes


def _text(shape: Sequence[int]) -> str:
    return f"[{', '.join('*' if length == -1 else str(length) for length in shape)}]"
