"""Concatenates the rows of a batch on the device, padded to one shape if asked for."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from headrace_torch.devices.transfer import moved_in
from headrace_torch.models.warming import inputs_of
from headrace_torch.requests.items import joined

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from headrace_tensors import Item
    from headrace_torch.devices.place import Place
    from headrace_torch.models.running import Runner
    from headrace_torch.requests.signature import Port, Signature

__all__ = ["gathered", "runs_of_lengths"]


def runs_of_lengths(
    runner: Runner,
    signature: Signature,
    place: Place,
    pads: Mapping[str, float],
    *,
    dtype: torch.dtype | None = None,
    real: Item | None = None,
) -> Callable[[Sequence[Mapping[str, Sequence[int]]]], Mapping[str, Sequence[int]]]:
    """Return what `headrace_tensors.prove_crops` runs.

    Args:
        runner: Runs the model.
        signature: The inputs.
        place: Device and stream of the instance.
        pads: The value with which axes are padded, by input.
        dtype: The dtype to which floating inputs are cast. None: they are not cast.
        real: Inputs whose values are repeated to each length. None: they are random.
    """

    def row_of(shapes: Mapping[str, Sequence[int]], seed: int) -> list[torch.Tensor]:
        fixed = [
            replace(port, shape=(None, *shapes[port.name])) if port.name in shapes else port
            for port in signature.inputs
        ]
        ports = signature if real is not None else replace(signature, inputs=tuple(fixed))
        tensors = [*inputs_of(runner, ports, place, 1, seed=seed, dtype=dtype, real=real)]
        for at, port in enumerate(signature.inputs):
            for axis, length in enumerate(shapes.get(port.name, ()), 1):
                tensor = tensors[at]
                places = torch.arange(length, device=tensor.device) % tensor.shape[axis]
                tensors[at] = tensor.index_select(axis, places)
        return tensors

    def run(rows: Sequence[Mapping[str, Sequence[int]]]) -> dict[str, Sequence[int]]:
        row_tensors = [row_of(shapes, seed) for seed, shapes in enumerate(rows)]
        tensors = [
            joined([row[at] for row in row_tensors], pad_value=pads[port.name], port=port)
            if port.batched
            else row_tensors[0][at]
            for at, port in enumerate(signature.inputs)
        ]
        outputs = runner.run(tensors, len(rows), new=True)
        return {
            name: tuple(output.shape)
            for name, output in outputs.items()
            if not signature.whole & {name, "all"}
        }

    return run


def gathered(
    port: Port,
    items: Sequence[Item],
    rows: int,
    place: Place,
    *,
    pads: Mapping[str, float] | None,
    pad_multiple: int,
) -> torch.Tensor:
    """Return the rows of all items for an input on the device, those of the host go there in one copy.

    Args:
        port: The input.
        items: The items of a run.
        rows: The number of rows of the result. The last row is repeated as often as needed.
        place: Device and stream of the instance.
        pads: The value with which axes are padded, by input. None: the samples have one shape.
        pad_multiple: With ``pads``: dynamic axes are padded further, to a multiple of this length.
    """
    tensors = [item.tensors[port.name] for item in items]
    if not port.batched:
        return _on_device(tensors[0], place)
    if not all(tensor.device.type == "cpu" for tensor in tensors):
        tensors = [_on_device(tensor, place) for tensor in tensors]
    whole = joined(
        tensors,
        rows=rows,
        pad_value=None if pads is None else pads[port.name],
        pad_multiple=pad_multiple,
        port=port,
    )
    return _on_device(whole, place)


def _on_device(tensor: torch.Tensor, place: Place) -> torch.Tensor:
    return tensor if tensor.device == place.device else moved_in(tensor, place)
