"""One run of the engine: its items, and the shapes of its inputs."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from headrace.errors import InputError
from headrace_tensors import DeviceArray, padded_shape

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from headrace_tensors import Item, Signature

__all__ = ["Run", "not_padded", "run_shapes"]


class Run(NamedTuple):
    """One call of the engine.

    Attributes:
        items: The items of the run, in order. None of samples that were placed without reading each.
        rows: The rows of these items together.
        filled: The rows with which the engine runs: it may need more than there are.
        shapes: The shape of every input, after padding of samples and filling up to the engine's least batch.
        pads: The value with which each input is padded. None: none is.
    """

    items: Sequence[Item]
    rows: int
    filled: int
    shapes: Mapping[str, tuple[int, ...]]
    pads: Mapping[str, float] | None = None


def not_padded(
    items: Sequence[Item], signature: Signature, multiple: int, keys: Mapping[str, str]
) -> dict[int, InputError]:
    """Return errors for arrays on the device that would have to be padded. Only arrays on the host are padded.

    Without such an item the others may need less padding, so the rest is checked again until nothing changes.
    """
    errors: dict[int, InputError] = {}
    rest = list(range(len(items)))
    changed = True
    while rest and changed:
        shapes = run_shapes([items[i] for i in rest], signature, 1, multiple)
        changed = False
        for i in rest:
            for port in signature.inputs:
                tensor = items[i].tensors[port.name]
                target = shapes[port.name][1:]
                if port.batched and type(tensor) is DeviceArray and tensor.shape[1:] != target:
                    errors[i] = InputError(
                        "an array on the device is not padded",
                        key=keys.get(port.name, port.name),
                        expected=f"samples of {list(target)}, or an array on the host",
                        got=f"{list(tensor.shape[1:])} on the device",
                        hint="Pad it before, or set ragged = 'group', which runs each shape separately.",
                    )
                    changed = True
        rest = [i for i in rest if i not in errors]
    return errors


def run_shapes(
    items: Sequence[Item], signature: Signature, rows: int, padding: int
) -> dict[str, tuple[int, ...]]:
    """Return the shape of every input of a run.

    Args:
        items: The items of the run.
        signature: Inputs and outputs of the engine.
        rows: Length of the batch axis.
        padding: 0: samples have one shape, else lengths of dynamic axes are rounded up to a multiple of this, at
            most to the profile's greatest.
    """
    shapes = {}
    for port in signature.inputs:
        tensor = items[0].tensors[port.name]
        if not port.batched:
            shapes[port.name] = tuple(tensor.shape)
        elif not padding:
            shapes[port.name] = (rows, *tensor.shape[1:])
        else:
            samples = [item.tensors[port.name].shape[1:] for item in items]
            shapes[port.name] = (rows, *padded_shape(samples, port, padding))
    return shapes
