"""Divides the items of a batch into those that can share a run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from headrace.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from headrace_tensors.ports import Port
    from headrace_tensors.reading import Item

__all__ = ["cut_groups", "group_items", "refuse_ragged"]

_SMALL_BYTES: Final = 1 << 16


def _shape_of(tensor: Any) -> object:
    return tensor.shape[1:]


def group_items(
    items: Sequence[Item],
    ports: Iterable[Port],
    *,
    by_shape: bool = False,
    shape_of: Callable[[Any], object] = _shape_of,
) -> list[list[int]]:
    """Group items that can share a run because their values for inputs without batch axis are equal.

    Such values are compared if they have at most 64 KiB. An item with a larger one runs alone. Items that bring
    different optional inputs run apart.

    Args:
        items: The items.
        ports: The inputs of the model.
        by_shape: Whether the samples of a group must also have one shape.
        shape_of: What must be equal of the tensors of a batched input, if ``by_shape``.

    Returns:
        Positions in ``items``: groups in the order of their first item, ascending inside.
    """
    if len(items) < 2:
        return [[0]] if items else []
    whole = [port.name for port in ports if not port.batched]
    batched = [port.name for port in ports if port.batched and (by_shape or port.optional)]
    if not whole and not batched:
        return [list(range(len(items)))]
    columns: list[list[object]] = [
        [
            _value_of(item.tensors[name], position) if name in item.tensors else None
            for position, item in enumerate(items)
        ]
        for name in whole
    ]
    for name in batched:
        brought = [item.tensors.get(name) for item in items]
        if by_shape:
            columns.append([tensor if tensor is None else shape_of(tensor) for tensor in brought])
        else:
            columns.append([tensor is not None for tensor in brought])
    groups: dict[object, list[int]] = {}
    for position, key in enumerate(zip(*columns, strict=True)):
        groups.setdefault(key, []).append(position)
    return list(groups.values())


def _value_of(tensor: Any, position: int) -> tuple[object, ...]:
    """Return what is equal for tensors of equal values; for a large one, what no other has."""
    pointer = getattr(tensor, "pointer", None)
    if pointer is not None:
        return ("device", pointer, tensor.shape)
    if getattr(tensor, "is_cuda", False):
        return ("device", tensor.data_ptr(), tensor.shape)
    if tensor.dtype == object:
        return (tensor.shape, tuple(tensor.ravel()))
    if tensor.nbytes > _SMALL_BYTES:
        return ("alone", position)
    if not hasattr(tensor, "tobytes"):  # a tensor of torch
        return (tensor.shape, tensor.dtype, repr(tensor.tolist()))
    return (tensor.shape, tensor.tobytes())


def cut_groups(
    members: Sequence[int], items: Sequence[Item], most: int | None, *, one_at_a_time: bool
) -> list[list[int]]:
    """Divide members into parts of at most ``most`` rows, or into single items if requests cannot share a run."""
    if one_at_a_time:
        return [[i] for i in members]
    parts: list[list[int]] = []
    rows = 0
    for i in members:
        if not parts or (most is not None and rows + items[i].rows > most):
            parts.append([])
            rows = 0
        parts[-1].append(i)
        rows += items[i].rows
    return parts


def refuse_ragged(first: Item, item: Item, keys: Mapping[str, str]) -> InputError | None:
    """Return the error of an item whose samples have another shape than those of the first item, else None.

    Args:
        first: The first item of a run.
        item: The item to compare with it.
        keys: For each batched input the key of the request.
    """
    for name, key in keys.items():
        if name not in first.tensors:
            continue
        expected, got = first.tensors[name].shape[1:], item.tensors[name].shape[1:]
        if expected != got:
            return InputError(
                "the samples of this batch differ in shape",
                key=key,
                expected=f"{list(expected)}, as its first",
                got=f"{list(got)}",
                hint="ragged = 'pad' pads them to one shape, ragged = 'group' runs them separately.",
            )
    return None
