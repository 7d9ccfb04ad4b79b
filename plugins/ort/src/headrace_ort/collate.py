"""Makes the arrays of one run from items, and one result per item from the run's outputs."""

from __future__ import annotations

import math
import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from headrace.errors import BackendError, InputError, SetupError
from headrace_ort.items import counted_rows, numpy_dtype

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from numpy.typing import NDArray

    from headrace.keys import Request
    from headrace_ort.items import Item
    from headrace_ort.signature import Port, Signature

__all__ = [
    "check_padding",
    "concatenate",
    "group_items",
    "joined",
    "pad_items",
    "refuse_ragged",
    "rows_apart",
    "runner_of_samples",
    "split_outputs",
    "zeros_for",
]

_HELD_BYTES = 1 << 16


def group_items(
    items: Sequence[Item], ports: Sequence[Port], *, by_shape: bool = False
) -> list[list[int]]:
    """Group items that can share a run because their values for inputs without batch axis are equal.

    Args:
        items: The items.
        ports: The inputs of the model.
        by_shape: Whether the samples of a group must also have one shape.

    Returns:
        Positions in ``items``: groups in the order of their first item, ascending inside.
    """
    if len(items) == 1:
        return [[0]]
    whole = [port.name for port in ports if not port.batched]
    batched = [port.name for port in ports if port.batched] if by_shape else []
    groups: dict[tuple[object, ...], list[int]] = {}
    for position, item in enumerate(items):
        key: tuple[object, ...] = tuple(_value_of(item.arrays[name]) for name in whole)
        key += tuple(item.arrays[name].shape[1:] for name in batched)
        groups.setdefault(key, []).append(position)
    return list(groups.values())


def _value_of(array: NDArray[Any]) -> tuple[object, ...]:
    content = tuple(array.ravel()) if array.dtype == object else array.tobytes()
    return array.shape, content


def refuse_ragged(first: Item, item: Item, keys: Mapping[str, str]) -> InputError | None:
    """Give the error of an item whose samples have another shape than those of the first item; else None."""
    for name, key in keys.items():
        expected, got = first.arrays[name].shape[1:], item.arrays[name].shape[1:]
        if expected != got:
            return InputError(
                "the samples of this batch differ in shape",
                key=key,
                expected=f"{list(expected)}, as its first",
                got=f"{list(got)}",
                hint="ragged = 'pad' pads them to one shape, ragged = 'group' runs them separately.",
            )
    return None


def concatenate(
    arrays: Sequence[NDArray[Any]],
    port: Port,
    *,
    rows: int | None = None,
    pad_value: float | None = None,
    pad_multiple: int = 1,
) -> NDArray[Any]:
    """Join the rows of several arrays.

    Args:
        arrays: Arrays of the port's rank and dtype, each with its batch axis in front.
        port: The model's input.
        rows: The number of rows of the result; the last row is repeated as often as needed. None: no row is added.
        pad_value: The value with which each dynamic axis is padded at its end, up to the longest; None:
            the arrays have one shape.
        pad_multiple: With ``pad_value``: axes are padded further, to a multiple of this length.

    Returns:
        A new array, or the only one of ``arrays`` if nothing is added to it; its batch axis is the one that the
        model has.
    """
    missing = 0 if rows is None else rows - sum(len(array) for array in arrays)
    if pad_value is not None:
        arrays = _padded(arrays, port, pad_value, pad_multiple)
    if missing > 0:
        arrays = [*arrays, np.repeat(arrays[-1][-1:], missing, axis=0)]
    whole = arrays[0] if len(arrays) == 1 else joined(arrays)
    return np.moveaxis(whole, 0, port.axis) if port.axis else whole


def joined(arrays: Sequence[NDArray[Any]], out: NDArray[Any] | None = None) -> NDArray[Any]:
    """Join the rows of arrays whose rows have one dtype and shape.

    numpy releases the interpreter lock around each copy of more than 500 elements. If many threads want the
    lock, getting it back takes longer than such a copy. So rows of up to `_HELD_BYTES` are copied as one
    element of raw bytes each, with the lock held. Larger rows are copied by one call of OpenCV, which releases
    the lock once for all of them, if OpenCV is loaded already; else by numpy.

    Args:
        arrays: The arrays, at least one.
        out: The array to fill; None: a new one.
    """
    first = arrays[0]
    if out is None:
        native = first.dtype.newbyteorder("=")
        out = np.empty((sum(map(len, arrays)), *first.shape[1:]), native)
    row_bytes = first.itemsize * math.prod(first.shape[1:])
    raw = first.dtype == out.dtype and not first.dtype.hasobject and row_bytes > 0
    raw = raw and all(one.flags.c_contiguous for one in arrays)
    vconcat = getattr(sys.modules.get("cv2"), "vconcat", None)
    if raw and row_bytes <= _HELD_BYTES:
        row = np.dtype((np.void, row_bytes))
        rows = [one.reshape(len(one), -1).view(row) for one in arrays]
        np.concatenate(rows, out=out.reshape(len(out), -1).view(row))
    elif raw and vconcat is not None and row_bytes < 1 << 31:
        rows = [one.reshape(len(one), -1).view(np.uint8) for one in arrays]
        vconcat(rows, out.reshape(len(out), -1).view(np.uint8))
    else:
        np.concatenate(arrays, out=out)
    return out


def rows_apart(output: NDArray[Any]) -> list[NDArray[Any]]:
    """Copy each row of an array into its own memory, because a slice would keep the whole array alive.

    Rows of up to `_HELD_BYTES` are copied with the interpreter lock held; see `joined`.
    """
    dtype, shape = output.dtype, output.shape[1:]
    row_bytes = dtype.itemsize * math.prod(shape)
    if 0 < row_bytes <= _HELD_BYTES and not dtype.hasobject and output.flags.c_contiguous:
        output = output.reshape(-1).view(np.dtype((np.void, row_bytes)))
    rows = [output[i : i + 1].copy() for i in range(len(output))]
    return [row.view(dtype).reshape(shape) for row in rows]


def runner_of_samples(
    signature: Signature, keys: Mapping[str, str], run: Callable[..., Any], run_options: Any
) -> Callable[[list[Request]], bool] | None:
    """Give a fast function for batches of plain samples; None if the model is not suited to it.

    The model must have one input and one output, with the batch axis first in both, and fix the shape of samples.

    Args:
        signature: Inputs and outputs of the model.
        keys: The key of the request for each input name.
        run: Runs the session; called with the names of the outputs, the inputs by name and ``run_options``.
        run_options: The options of a run.

    Returns:
        A function that runs a batch and returns whether it has done so. False: a request is no plain sample, or the
        output does not have the rows of the batch; the caller then runs the batch the general way.
    """
    one_each = len(signature.inputs) == len(signature.outputs) == 1
    if not one_each or signature.rows is not None or signature.passed:
        return None
    (port,), (wanted,) = signature.inputs, signature.outputs
    shape, dtype = port.exact, numpy_dtype(port)
    # The elements of an array of objects would have to be checked one by one.
    if shape is None or port.axis or wanted.axis or not wanted.batched or dtype.kind == "O":
        return None
    key, name, names, kind = keys[port.name], port.name, [wanted.name], np.ndarray

    def run_samples(batch: list[Request]) -> bool:
        samples = []
        for request in batch:
            sample = request.get(key)
            if type(sample) is not kind or sample.shape != shape or sample.dtype != dtype:
                return False
            if "request_size" in request:
                return False
            samples.append(sample[None])
        whole = samples[0] if len(samples) == 1 else joined(samples)
        (output,) = run(names, {name: whole}, run_options)
        if output.shape[:1] != whole.shape[:1]:
            return False
        if len(samples) == 1:
            batch[0]["result"] = output.reshape(output.shape[1:])
            return True
        for request, result in zip(batch, rows_apart(output), strict=True):
            request["result"] = result
        return True

    return run_samples


def _padded(
    arrays: Sequence[NDArray[Any]], port: Port, value: float, multiple: int
) -> Sequence[NDArray[Any]]:
    shape = tuple(
        fixed if fixed is not None else -(-max(lengths) // multiple) * multiple
        for fixed, *lengths in zip(
            port.sample_shape, *(array.shape[1:] for array in arrays), strict=True
        )
    )
    if all(array.shape[1:] == shape for array in arrays):
        return arrays
    whole = np.full((sum(map(len, arrays)), *shape), value, numpy_dtype(port))
    start = 0
    for array in arrays:
        stop = start + len(array)
        corner = (slice(start, stop), *map(slice, array.shape[1:]))
        whole[corner] = array
        start = stop
    return [whole]


def pad_items(
    items: Sequence[Item], ports: Sequence[Port], value: float, multiple: int
) -> list[Item]:
    """Give the items with their arrays padded to one shape; only arrays on the CPU can be padded.

    Raises:
        BackendError: An array on a device would have to be padded.
    """
    padded: list[dict[str, Any]] = [dict(item.arrays) for item in items]
    for port in ports:
        arrays = [item.arrays[port.name] for item in items]
        if not port.batched or (len({one.shape[1:] for one in arrays}) == 1 and multiple == 1):
            continue
        if not all(isinstance(one, np.ndarray) for one in arrays):
            raise BackendError(
                f"input {port.name!r}: arrays on the device cannot be padded",
                hint="ragged = 'group' runs those of one shape together.",
            )
        whole = concatenate(arrays, port, pad_value=value, pad_multiple=multiple)
        start = 0
        for item, own in zip(items, padded, strict=True):
            own[port.name] = whole[start : start + item.rows]
            start += item.rows
    return [replace(item, arrays=own) for item, own in zip(items, padded, strict=True)]


def check_padding(ports: Sequence[Port], value: float) -> None:
    """Refuse a padding value that the type of an input with dynamic axes cannot hold.

    Raises:
        SetupError: The input holds strings, or a dtype that ``value`` does not fit.
    """
    for port in ports:
        if not port.batched or None not in port.sample_shape:
            continue
        dtype = numpy_dtype(port)
        if dtype.kind == "f":
            fits = not np.isfinite(value) or abs(value) <= float(np.finfo(dtype).max)
        elif dtype.kind == "b":
            fits = value in (0, 1)
        else:
            fits = dtype.kind in "iu" and float(value).is_integer()
            fits = fits and np.iinfo(dtype).min <= value <= np.iinfo(dtype).max
        if not fits:
            raise SetupError(
                f"input {port.name!r} is {port.text()}: it cannot be padded with {value}"
            )


def zeros_for(signature: Signature) -> dict[str, NDArray[Any]] | None:
    """Give inputs of zeros for a run of the smallest batch.

    Returns:
        The inputs by name; None if an input has a dynamic axis besides the batch, no batch axis (its value may
        matter), or strings.
    """
    feeds = {}
    for port in signature.inputs:
        if not port.batched or None in port.sample_shape or numpy_dtype(port).kind == "O":
            return None
        shape = [n for n in port.sample_shape if n is not None]
        shape.insert(port.axis, signature.rows or 1)
        feeds[port.name] = np.zeros(shape, numpy_dtype(port))
    return feeds


def split_outputs(
    outputs: Sequence[NDArray[Any]],
    items: Sequence[Item],
    signature: Signature,
    *,
    rows: int | None = None,
) -> list[list[NDArray[Any]]]:
    """Give each item its rows of every output, in memory of its own.

    Args:
        outputs: The outputs of a run, in the order of ``signature.outputs``.
        items: The items of the run, in order.
        signature: Inputs and outputs of the model.
        rows: The number of rows that the outputs must have; None: the fixed batch size, or the rows of the items.

    Returns:
        For each item its array of each output; without batch axis if the item was one sample.

    Raises:
        BackendError: An output does not have the rows of the batch.
    """
    total = rows or signature.rows or sum(item.rows for item in items)
    results: list[list[NDArray[Any]]] = [[] for _ in items]
    for port, output in zip(signature.outputs, outputs, strict=True):
        axis = port.axis
        if port.batched and (output.ndim <= axis or output.shape[axis] != total):
            raise BackendError(
                f"output {port.name!r} is {list(output.shape)} for a batch of {counted_rows(total)}",
                hint="If it has no batch axis, name it in `unbatched`; if it has it elsewhere, in "
                "`batch_axis`.",
            )
        start = 0
        for item, result in zip(items, results, strict=True):
            stop = start + item.rows
            part = _rows_of(output, axis, start, stop, item.sample) if port.batched else output
            result.append(part)
            start = stop
    return results


def _rows_of(output: NDArray[Any], axis: int, start: int, stop: int, sample: bool) -> NDArray[Any]:
    rows: NDArray[Any] = output[(slice(None),) * axis + (slice(start, stop),)]
    if rows.shape[axis] < output.shape[axis]:
        # A slice would keep the memory of all rows alive as long as one of them.
        rows = rows.copy()
    return rows.reshape(rows.shape[:axis] + rows.shape[axis + 1 :]) if sample else rows
