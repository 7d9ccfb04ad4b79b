"""Names, shapes and dtypes of a model's inputs and outputs, as far as the model declares them."""

from __future__ import annotations

import difflib
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch

from headrace.errors import BackendError, SetupError
from headrace_torch.tensors import dtype_name

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

__all__ = [
    "Port",
    "Signature",
    "choose_keys",
    "named_outputs",
    "nearest",
    "refuse_other_axes",
    "with_shapes",
]


@dataclass(frozen=True)
class Port:
    """One input of a model.

    Attributes:
        name: The name in the model.
        shape: An int per fixed axis, None per dynamic one, the batch axis first; None: the model does not declare it.
        dtype: The dtype; None: the model does not declare it.
        limits: Axis, smallest and largest length (None: any) of the dynamic axes behind the batch axis whose length
            the model bounds.
    """

    name: str
    shape: tuple[int | None, ...] | None = None
    dtype: torch.dtype | None = None
    limits: tuple[tuple[int, int, int | None], ...] = ()

    def text(self, *, sample: bool = False) -> str:
        """Give ``float32 [*, 3, 48, *]``; of one sample, without the batch axis, if ``sample``."""
        kind = "a tensor" if self.dtype is None else dtype_name(self.dtype)
        if self.shape is None:
            return kind
        axes = ["*" if n is None else str(n) for n in self.shape]
        for axis, least, most in self.limits:
            if self.shape[axis] is None:
                axes[axis] = f"{least}.." if most is None else f"{least}..{most}"
        return f"{kind} [{', '.join(axes[1:] if sample else axes)}]"

    def takes(self, lengths: Sequence[int]) -> bool:
        """Return whether these may be the lengths of the axes behind the batch axis; the rank must be right."""
        both = zip((self.shape or ())[1:], lengths, strict=True)
        return all(fixed in (None, length) for fixed, length in both) and all(
            least <= lengths[axis - 1] and (most is None or lengths[axis - 1] <= most)
            for axis, least, most in self.limits
        )

    def accepts(self) -> str:
        """Give a text for errors that says what a request may hold for the input."""
        if self.shape is None:
            return f"{self.text()}: a sample, or rows with `request_size`"
        return f"{self.text(sample=True)} (one sample) or {self.text()} (`request_size` rows)"

    def describe(self) -> dict[str, Any]:
        """Return dtype and shape as plain data; None for one that the model does not declare."""
        return {
            "dtype": None if self.dtype is None else dtype_name(self.dtype),
            "shape": None if self.shape is None else list(self.shape),
        }


@dataclass(frozen=True)
class Signature:
    """The inputs of a model, in the order in which it is called with them.

    Attributes:
        inputs: All inputs, each of which a run needs.
        rows: The batch size to which the model is fixed; None: any from ``least`` to ``most``.
        least: The smallest batch size.
        most: The largest batch size; None: any.
        symbols: What a program calls the length of its batch axis; None: it is fixed, or the model does not tell.
    """

    inputs: tuple[Port, ...]
    rows: int | None = None
    least: int = 1
    most: int | None = None
    symbols: frozenset[Any] | None = None


def refuse_other_axes(returned: Any, wanted: Sequence[str] | None, signature: Signature) -> None:
    """Refuse outputs whose first axis is another one than the batch axis by what a program declares.

    A run shows it only where that axis is not, by accident, as long as the batch.

    Args:
        returned: What the program returns, with tensors that have shapes, but no values.
        wanted: The names of the outputs to give; None: all.
        signature: The inputs of the program.

    Raises:
        SetupError: An output has another first axis or none, is no tensor, or is not there.
    """
    try:
        outputs = named_outputs(returned, wanted)
    except BackendError as error:
        raise SetupError(error.what, hint=error.hint) from None
    for name, one in outputs.items():
        length: Any = one.shape[0] if one.ndim else 0
        if signature.symbols is None:
            batched = isinstance(length, int) and length == signature.rows
        elif isinstance(length, int):
            batched = length == 1  # all that a single row gives
        else:
            batched = bool(signature.symbols & length.node.expr.free_symbols)
        if not batched:
            raise SetupError(
                f"the first axis of the model's output {name!r} is not the batch axis: it is"
                f" [{', '.join(map(str, one.shape))}]",
                hint="`outputs` names those to give; each has the batch axis first.",
            )


def with_shapes(signature: Signature, shape: str | Mapping[str, str] | None) -> Signature:
    """Return the signature; the option ``shape`` fills in what the model does not declare.

    Args:
        signature: The signature that the model declares.
        shape: ``"3x224x224"`` or ``"uint8:3x224x224"``, the shape of one sample (-1: any length), for
            the only input, or a table by name.

    Raises:
        SetupError: ``shape`` names an unknown input, or contradicts the model.
    """
    if shape is None:
        return signature
    names = [port.name for port in signature.inputs]
    if isinstance(shape, str):
        if len(names) != 1:
            raise SetupError(
                f"`shape` is one text, and the model has {len(names)} inputs: {', '.join(names)}",
                hint="Write a table, shape = {NAME = '3x224x224', ...}.",
            )
        shape = {names[0]: shape}
    _refuse_unknown("shape", shape, names)
    given = {name: _port_of_text(name, text) for name, text in shape.items()}
    return replace(
        signature, inputs=tuple(_narrowed(port, given.get(port.name)) for port in signature.inputs)
    )


def _refuse_unknown(option: str, names: Iterable[str], known: Sequence[str]) -> None:
    for name in names:
        if name not in known:
            raise SetupError(
                f"`{option}` names {name!r}, which the model does not have",
                hint=nearest(name, known) or f"It has: {', '.join(known)}.",
            )


def nearest(name: str, known: Iterable[str]) -> str | None:
    """Give a hint with the nearest known name; None if no known name is near."""
    near = difflib.get_close_matches(name, list(known), n=1)
    return f"Did you mean {near[0]!r}?" if near else None


def _port_of_text(name: str, text: str) -> Port:
    """Read ``uint8:3x224x224``."""
    dtype, _, axes = text.rpartition(":")
    if dtype and not isinstance(getattr(torch, dtype, None), torch.dtype):
        raise SetupError(f"`shape` names the dtype {dtype!r}, which torch does not have")
    shape = (None if axis == "-1" else int(axis) for axis in axes.split("x"))
    return Port(name, (None, *shape), getattr(torch, dtype) if dtype else None)


def _narrowed(port: Port, given: Port | None) -> Port:
    if given is None or given.shape is None:
        return port
    shape = given.shape
    if port.shape is None:
        return replace(port, shape=shape, dtype=port.dtype or given.dtype)
    fits = len(port.shape) == len(shape) and all(
        a is None or b is None or a == b for a, b in zip(port.shape, shape, strict=True)
    )
    if not fits or given.dtype not in (None, port.dtype):
        raise SetupError(
            f"`shape` does not fit the model: its input {port.name!r} is {port.text()}",
            hint="Leave `shape` out where the model declares its own.",
        )
    both = zip(port.shape, shape, strict=True)
    return replace(port, shape=tuple(b if a is None else a for a, b in both))


def choose_keys(signature: Signature, inputs: Mapping[str, str]) -> dict[str, str]:
    """Return the key of the request for each input: ``data`` for the only one, else its name.

    Args:
        signature: The signature of the model.
        inputs: The keys of some inputs by the inputs' names, which win over the defaults.

    Raises:
        SetupError: ``inputs`` names an input that the model does not have, or an input would be read from ``result``,
            which no request brings.
    """
    names = [port.name for port in signature.inputs]
    _refuse_unknown("inputs", inputs, names)
    alone = {names[0]: "data"} if len(names) == 1 else {name: name for name in names}
    keys = {**alone, **inputs}
    if "result" in keys.values():
        name = next(name for name, key in keys.items() if key == "result")
        raise SetupError(
            f"input {name!r} would be read from the key 'result', which is removed from every request",
            hint=f"Name another key in `inputs`: {{{name} = 'KEY'}}.",
        )
    return keys


def named_outputs(result: Any, wanted: Sequence[str] | None = None) -> dict[str, torch.Tensor]:
    """Return the outputs of a model as tensors by name.

    A dict (also one with attributes) has its keys, a named tuple its fields, another tuple or list
    ``output_0``, ``output_1``, ...; a single tensor is ``output``.

    Args:
        result: The value that the model returned.
        wanted: The names to give, in order; None: all, except values that are None.

    Raises:
        BackendError: An output is no dense tensor, there is none, or the model does not give a name in ``wanted``.
    """
    if isinstance(result, torch.Tensor):
        found: dict[str, Any] = {"output": result}
    elif isinstance(result, dict) or hasattr(result, "items"):
        found = dict(result.items())
    elif isinstance(result, tuple) and hasattr(result, "_fields"):
        found = dict(zip(result._fields, result, strict=True))
    elif isinstance(result, (tuple, list)):
        found = {f"output_{index}": one for index, one in enumerate(result)}
    else:
        raise BackendError(f"the model returned {type(result).__name__}, no tensor")
    if wanted is not None:
        missing = [name for name in wanted if name not in found]
        if missing:
            raise BackendError(
                f"`outputs` names {missing[0]!r}, which the model does not give",
                hint=nearest(missing[0], found) or f"It gives: {', '.join(found)}.",
            )
        found = {name: found[name] for name in wanted}
    else:
        found = {name: one for name, one in found.items() if one is not None}
    if not found:
        raise BackendError("the model gives no output: it returned nothing, or only None")
    for name, one in found.items():
        _refuse_no_dense(name, one)
    return found


def _refuse_no_dense(name: str, value: Any) -> None:
    if not isinstance(value, torch.Tensor):
        raise BackendError(
            f"the model's output {name!r} is {type(value).__name__}, no tensor",
            hint="`outputs` names those to give.",
        )
    if value.layout is not torch.strided or value.is_nested:
        kind = "nested" if value.is_nested else str(value.layout).removeprefix("torch.")
        raise BackendError(f"the model's output {name!r} is {kind}, no dense tensor")
