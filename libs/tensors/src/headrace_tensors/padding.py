"""Pads samples of different shapes to one shape, and finds the padding to cut off the outputs."""

from __future__ import annotations

import math
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from headrace.errors import InputError, SetupError
from headrace_tensors.host_arrays import numpy_dtype
from headrace_tensors.ports import refuse_unknown

if TYPE_CHECKING:
    import logging
    from collections.abc import Iterable, Mapping, Sequence

    from numpy.typing import NDArray

    from headrace_tensors.ports import Port, Signature
    from headrace_tensors.reading import Item

__all__ = [
    "Crop",
    "Padding",
    "Steps",
    "check_padding",
    "find_crops",
    "pad_values",
    "padded",
    "padded_shape",
    "padded_shapes",
    "padding_fits",
    "prepare_padding",
    "warning_of_padding",
]

_MOST: Final = {
    "float16": 65504.0,
    "bfloat16": 3.3895313892515355e38,
    "float32": 3.4028234663852886e38,
    "float8_e4m3fn": 448.0,
}
"""The largest number of each floating type."""


def _free(port: Port) -> bool:
    """Return whether another axis than the batch axis is dynamic."""
    return port.batched and (port.shape is None or None in port.sample_shape)


def pad_values(
    option: float | Mapping[str, float], ports: Sequence[Port], label: str = "model"
) -> dict[str, float]:
    """Return the value with which each input is padded.

    Args:
        option: The option ``pad_value``: one number for all inputs, or a table by input, where 0 stands for the others.
        ports: The inputs.
        label: What an error calls the model.

    Raises:
        SetupError: The table names an input that the model does not have.
    """
    names = [port.name for port in ports]
    if isinstance(option, (int, float)):
        return dict.fromkeys(names, float(option))
    refuse_unknown("pad_value", option, names, label)
    return {name: float(option.get(name, 0.0)) for name in names}


def warning_of_padding(option: float | Mapping[str, float], ports: Sequence[Port]) -> str | None:
    """Return a warning where one number other than 0 pads several inputs, such as ids and their mask; else None."""
    ragged = [port.name for port in ports if _free(port)]
    if not isinstance(option, (int, float)) or option == 0 or len(ragged) < 2:
        return None
    return (
        f"pad_value = {option} pads all of {', '.join(ragged)}. A mask padded with another number than 0 changes"
        f" results in a batch: write pad_value = {{{ragged[0]} = {option}}}, others are padded with 0."
    )


def padding_fits(dtype: str, value: float) -> bool:
    """Return whether a dtype by name can hold a value without changing it; one that is not known can."""
    if dtype == "bool":
        return value in (0, 1)
    if "int" in dtype:
        import numpy as np

        about = np.iinfo(dtype)
        return float(value).is_integer() and about.min <= value <= about.max
    if dtype.startswith(("float", "bfloat")):
        endless = not math.isfinite(value) and dtype != "float8_e4m3fn"  # which has no infinity
        return endless or abs(value) <= _MOST.get(dtype, math.inf)
    return not dtype or dtype == "None"


def check_padding(ports: Iterable[Port], values: Mapping[str, float]) -> None:
    """Refuse padding values that the types of inputs with dynamic axes cannot hold.

    Raises:
        SetupError: The input holds strings, or a dtype that its value does not fit.
    """
    for port in ports:
        if _free(port) and not padding_fits(
            str(port.dtype).removeprefix("torch."), values[port.name]
        ):
            raise SetupError(
                f"input {port.name!r} is {port.text()}: it cannot be padded with {values[port.name]}"
            )


def padded_shape(shapes: Sequence[Sequence[int]], port: Port, multiple: int = 1) -> tuple[int, ...]:
    """Return the shape to which samples are padded.

    Args:
        shapes: The shapes of the samples, of one rank.
        port: The input. Fixed axes keep their length, dynamic ones become as long as the longest.
        multiple: Dynamic axes are rounded up to a multiple of it, at most to the greatest length that the model takes.
    """
    shape = []
    axes = [axis for axis in range(len(port.shape)) if axis != port.axis] if port.shape else []
    for place, lengths in enumerate(zip(*shapes, strict=True)):
        longest = max(lengths)
        even = -(-longest // multiple) * multiple
        if axes and port.shape[axes[place]] is not None:
            even = longest
        elif axes and (bounds := port.limits(axes[place])) is not None and bounds[1] is not None:
            even = min(even, bounds[1])
        shape.append(even)
    return tuple(shape)


def padded_shapes(
    items: Sequence[Item], signature: Signature, multiple: int = 1
) -> dict[str, tuple[int, ...]]:
    """Return for each batched input the shape to which the samples of items are padded."""
    return {
        port.name: padded_shape(
            [item.tensors[port.name].shape[1:] for item in items], port, multiple
        )
        for port in signature.inputs
        if port.batched and port.name in items[0].tensors
    }


def padded(
    arrays: Sequence[NDArray[Any]], port: Port, value: float, multiple: int = 1
) -> Sequence[NDArray[Any]]:
    """Return arrays of rows as one array, each axis padded at its end; unchanged if they have that shape already."""
    import numpy as np

    shape = padded_shape([array.shape[1:] for array in arrays], port, multiple)
    if all(array.shape[1:] == shape for array in arrays):
        return arrays
    whole = np.full((sum(map(len, arrays)), *shape), value, numpy_dtype(port.dtype))
    start = 0
    for array in arrays:
        stop = start + len(array)
        corner = (slice(start, stop), *map(slice, array.shape[1:]))
        whole[corner] = array
        start = stop
    return [whole]


class Steps(NamedTuple):
    """How the length of an axis follows another: in steps. The default is the same length.

    Attributes:
        at, first: A length at which a step begins, and what it makes.
        width, height: How much longer the other axis is at the next step, and how much longer it makes this one.
    """

    at: int = 0
    width: int = 1
    height: int = 1
    first: int = 0

    def of(self, length: int) -> int:
        """Return the length that another one makes."""
        return max(0, self.first + self.height * ((length - self.at) // self.width))


class Crop(NamedTuple):
    """An axis of an output to cut to what the length of an axis of an input makes it.

    Attributes:
        axis: The axis of the output, counted with its batch axis.
        input: The name of the input.
        place: The axis of the input's samples, counted without batch axis.
        steps: How the output's axis follows it.
    """

    axis: int
    input: str
    place: int
    steps: Steps = Steps()

    def length(self, item: Item) -> int:
        """Return how long the output's axis is without padding.

        Raises:
            InputError: The input is too short for the model.
        """
        own = int(item.tensors[self.input].shape[1 + self.place])
        length = self.steps.of(own)
        if length < 1 <= own:
            raise InputError(f"{own} elements of input {self.input!r} are too few for the model")
        return length

    def whole(self, padded: Mapping[str, Sequence[int]]) -> int:
        """Return how long the output's axis is for inputs padded to these shapes."""
        return self.steps.of(padded[self.input][self.place])


def find_crops(
    signature: Signature, option: Mapping[str, str] | None = None
) -> dict[str, tuple[Crop, ...]]:
    """Find the axes of outputs to cut to the lengths of a request, where samples are padded.

    These are the axes with the name of an input's free axis. ``option`` adds others.

    Args:
        signature: Inputs and outputs of the model.
        option: The option ``crop``: an input by output. The output's axes at the places of the input's free axes are
            cut like these. None: the names tell. An empty table: nothing is cut.

    Returns:
        The crops by output.

    Raises:
        SetupError: ``option`` has an unknown name, an input without a free axis, or an output without an axis for it.
    """
    if option is not None and not option:
        return {}
    inputs = {port.name: port for port in signature.inputs if _free(port) and port.shape}
    named: dict[str, tuple[str, int]] = {}
    for port in inputs.values():
        for place, name in enumerate(port.sample_names):
            if name is not None:
                named.setdefault(name, (port.name, place))
    crops_of: dict[str, tuple[Crop, ...]] = {}
    for port in signature.outputs:
        crops = tuple(
            Crop(axis, *named[name])
            for axis, name in enumerate(port.names)
            if port.batched and axis != port.axis and name in named
        )
        if crops:
            crops_of[port.name] = crops
    refuse_unknown("crop", option or {}, [port.name for port in signature.outputs], signature.label)
    refuse_unknown("crop", (option or {}).values(), list(inputs), signature.label)
    outputs = {port.name: port for port in signature.outputs}
    for name, source in (option or {}).items():
        port = outputs[name]
        free = _free_places(inputs[source])
        own = _free_places(port) if port.shape else free
        pairs = [(place, place) for place in free if place in own] or list(
            zip(own, free, strict=False)
        )
        if not port.batched or not pairs:
            raise SetupError(
                f"`crop` says {name} = {source!r}, and output {name!r} is {port.text()}: it has no axis for it"
            )
        crops_of[name] = tuple(
            Crop(place + (place >= port.axis), source, place_in) for place, place_in in pairs
        )
    return crops_of


def _free_places(port: Port) -> list[int]:
    return [place for place, length in enumerate(port.sample_shape) if length is None]


class Padding(NamedTuple):
    """How the samples of a run are padded, and its outputs cut again.

    Attributes:
        values: The value with which each input is padded. None: no sample is padded.
        multiple: The lengths of dynamic axes become multiples of it.
        crops: The axes to cut, by output.
    """

    values: Mapping[str, float] | None = None
    multiple: int = 1
    crops: Mapping[str, Sequence[Crop]] = MappingProxyType({})


def prepare_padding(
    options: Any, signature: Signature, logger: logging.Logger | logging.LoggerAdapter[Any]
) -> Padding:
    """Return the padding that the options ask for.

    Args:
        options: ``ragged``, ``pad_value``, ``pad_multiple`` and ``crop`` of `TensorOptions`.
        signature: Inputs and outputs of the model.
        logger: Gets a warning where one number pads several inputs.

    Raises:
        SetupError: An input cannot hold its value, or an option names what the model does not have.
    """
    if options.ragged != "pad":
        return Padding()
    values = pad_values(options.pad_value, signature.inputs, signature.label)
    check_padding(signature.inputs, values)
    warning = warning_of_padding(options.pad_value, signature.inputs)
    if warning is not None:
        logger.warning("%s", warning)
    return Padding(values, options.pad_multiple, find_crops(signature, options.crop))
