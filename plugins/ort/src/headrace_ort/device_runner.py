"""Runs a session on a CUDA device, on the instance's stream, and gives requests their rows of the results."""

from __future__ import annotations

import contextlib
import math
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from headrace.errors import BackendError
from headrace_ort import cuda
from headrace_ort.binding import Binding
from headrace_ort.device_memory import Cut, DeviceMemory, pad_items
from headrace_ort.graphs import GRAPH, NO_GRAPH, UNFINISHED, Graphs
from headrace_ort.row_sizes import RowSizes
from headrace_tensors import (
    Item,
    batch_axis_hint,
    counted_rows,
    named_results,
    numpy_dtype,
    padded_shapes,
    split_outputs,
)
from headrace_tensors.device_arrays import DeviceArray, StreamRef

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    import numpy as np

    from headrace_tensors import Padding, Port, Signature

__all__ = ["DeviceRunner"]


class DeviceRunner:
    """Runs one session for one instance on one device: the `EngineAdapter` of CUDA and TensorRT providers.

    Args:
        session: The session, on a CUDA or TensorRT provider.
        signature: Inputs and outputs of the session.
        ordinal: The number of the device.
        stream: The handle of the instance's stream. The session computes on it unless it is shared.
        to_cpu: Whether results are numpy arrays. False: `DeviceArray`.
        run_options: Makes the options of a run.
        shared: Whether several instances use the session, which then computes on a stream of its own.
        sizes: The numbers of rows that runs may have. A batch is filled up to the next one. Empty: any.
        measured: Whether the warm-up measures a change of the number. It then becomes seldom, or all numbers are allowed.
        kind: ONNX Runtime's name of the kind of device.
        current: Makes the device current in this thread for a block, since ONNX Runtime changes it.

    Attributes:
        row_sizes: The numbers of rows that runs may have.
    """

    settle = None

    def __init__(  # noqa: PLR0913 - all by name
        self,
        session: Any,
        signature: Signature,
        ordinal: int,
        stream: int,
        *,
        to_cpu: bool,
        run_options: Any,
        shared: bool = False,
        sizes: Sequence[int] = (),
        measured: bool = False,
        kind: str = "cuda",
        current: contextlib.AbstractContextManager[None],
    ) -> None:
        self.cut_axes = None if to_cpu else frozenset({1})
        self._current = current
        # Inputs with which the warm-up has run, and their number of rows.
        self._seen: tuple[Mapping[str, Any], int] = {}, 0
        self._session, self._signature = session, signature
        self._ordinal, self._stream = ordinal, stream
        self._to_cpu, self._shared = to_cpu, shared
        self.row_sizes = RowSizes(() if signature.one_at_a_time else sizes, measured=measured)
        self._options = run_options()
        # Without this entry ONNX Runtime raises and catches an exception at every run to find that it is missing.
        # The value -1 means no graph.
        self._options.add_run_config_entry(GRAPH, NO_GRAPH)
        if not to_cpu and not shared:
            self._options.add_run_config_entry(UNFINISHED, "1")
        self._kept: list[Any] = []
        self._memory = DeviceMemory(signature, ordinal, stream, self._kept, kind)
        self._done = done = cuda.make_event(ordinal)
        self._pending = False  # whether the end of the batch has to wait for work
        self._binding = Binding(
            session,
            signature,
            self._memory,
            self._kept,
            kind=kind,
            ordinal=ordinal,
            to_cpu=to_cpu,
        )
        self._made_on = StreamRef(stream)
        self._graphs = Graphs(
            session,
            signature,
            self._memory,
            wait=lambda: cuda.wait_for(stream, done),
            run_options=run_options,
            unfinished=not to_cpu,
        )
        self._cut = Cut({}, {}, ())

    # One batch.

    def run(self, items: Sequence[Item], padding: Padding) -> list[Any]:
        """Run items in one batch. Give the result of each.

        Raises:
            BackendError: ONNX Runtime or CUDA refused the run, or an output does not have the rows of the batch.
            InstanceLostError: The device can run nothing more in this process.
        """
        values, multiple, crops = padding
        shapes = padded_shapes(items, self._signature, multiple) if crops else {}
        self._cut = Cut(crops, shapes, items)
        if values is not None:
            items = pad_items(items, self._signature.inputs, values, multiple)
        try:
            with self._current:
                return self._run(items)
        except Exception as error:
            lost = cuda.lost_device(error)
            if lost is None:
                raise
            raise lost from error

    def _run(self, items: Sequence[Item]) -> list[Any]:
        rows = sum(item.rows for item in items)
        graph = self._graphs.fitting(rows, items[0].tensors)
        if graph is not None:
            outputs = self._graphs.run(graph, items)
            self._pending = True
        else:
            rows = self._signature.rows or self.row_sizes.filled(rows)
            outputs = self._run_bound(items, rows)
        results = self._results(outputs, items, rows, copied=graph is not None)
        return named_results(results, self._signature.outputs)

    def _run_bound(self, items: Sequence[Item], rows: int) -> list[Any]:
        binding = self._binding.bind(items, rows)
        if self._shared:
            cuda.wait_for(self._stream, self._done)
        try:
            self._session.run_with_iobinding(binding, self._options)
            outputs: list[Any]
            if self._to_cpu:
                outputs = binding.copy_outputs_to_cpu()
                self._passed()  # without `UNFINISHED`, ONNX Runtime has synchronised the stream
            else:
                self._pending = True
                outputs = self._binding.outputs()
            return outputs
        finally:
            self._binding.renew_outputs()

    # Results.

    def _results(
        self, outputs: Sequence[Any], items: Sequence[Item], rows: int, *, copied: bool
    ) -> list[list[Any]]:
        if self._to_cpu:
            if copied:  # a graph returns as many rows as it was captured with: only `rows` of them are wanted
                outputs = self._copied_back(outputs, rows)
            crops, padded, whole = self._cut
            return split_outputs(
                outputs, whole, self._signature, rows=rows, crops=crops, padded=padded
            )
        ports = self._signature.outputs
        columns = [
            self._split(port, output, items, copied=copied)
            for port, output in zip(ports, outputs, strict=True)
        ]
        return [list(row) for row in zip(*columns, strict=True)]

    def _copied_back(self, outputs: Sequence[Any], rows: int) -> list[np.ndarray[Any, Any]]:
        """Copy the first ``rows`` rows of outputs on the device to numpy arrays, with one wait for all copies."""
        staged = []
        for port, output in zip(self._signature.outputs, outputs, strict=True):
            buffer = self._memory.pinned[port.name]
            host = buffer.view((rows, *output.shape()[1:]), numpy_dtype(port.dtype))
            cuda.copy_to_host(host, output.data_ptr(), self._stream)
            buffer.sent(self._stream)
            staged.append(host)
        self._wait()
        return [host.copy() for host in staged]

    def _split(
        self, port: Port, output: Any, items: Sequence[Item], *, copied: bool
    ) -> list[DeviceArray]:
        """Give each item its rows of an output; ``copied``: its memory is used again by the next run."""
        shape = tuple(output.shape())
        total = sum(item.rows for item in items)
        if not port.batched:
            return [self._array(port, output, shape)] * len(items)
        if not shape or shape[0] < total:
            raise BackendError(
                f"output {port.name!r} is {list(shape)} for a batch of {counted_rows(total)}",
                hint=batch_axis_hint(
                    port.name, [n for n, size in enumerate(shape) if size == total]
                ),
            )
        cuts = self._cut.lengths(port.name, shape)
        if cuts:
            return self._split_cut(port, output, items, cuts)
        if copied:
            output = self._copy_of(output, (total, *shape[1:]), port)
        whole = self._array(port, output, (total, *shape[1:]))
        if len(items) == total and all(item.sample for item in items):
            return whole.rows()
        stops = accumulate(item.rows for item in items)
        return [
            whole[stop - 1] if item.sample else whole[stop - item.rows : stop]
            for item, stop in zip(items, stops, strict=True)
        ]

    def _copy_of(self, output: Any, shape: tuple[int, ...], port: Port) -> Any:
        """Copy the first rows of an output into new memory."""
        dtype = numpy_dtype(port.dtype)
        value, nbytes = self._memory.empty(shape, dtype), math.prod(shape) * dtype.itemsize
        cuda.copy_within_device(value.data_ptr(), output.data_ptr(), nbytes, self._stream)
        return value

    def _split_cut(
        self, port: Port, output: Any, items: Sequence[Item], cuts: Sequence[int]
    ) -> list[DeviceArray]:
        """Copy the rows of each item into its own memory, cut to its lengths."""
        shape, dtype = tuple(output.shape()), numpy_dtype(port.dtype)
        source, row = output.data_ptr(), math.prod(shape[1:]) * dtype.itemsize
        results = []
        for item, length in zip(items, cuts, strict=True):
            sample = (length, *shape[2:])
            own = sample if item.sample else (item.rows, *sample)
            value, size = self._memory.empty(own, dtype), math.prod(sample) * dtype.itemsize
            for number in range(item.rows):
                target = value.data_ptr() + number * size
                cuda.copy_within_device(target, source, size, self._stream)
                source += row
            results.append(self._array(port, value, own))
        self._kept.append(output)
        return results

    def _array(self, port: Port, value: Any, shape: tuple[int, ...]) -> DeviceArray:
        self._kept.append(value)  # the next backend may drop it before the stream has read it
        return DeviceArray(
            cuda,
            value.data_ptr(),
            shape,
            port.dtype,
            ordinal=self._ordinal,
            stream=self._made_on,
            owner=value,
        )

    def end(self) -> None:
        """End the batch: wait for its work, mark results on the device as finished, and drop what was kept for it."""
        self._cut = Cut({}, {}, ())
        if not self._pending and not self._kept:
            return
        try:
            self._wait()
        finally:
            self._made_on.close()  # readers of its results have nothing to wait for
            self._made_on = StreamRef(self._stream)
            self._kept.clear()

    def _wait(self) -> None:
        """Synchronise the stream."""
        self._pending = False
        cuda.wait_for(self._stream, self._done)
        self._passed()

    def _passed(self) -> None:
        """Free the objects that the stream has read, and the pinned memory, once it is synchronised."""
        self._memory.passed()
        self._kept.clear()

    # The warm-up.

    def outputs_of(self, feeds: Mapping[str, Any], rows: int) -> list[Any]:
        """Run inputs by name, of a number of rows, and return each output, or its shape where it is on the device."""
        outputs = self._outputs_of(feeds, rows, rows)
        if self._seen[1] not in range(1, rows):
            self._seen = feeds, rows  # the fewest rows that it takes, which fit into all sizes
        return outputs

    def _outputs_of(self, feeds: Mapping[str, Any], rows: int, filled: int) -> list[Any]:
        """Run inputs; copies of the last row fill the run up."""
        item = Item(feeds, rows, sample=False)
        self._cut = Cut({}, {}, (item,))
        try:
            with self._current:
                outputs = self._run_bound([item], max(rows, filled))
            return [output if self._to_cpu else tuple(output.shape()) for output in outputs]
        finally:
            self.end()

    def warm_up(self, sizes: Iterable[int]) -> list[int]:
        """Capture graphs of the given sizes; none: no graphs. Return the numbers of rows that were captured."""
        with self._current:
            self._memory.warm_up()
            if sizes:
                fixed = self._signature.rows
                self._graphs.capture([fixed] if fixed is not None else sizes)
            self.end()
        if self.row_sizes.measured:
            self.row_sizes.measure(self._repeat if self._seen[1] else None)
        # Convolutions are planned for the last of them, the largest. Samples of free axes have not run.
        elif self._seen[1]:
            for rows in self._signature.sizes:
                self._repeat(rows)
        return self.sizes

    def _repeat(self, rows: int) -> None:
        """Run the inputs of the warm-up again, filled up to a number of rows."""
        self._outputs_of(*self._seen, rows)

    @property
    def sizes(self) -> list[int]:
        """The numbers of rows that were captured, ascending."""
        return sorted(self._graphs)

    def close(self) -> None:
        """Release buffers and graphs."""
        self._graphs.close()
        self._binding.close()
        self._kept.clear()
        self._memory.close()
        cuda.close_event(self._done)
        # The context still refers to the runner (`batch.at_end`), which must not keep the session alive.
        self._session = self._done = None
