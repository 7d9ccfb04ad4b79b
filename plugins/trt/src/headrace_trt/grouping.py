"""Divides the items of a batch into runs of the engine, and gives the shapes of each run."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from headrace.errors import InputError
from headrace_tensors import DeviceArray, cut_groups, group_items, padded_shape, refuse_ragged

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from headrace_tensors import Item, Signature
    from headrace_trt.signature import Port

__all__ = ["Run", "plan_runs", "run_shapes"]


class Run(NamedTuple):
    """One call of the engine.

    Attributes:
        members: The positions of the run's items in the batch, in order.
        rows: The rows of these items together.
        filled: The rows with which the engine runs: it may need more than there are.
        shapes: The shape of every input, after padding of samples and filling up to the engine's least batch.
    """

    members: tuple[int, ...]
    rows: int
    filled: int
    shapes: Mapping[str, tuple[int, ...]]


def plan_runs(
    items: Sequence[Item],
    signature: Signature,
    *,
    ragged: str = "refuse",
    pad_multiple: int = 1,
    keys: Mapping[str, str] | None = None,
) -> tuple[list[Run], dict[int, InputError]]:
    """Divide items into runs, none with more rows than the engine takes.

    Args:
        items: The items, each within the range by itself.
        signature: Inputs and outputs of the engine.
        ragged: For samples of different shapes: ``"refuse"`` fails those unlike the first of their
            run, ``"pad"`` runs all at the largest shape, ``"group"`` runs those of one shape together.
        pad_multiple: With ``"pad"``: lengths of dynamic axes become multiples of it.
        keys: The key of the request for each input, for errors.

    Returns:
        The runs, and for each item that is in no run its error, by the item's position.
    """
    runs = []
    errors: dict[int, InputError] = {}
    for group in group_items(items, signature.inputs, by_shape=ragged == "group"):
        alone = signature.one_at_a_time
        for part in cut_groups(group, items, signature.high_rows, one_at_a_time=alone):
            unfit: dict[int, InputError] = {}
            if ragged == "refuse":
                unfit = _unlike_first(part, items, signature.inputs, keys or {})
            elif ragged == "pad":
                unfit = _not_padded(part, items, signature, pad_multiple, keys or {})
            if unfit:
                errors.update(unfit)
                part = [i for i in part if i not in unfit]
            if not part:
                continue
            rows = sum(items[i].rows for i in part)
            filled = signature.filled(rows)
            padding = pad_multiple if ragged == "pad" else 0
            shapes = run_shapes([items[i] for i in part], signature, filled, padding)
            runs.append(Run(tuple(part), rows, filled, shapes))
    return runs, errors


def _not_padded(
    part: Sequence[int],
    items: Sequence[Item],
    signature: Signature,
    padding: int,
    keys: Mapping[str, str],
) -> dict[int, InputError]:
    """Return errors for arrays on the device that would have to be padded. Only arrays on the host are padded.

    Without such an item the others may need less padding, so the rest is checked again until nothing changes.
    """
    errors: dict[int, InputError] = {}
    rest = list(part)
    changed = True
    while rest and changed:
        shapes = run_shapes([items[i] for i in rest], signature, 1, padding)
        changed = False
        for i in rest:
            for port in signature.inputs:
                tensor = items[i].tensors[port.name]
                wanted = shapes[port.name][1:]
                if port.batched and type(tensor) is DeviceArray and tensor.shape[1:] != wanted:
                    errors[i] = InputError(
                        "an array on the device is not padded",
                        key=keys.get(port.name, port.name),
                        expected=f"samples of {list(wanted)}, or an array on the host",
                        got=f"{list(tensor.shape[1:])} on the device",
                        hint="Pad it before, or set ragged = 'group', which runs each shape separately.",
                    )
                    changed = True
        rest = [i for i in rest if i not in errors]
    return errors


def _unlike_first(
    part: Sequence[int], items: Sequence[Item], ports: Sequence[Port], keys: Mapping[str, str]
) -> dict[int, InputError]:
    """Return errors for the items of a run whose samples have another shape than those of its first item."""
    if len(part) == 1:
        return {}
    free = [port.name for port in ports if port.batched and None in port.shape[1:]]
    tensors = [items[i].tensors for i in part]
    if all(len({one[name].shape[1:] for one in tensors}) == 1 for name in free):
        return {}
    own = {port.name: keys.get(port.name, port.name) for port in ports if port.batched}
    found = ((i, refuse_ragged(items[part[0]], items[i], own)) for i in part)
    return {i: error for i, error in found if error is not None}


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
