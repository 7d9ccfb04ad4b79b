"""Inputs and outputs of an engine under one profile: names, types, shapes, and whether they have a batch axis."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

import headrace_tensors as tensors
from headrace.errors import SetupError
from headrace_tensors import Signature, batch_length, refuse_unknown
from headrace_trt.engines.engine import io_names

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from headrace_trt.engines.engine import Engine

__all__ = ["Port", "read_signature"]

_DTYPES: Final = {
    "FLOAT": "float32",
    "HALF": "float16",
    "BF16": "bfloat16",
    "INT8": "int8",
    "UINT8": "uint8",
    "INT32": "int32",
    "INT64": "int64",
    "BOOL": "bool",
    "FP8": "float8_e4m3fn",
}


@dataclass(frozen=True)
class Port(tensors.Port):
    """One input or output of an engine.

    Attributes:
        low: The profile's least shapes (for a shape input: its values), equal to ``shape`` if that is fixed. Empty
            for outputs.
        best: The shapes, or values, for which the profile was optimized.
        high: The profile's greatest shapes, or values.
        is_shape: Whether the values decide shapes (a shape input, which is read on the host).
    """

    low: tuple[int, ...] = ()
    best: tuple[int, ...] = ()
    high: tuple[int, ...] = ()
    is_shape: bool = False

    def limits(self, axis: int) -> tuple[int, int | None] | None:
        """Return the range of an axis under the profile; None where it has none."""
        return (self.low[axis], self.high[axis]) if self.low and not self.is_shape else None

    def describe(self) -> dict[str, Any]:
        """Return dtype, shape, range and whether there is a batch axis. JSON-able."""
        about = super().describe()
        if self.low and (None in self.shape or self.is_shape):
            about["range"] = {
                "min": list(self.low),
                "opt": list(self.best),
                "max": list(self.high),
            }
        return about


def read_signature(
    engine: Engine,
    profile: int = 0,
    *,
    outputs: Sequence[str] | None = None,
    unbatched: Iterable[str] = (),
) -> Signature:
    """Read the signature of an engine under one profile.

    The first axis is the batch axis of every input that has an axis, with these exceptions: inputs named in
    ``unbatched``, shape inputs, and inputs whose first axis is fixed while another input's is dynamic (or
    fixed to 1). An output has no batch axis if it is named in ``unbatched``, or if its first axis is
    fixed to another length than the batch. If a profile takes a single batch size, the engine may report that size as
    the length of an output's first axis, which is the batch axis nevertheless.

    Args:
        engine: The engine.
        profile: The index of the optimization profile.
        outputs: Names of the wanted outputs, in order. None means all.
        unbatched: Names of inputs and outputs without batch axis. ``"all"`` names all.

    Raises:
        SetupError: There is no such profile, a name is unknown, a tensor has a type that no array has, or no input has a
            batch axis.
    """
    if not 0 <= profile < max(engine.profiles, 1):
        raise SetupError(
            f"{engine.label} has no optimization profile {profile}",
            hint=f"It has {engine.profiles}, counted from 0.",
        )
    takes, gives = io_names(engine.engine, engine.library)
    named = frozenset((*takes, *gives) if unbatched == "all" else unbatched)
    refuse_unknown("unbatched", named, [*takes, *gives], "engine")
    refuse_unknown("outputs", outputs or (), gives, "engine")
    names = list(outputs) if outputs is not None else list(gives)
    read = {name: _port(engine, name, profile, taken=name in takes) for name in (*takes, *gives)}
    first = {
        name: read[name].shape[0]
        for name in takes
        if read[name].shape and name not in named and not read[name].is_shape
    }
    if not first and not named.issuperset(gives):
        raise SetupError(
            f"{engine.label} has no input with a batch axis:"
            f" {', '.join(read[name].text() for name in takes) or 'it has no input'}",
            hint="Name its outputs in `unbatched` to run requests one at a time.",
        )
    if not first:
        return Signature(
            tuple(read[name] for name in takes),
            tuple(read[name] for name in names),
            high_rows=1,
            unwanted=tuple(read[name] for name in gives if name not in names),
            label="engine",
        )
    listed = ", ".join(f"{name}: {length}" for name, length in first.items())
    rows = batch_length(first, f"the inputs of {engine.label} have no common batch axis ({listed})")
    leading = [name for name, length in first.items() if length == rows]
    lows = [read[name].low[0] for name in leading]
    highs = [read[name].high[0] for name in leading]
    if max(lows) > min(highs):
        raise SetupError(
            f"{engine.label}: profile {profile} has no batch size that all inputs take"
        )

    single = _single_sizes(engine, leading) if rows is None else {rows}

    def finished(name: str) -> Port:
        port = read[name]
        if name in takes:
            return replace(port, batched=name in leading)
        length = port.shape[0] if port.shape else None
        batched = name not in named and bool(port.shape) and (length is None or length in single)
        if batched and rows is None:
            port = replace(port, shape=(None, *port.shape[1:]))
        return replace(port, batched=batched)

    return Signature(
        tuple(finished(name) for name in takes),
        tuple(finished(name) for name in names),
        rows,
        low_rows=max(lows),
        high_rows=min(highs),
        unwanted=tuple(finished(name) for name in gives if name not in names),
        label="engine",
    )


def _single_sizes(engine: Engine, leading: Sequence[str]) -> set[int]:
    """Give the batch sizes of the profiles that take only one size."""
    sizes = set()
    for profile in range(engine.profiles):
        for name in leading:
            low, _, high = engine.engine.get_tensor_profile_shape(name, profile)
            if low[0] == high[0]:
                sizes.add(int(low[0]))
    return sizes


def _port(engine: Engine, name: str, profile: int, *, taken: bool) -> Port:
    plan = engine.engine
    kind = plan.get_tensor_dtype(name).name
    if kind not in _DTYPES:
        raise SetupError(
            f"{engine.label}: {name!r} is of type {kind}, which no array has",
            hint="Convert it inside the network, or leave the output out with `outputs`.",
        )
    shape = tuple(None if n < 0 else int(n) for n in plan.get_tensor_shape(name))
    if not taken:
        return Port(name, _DTYPES[kind], shape, False)
    host = engine.library.trt.TensorLocation.HOST
    is_shape = plan.get_tensor_location(name) == host
    if not is_shape and engine.profiles > 1:
        shape = _over_profiles(engine, name, shape)
    if is_shape:
        low, best, high = _values(plan, name, profile)
    elif None in shape:
        low, best, high = (
            tuple(int(n) for n in dims) for dims in plan.get_tensor_profile_shape(name, profile)
        )
    else:
        low = best = high = tuple(n for n in shape if n is not None)
    return Port(name, _DTYPES[kind], shape, False, low, best, high, is_shape)


def _over_profiles(
    engine: Engine, name: str, shape: tuple[int | None, ...]
) -> tuple[int | None, ...]:
    """Return the shape of an input, with None for every axis that does not have the same length in all profiles."""
    ranges = [
        engine.engine.get_tensor_profile_shape(name, profile) for profile in range(engine.profiles)
    ]
    return tuple(
        None if any(dims[axis] != length for dims_of in ranges for dims in dims_of) else length
        for axis, length in enumerate(shape)
    )


def _values(engine: Any, name: str, profile: int) -> list[tuple[int, ...]]:
    """Return the profile's values of a shape input; the order of the arguments differs by version."""
    try:
        values = engine.get_tensor_profile_values(profile, name)
    except TypeError:
        values = engine.get_tensor_profile_values(name, profile)
    return [tuple(int(n) for n in values) for values in values]
