"""Gives each request its rows of a run's outputs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from headrace.errors import BackendError
from headrace_tensors.joining import copied
from headrace_tensors.ports import batch_axis_hint, counted_rows

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from numpy.typing import NDArray

    from headrace_tensors.padding import Crop
    from headrace_tensors.ports import Port, Signature
    from headrace_tensors.reading import Item

__all__ = ["check_rows", "cropped", "named_results", "split_outputs"]


def check_rows(port: Port, shape: Sequence[int], rows: int) -> None:
    """Refuse an output that does not have the rows of the batch: dealt out it would mix the requests.

    Args:
        port: The output. One without batch axis is not looked at.
        shape: Its shape.
        rows: The rows with which the model ran.

    Raises:
        BackendError: It has no rows, too few or too many.
    """
    if port.batched and (len(shape) <= port.axis or shape[port.axis] != rows):
        raise BackendError(
            f"output {port.name!r} is {list(shape)} for a batch of {counted_rows(rows)}",
            hint=batch_axis_hint(
                port.name, [n for n, length in enumerate(shape) if length == rows]
            ),
        )


def cropped(
    part: Any, crops: Sequence[Crop], item: Item, padded: Mapping[str, Sequence[int]]
) -> Any:
    """Return rows of an output, cut to the lengths that an item had before its inputs were padded.

    Args:
        part: Rows of the output, with its batch axis.
        crops: The axes to cut.
        item: The item, with the tensors of the request.
        padded: The shape to which the samples of each input were padded.

    Raises:
        BackendError: An axis is not as long as the padded input makes it.
    """
    for crop in crops:
        if len(part.shape) <= crop.axis:
            continue
        length, whole = crop.length(item), crop.whole(padded)
        if part.shape[crop.axis] != whole:
            raise BackendError(
                f"an output is {list(part.shape)}, and its axis {crop.axis} does not follow input {crop.input!r},"
                f" which makes it {whole} long: it cannot be cut to the request",
                hint="crop = {} leaves outputs as long as they come.",
            )
        if length < whole:
            part = part[(slice(None),) * crop.axis + (slice(0, length),)]
    return part


def split_outputs(
    outputs: Sequence[NDArray[Any]],
    items: Sequence[Item],
    signature: Signature,
    *,
    rows: int | None = None,
    crops: Mapping[str, Sequence[Crop]] | None = None,
    padded: Mapping[str, Sequence[int]] | None = None,
) -> list[list[NDArray[Any]]]:
    """Give each item its rows of every output, in memory of its own.

    Args:
        outputs: The outputs of a run, in the order of ``signature.outputs``.
        items: The items of the run, in order.
        signature: Inputs and outputs of the model.
        rows: The number of rows that the outputs must have. None: the fixed batch size, or the rows of the items.
        crops: The axes to crop, by output. See `cropped`. None: nothing is cut.
        padded: With ``crops``: the shape to which the samples of each input were padded.

    Returns:
        For each item its array of each output, without batch axis if the item was one sample.

    Raises:
        BackendError: An output does not have the rows of the batch.
    """
    total = rows or signature.rows or sum(item.rows for item in items)
    results: list[list[NDArray[Any]]] = [[] for _ in items]
    for port, output in zip(signature.outputs, outputs, strict=True):
        check_rows(port, output.shape, total)
        axis, own = port.axis, (crops or {}).get(port.name, ())
        start = 0
        for item, result in zip(items, results, strict=True):
            stop = start + (0 if item.empty else item.rows)
            if not port.batched:
                result.append(output)
                continue
            part = output[(slice(None),) * axis + (slice(start, stop),)]
            if own and padded is not None:
                part = cropped(part, own, item, padded)
            if part.shape != output.shape:
                # A slice would keep the memory of all rows alive as long as one of them.
                part = copied(part)
            if item.sample:
                part = part.reshape(part.shape[:axis] + part.shape[axis + 1 :])
            result.append(part)
            start += item.rows
    return results


def named_results(rows: Iterable[Sequence[Any]], ports: Sequence[Port]) -> list[Any]:
    """Return what each request gets: the array of the only output, or a dict of arrays by output name.

    Args:
        rows: For each request its array of each output.
        ports: The outputs.
    """
    if len(ports) == 1:
        return [arrays[0] for arrays in rows]
    names = [port.name for port in ports]
    return [dict(zip(names, arrays, strict=True)) for arrays in rows]
