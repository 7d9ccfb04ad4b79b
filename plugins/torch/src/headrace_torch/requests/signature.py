"""Names, shapes and dtypes of a model's inputs and outputs, as far as the model declares them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch

import headrace_tensors as tensors
from headrace.errors import BackendError, SetupError, among
from headrace_tensors import refuse_two_batches, refuse_unknown
from headrace_torch.requests.tensors import dtype_name

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

__all__ = [
    "Port",
    "Signature",
    "as_run",
    "declared_outputs",
    "lengths_of",
    "named_outputs",
    "names_of",
    "refuse_other_axes",
    "with_shapes",
    "without_batch_axis",
]


@dataclass(frozen=True, init=False)
class Port(tensors.Port):
    """One input of a model, with a ``torch.dtype``. Shape and dtype are None where the model does not declare them.

    Attributes:
        bounds: Axis, smallest and largest length (None: any) of the dynamic axes behind the batch axis whose length
            the model bounds.
    """

    bounds: tuple[tuple[int, int, int | None], ...] = ()

    def __init__(
        self,
        name: str,
        shape: tuple[int | None, ...] | None = None,
        dtype: torch.dtype | None = None,
        bounds: tuple[tuple[int, int, int | None], ...] = (),
        batched: bool = True,
        **more: Any,
    ) -> None:
        super().__init__(name, dtype, shape, batched, **more)
        object.__setattr__(self, "bounds", bounds)

    def limits(self, axis: int) -> tuple[int, int | None] | None:
        """Return the smallest and the largest length of an axis; None if all are taken."""
        return next(((least, most) for at, least, most in self.bounds if at == axis), None)

    def fits(self, lengths: Sequence[int]) -> bool:
        """Return whether these may be the lengths of the axes behind the batch axis; the rank must be right."""
        return all(self.takes(axis, length) for axis, length in enumerate(lengths, 1))

    def describe(self) -> dict[str, Any]:
        """Return dtype and shape as plain data; None for one that the model does not declare."""
        about: dict[str, Any] = {
            "dtype": None if self.dtype is None else dtype_name(self.dtype),
            "shape": None if self.shape is None else list(self.shape),
        }
        return about if self.batched else {**about, "batched": False}


@dataclass(frozen=True)
class Signature(tensors.Signature):
    """The inputs of a model, in the order in which it is called with them. Its outputs only where it declares them.

    Attributes:
        symbols: What a program calls the length of its batch axis. None: it is fixed, or the model does not tell.
        whole: Names of outputs without batch axis, as the user has said. ``"all"`` means all.
    """

    symbols: frozenset[Any] | None = None
    whole: frozenset[str] = frozenset()

    @property
    def one_at_a_time(self) -> bool:
        """Whether requests cannot share a run, because an output without batch axis belongs to the whole run."""
        return bool(self.whole)


def refuse_other_axes(
    returned: Any, names: Sequence[str] | None, signature: Signature, *, shared: bool = False
) -> None:
    """Refuse outputs whose first axis is another one than the batch axis by what a program declares, or not the only one.

    A run shows it only where that axis is not, by accident, as long as the batch.

    Args:
        returned: What the program returns, with tensors that have shapes, but no values.
        names: The names of the outputs to give. None: all.
        signature: The inputs of the program.
        shared: Whether requests may share a run, so that rows of several meet in an output with two batch axes.

    Raises:
        SetupError: An output has another first axis or none, or two, is no tensor, or is not there.
    """
    try:
        outputs = named_outputs(returned, names)
    except BackendError as error:
        raise SetupError(error.what, hint=error.hint) from None
    for name, output in outputs.items():
        if signature.whole & {name, "all"}:
            continue
        length: Any = output.shape[0] if output.ndim else 0
        if signature.symbols is None:
            batched = isinstance(length, int) and length == signature.rows
        elif isinstance(length, int):
            batched = length == 1  # all that a single row gives
        else:
            batched = bool(signature.symbols & length.node.expr.free_symbols)
        if not batched:
            raise SetupError(
                f"the first axis of the model's output {name!r} is not the batch axis: it is"
                f" [{', '.join(map(str, output.shape))}]",
                hint="Name it in `unbatched` if it belongs to the whole run; `outputs` names those to give.",
            )
        others = [n for n in output.shape[1:] if not isinstance(n, int)]
        if shared and any((signature.symbols or set()) & n.node.expr.free_symbols for n in others):
            refuse_two_batches(name, list(map(str, output.shape)))


def declared_outputs(
    returned: Any, names: Sequence[str] | None, named: Iterable[str] | None
) -> tuple[Port, ...]:
    """Return the outputs that a program declares, with the names of their axes.

    Args:
        returned: What the program returns, with tensors that have shapes, but no values. None: it is not known.
        names: The names of the outputs to give. None: all.
        named: Names of outputs to return in any case, without shape.
    """
    outputs = {} if returned is None else named_outputs(returned, names)
    ports = [
        Port(name, lengths_of(output.shape), output.dtype, names=names_of(output.shape))
        for name, output in outputs.items()
    ]
    ports += [Port(name, ()) for name in named or () if name not in outputs]
    return tuple(ports)


def as_run(
    signature: Signature, returned: Any, options: Any, cast: torch.dtype | None
) -> Signature:
    """Return the signature with the dtypes of a run, and with the outputs that a program declares.

    Args:
        signature: The inputs.
        returned: What a program returns, with tensors that have shapes, but no values. None: it is not known.
        options: ``outputs`` and ``crop`` of `TorchModuleOptions`.
        cast: The dtype to which floating inputs are cast. None: they are not cast.
    """
    inputs = tuple(
        replace(port, dtype=cast)
        if cast is not None and port.dtype is not None and port.dtype.is_floating_point
        else port
        for port in signature.inputs
    )
    outputs = declared_outputs(returned, options.outputs, options.crop)
    return replace(signature, inputs=inputs, outputs=outputs)


def lengths_of(shape: Iterable[Any]) -> tuple[int | None, ...]:
    """Return an int per fixed axis of a program's tensor, None per dynamic one."""
    return tuple(n if isinstance(n, int) else None for n in shape)


def names_of(shape: Iterable[Any]) -> tuple[str | None, ...]:
    """Return what a program calls the length of each dynamic axis; None for a fixed one."""
    return tuple(None if isinstance(n, int) else str(n.node.expr) for n in shape)


def with_shapes(signature: Signature, shape: str | Mapping[str, str] | None) -> Signature:
    """Return the signature. The option ``shape`` fills in what the model does not declare.

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
    refuse_unknown("shape", shape, names)
    ports = {name: _port_of_text(name, text) for name, text in shape.items()}
    return replace(
        signature, inputs=tuple(_narrowed(port, ports.get(port.name)) for port in signature.inputs)
    )


def without_batch_axis(
    signature: Signature,
    unbatched: Sequence[str] | str,
    outputs: Sequence[str] | None,
    declared: Signature,
) -> Signature:
    """Return the signature. Inputs that the option ``unbatched`` names have no batch axis, other names are outputs.

    Args:
        signature: The inputs.
        unbatched: Names of inputs and outputs, or ``"all"``.
        outputs: The names of the outputs to give. None: all.
        declared: The inputs as the model declares them: a shape that it does not declare is that of the option
            ``shape``, to which no batch axis is added.

    Raises:
        SetupError: A name is neither an input nor among ``outputs``.
    """
    names = [port.name for port in signature.inputs]
    known = {port.name for port in declared.inputs if port.shape is not None}
    whole_ports = tuple(
        replace(
            port,
            batched=False,
            shape=port.shape if port.shape is None or port.name in known else port.shape[1:],
        )
        if unbatched == "all" or port.name in unbatched
        else port
        for port in signature.inputs
    )
    if unbatched == "all":
        return replace(signature, inputs=whole_ports, whole=frozenset({"all"}))
    whole = frozenset(name for name in unbatched if name not in names)
    if outputs is not None:
        refuse_unknown("unbatched", whole, [*names, *outputs])
    return replace(signature, inputs=whole_ports, whole=whole)


def _port_of_text(name: str, text: str) -> Port:
    """Read ``uint8:3x224x224``."""
    dtype, _, axes = text.rpartition(":")
    if dtype and not isinstance(getattr(torch, dtype, None), torch.dtype):
        raise SetupError(f"`shape` names the dtype {dtype!r}, which torch does not have")
    shape = (None if axis == "-1" else int(axis) for axis in axes.split("x"))
    return Port(name, (None, *shape), getattr(torch, dtype) if dtype else None)


def _narrowed(port: Port, other: Port | None) -> Port:
    if other is None or other.shape is None:
        return port
    shape = other.shape
    if port.shape is None:
        return replace(port, shape=shape, dtype=port.dtype or other.dtype)
    fits = len(port.shape) == len(shape) and all(
        a is None or b is None or a == b for a, b in zip(port.shape, shape, strict=True)
    )
    if not fits or other.dtype not in (None, port.dtype):
        raise SetupError(
            f"`shape` does not fit the model: its input {port.name!r} is {port.text()}",
            hint="Leave `shape` out where the model declares its own.",
        )
    both = zip(port.shape, shape, strict=True)
    return replace(port, shape=tuple(b if a is None else a for a, b in both))


def named_outputs(result: Any, names: Sequence[str] | None = None) -> dict[str, torch.Tensor]:
    """Return the outputs of a model as tensors by name.

    A dict (also one with attributes) has its keys, a named tuple its fields, another tuple or list
    ``output_0``, ``output_1``, .... A single tensor is ``output``.

    Args:
        result: The value that the model returned.
        names: The names to give, in order. None: all, except values that are None.

    Raises:
        BackendError: An output is no dense tensor, there is none, or the model does not give a name in ``wanted``.
    """
    if isinstance(result, torch.Tensor):
        outputs: dict[str, Any] = {"output": result}
    elif isinstance(result, dict) or hasattr(result, "items"):
        outputs = dict(result.items())
    elif isinstance(result, tuple) and hasattr(result, "_fields"):
        outputs = dict(zip(result._fields, result, strict=True))
    elif isinstance(result, (tuple, list)):
        outputs = {f"output_{index}": output for index, output in enumerate(result)}
    else:
        raise BackendError(f"the model returned {type(result).__name__}, no tensor")
    if names is not None:
        missing = [name for name in names if name not in outputs]
        if missing:
            raise BackendError(
                f"`outputs` names {missing[0]!r}, which the model does not give",
                hint=among(missing[0], outputs),
            )
        outputs = {name: outputs[name] for name in names}
    else:
        outputs = {name: output for name, output in outputs.items() if output is not None}
    if not outputs:
        raise BackendError("the model gives no output: it returned nothing, or only None")
    for name, output in outputs.items():
        _refuse_no_dense(name, output)
    return outputs


def _refuse_no_dense(name: str, value: Any) -> None:
    if not isinstance(value, torch.Tensor):
        raise BackendError(
            f"the model's output {name!r} is {type(value).__name__}, no tensor",
            hint="`outputs` names those to give.",
        )
    if value.layout is not torch.strided or value.is_nested:
        kind = "nested" if value.is_nested else str(value.layout).removeprefix("torch.")
        raise BackendError(f"the model's output {name!r} is {kind}, no dense tensor")
