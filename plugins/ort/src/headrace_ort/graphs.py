"""The CUDA graphs of one instance: a number of rows is captured once, and then replayed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

from headrace.errors import SetupError
from headrace_tensors import numpy_dtype

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from headrace_ort.device_memory import DeviceMemory
    from headrace_tensors import Item, Signature

__all__ = ["GRAPH", "NO_GRAPH", "UNFINISHED", "Graph", "Graphs"]

GRAPH: Final = "gpu_graph_id"
"""The entry of a run's options that names the graph to capture or to replay."""

NO_GRAPH: Final = "-1"
"""The value of `GRAPH` for a run without a graph."""

UNFINISHED: Final = "disable_synchronize_execution_providers"
"""The entry of a run's options with which a run ends before the device has done its work."""


class Graph:
    """A captured batch size: its binding, and the memory that it reads and writes."""

    def __init__(
        self, rows: int, binding: Any, options: Any, inputs: dict[str, Any], outputs: list[Any]
    ) -> None:
        self.rows, self.binding, self.options = rows, binding, options
        self.inputs, self.outputs = inputs, outputs


class Graphs(dict[int, Graph]):
    """The captured graphs by their numbers of rows.

    Args:
        session: The session, on a CUDA or TensorRT provider.
        signature: Inputs and outputs of the session.
        memory: The instance's memory on the device.
        wait: Synchronises the instance's stream.
        run_options: Makes the options of a run.
        unfinished: Whether a run ends before the device has done its work.
    """

    def __init__(
        self,
        session: Any,
        signature: Signature,
        memory: DeviceMemory,
        *,
        wait: Callable[[], None],
        run_options: Callable[[], Any],
        unfinished: bool,
    ) -> None:
        super().__init__()
        self._session, self._signature, self._memory = session, signature, memory
        self._wait, self._make_options, self._unfinished = wait, run_options, unfinished

    def fitting(self, rows: int, tensors: Mapping[str, Any]) -> Graph | None:
        """Return the smallest graph with at least ``rows`` rows that reads these inputs; None if there is none."""
        fitting = [size for size in self if size >= rows]
        graph = self[min(fitting)] if fitting else None
        return graph if graph is not None and graph.inputs.keys() == tensors.keys() else None

    def run(self, graph: Graph, items: Sequence[Item]) -> list[Any]:
        """Copy the rows of items into a graph and replay it. Return its outputs, which the next run writes again."""
        for port in (port for port in self._signature.inputs if port.name in graph.inputs):
            arrays = [item.tensors[port.name] for item in items]
            self._memory.fill(graph.inputs[port.name], arrays, port, graph.rows)
        self._session.run_with_iobinding(graph.binding, graph.options)
        return graph.outputs

    def capture(self, sizes: Iterable[int]) -> None:
        """Capture a graph per number of rows.

        Raises:
            SetupError: A shape is not fixed, or the model cannot be captured.
        """
        for port in (*self._signature.inputs, *self._signature.outputs):
            if not port.optional and (not port.batched or None in port.shape[1:]):
                raise SetupError(
                    f"cuda_graph needs one shape, and {port.name!r} is {port.text()}",
                    hint="Export the model with fixed axes but for the batch.",
                )
        for number, rows in enumerate(sorted(sizes, reverse=True), 1):
            self[rows] = self._captured(rows, number)

    def _captured(self, rows: int, number: int) -> Graph:
        graph = Graph(rows, self._session.io_binding(), self._make_options(), {}, [])
        graph.options.add_run_config_entry(GRAPH, str(number))
        if self._unfinished:
            graph.options.add_run_config_entry(UNFINISHED, "1")
        for port in (port for port in self._signature.inputs if not port.optional):
            shape = (rows, *(n or 1 for n in port.shape[1:]))
            value = self._memory.empty(shape, numpy_dtype(port.dtype))
            self._memory.fill(value, [np.zeros(shape, numpy_dtype(port.dtype))], port, rows)
            self._wait()
            graph.inputs[port.name] = value
            graph.binding.bind_ortvalue_input(port.name, value)
        for port in self._signature.outputs:
            value = self._memory.empty(
                (rows, *(n or 1 for n in port.shape[1:])), numpy_dtype(port.dtype)
            )
            graph.outputs.append(value)
            graph.binding.bind_ortvalue_output(port.name, value)
        try:
            for _ in range(2):  # the first run of a size captures, later ones replay
                self._session.run_with_iobinding(graph.binding, graph.options)
            self._wait()
        except Exception as error:
            raise SetupError(
                f"the model cannot be captured in a CUDA graph (batch of {rows}): "
                f"{' '.join(str(error).split())[:300]}",
                hint="cuda_graph = false runs it as it is.",
            ) from error
        return graph

    def close(self) -> None:
        """Release the graphs, and the session."""
        self.clear()
        self._session = None
