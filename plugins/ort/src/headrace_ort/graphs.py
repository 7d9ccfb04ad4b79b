"""The captured CUDA graphs of one instance, and the thread that replays them."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor, wait
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

__all__ = ["Graph", "Graphs"]


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
        run: Runs the session on a binding with options.
    """

    def __init__(self, run: Callable[..., Any]) -> None:
        super().__init__()
        self._run = run
        self._thread: ThreadPoolExecutor | None = None

    def fitting(self, rows: int, tensors: Mapping[str, Any]) -> Graph | None:
        """Return the smallest graph with at least ``rows`` rows that reads these inputs; None if there is none."""
        fitting = [size for size in self if size >= rows]
        graph = self[min(fitting)] if fitting else None
        return graph if graph is not None and graph.inputs.keys() == tensors.keys() else None

    def replay(self, graph: Graph) -> None:
        """Run a captured size, in the one thread that captures and replays all graphs.

        ONNX Runtime keeps captured graphs per thread, and any thread may run a batch. So without this thread each
        thread would capture again. The caller waits for the run, even if Ctrl-C interrupts the wait: the memory of
        the graph is in use until the run has ended.
        """
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, thread_name_prefix="headrace-ort-graphs")
        job = self._thread.submit(self._run, graph.binding, graph.options)
        try:
            job.result()
        except BaseException:
            wait([job])
            raise

    def close(self) -> None:
        """End the thread, and drop the graphs and the session."""
        if self._thread is not None:
            self._thread.shutdown()
        self.clear()
        del self._run
