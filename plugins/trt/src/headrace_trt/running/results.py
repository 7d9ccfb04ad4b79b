"""Writes the rows of a run's outputs into the requests to which they belong."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from headrace_tensors import DeviceArray, check_rows, cropped, named_results, rows_apart
from headrace_tensors.joining import copied

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from headrace.keys import Request
    from headrace_tensors import Crop, Item
    from headrace_trt.engines.signature import Port
    from headrace_trt.running.grouping import Run

__all__ = ["check_run", "hand_out_samples", "results_of", "rows_of", "whole"]


def results_of(
    run: Run,
    ports: Sequence[Port],
    outputs: Sequence[Any],
    crops: Mapping[str, Sequence[Crop]],
) -> Iterator[Any]:
    """Give the result of each item of one run, once the stream is synchronised.

    Args:
        run: The run.
        ports: The wanted outputs of the engine.
        outputs: The array of each of these outputs.
        crops: The axes to crop, by output. See `headrace_tensors.cropped`.

    Raises:
        BackendError: An output does not have the rows of the batch.
    """
    check_run(run, ports, outputs)
    padded = {name: shape[1:] for name, shape in run.shapes.items()} if crops else {}

    def rows() -> Iterator[list[Any]]:
        start = 0
        for item in run.items:
            stop = start + item.rows
            parts = []
            for port, output in zip(ports, outputs, strict=True):
                if not port.batched:
                    parts.append(whole(output))
                elif cuts := crops.get(port.name):
                    parts.append(_cut(output[start:stop], cuts, item, padded))
                else:
                    parts.append(rows_of(output, start, stop, sample=item.sample))
            yield parts
            start = stop

    yield from named_results(rows(), ports)


def _cut(rows: Any, crops: Sequence[Crop], item: Item, padded: Mapping[str, Sequence[int]]) -> Any:
    part = cropped(rows, crops, item, padded).copy()
    return part.reshape(part.shape[1:]) if item.sample else part


def hand_out_samples(
    run: Run, ports: Sequence[Port], outputs: Sequence[Any], requests: Sequence[Request]
) -> None:
    """Write a row of each output into each request, for a batch in which every request brought one sample.

    Raises:
        BackendError: An output does not have the rows of the batch.
    """
    check_run(run, ports, outputs)
    columns = [_samples(output, run.rows) for output in outputs]
    for request, result in zip(
        requests, named_results(zip(*columns, strict=True), ports), strict=True
    ):
        request["result"] = result


def _samples(value: Any, count: int) -> list[Any]:
    if type(value) is DeviceArray:
        return value.rows()[:count]
    if isinstance(value, np.ndarray) and value.ndim > 1:
        return rows_apart(value[:count])
    return [rows_of(value, row, row + 1, sample=True) for row in range(count)]


def check_run(run: Run, ports: Sequence[Port], outputs: Sequence[Any]) -> None:
    """Refuse outputs that do not have the rows of the batch: cut into rows they would mix the requests.

    Raises:
        BackendError: An output has no rows, too few or too many.
    """
    expected = (run.filled,)
    for port, output in zip(ports, outputs, strict=True):
        shape = output.shape
        if shape[:1] != expected:
            check_rows(port, shape, run.filled)


def rows_of(value: Any, start: int, stop: int, *, sample: bool) -> Any:
    """Return rows of an array of any library; those of a numpy array are copied."""
    if type(value) is DeviceArray and not sample and start == 0 and stop == value.shape[0]:
        return value
    if not isinstance(value, np.ndarray):
        return value[start] if sample else value[start:stop]
    if sample and value.ndim > 1:
        return copied(value[start])
    part = copied(value[start:stop])
    return part.reshape(part.shape[1:]) if sample else part


def whole(value: Any) -> Any:
    """Return an output without batch axis; a numpy array is copied, so that each request has its own."""
    return value.copy() if isinstance(value, np.ndarray) else value
