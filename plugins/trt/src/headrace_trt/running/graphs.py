"""CUDA graphs of an instance: one per shape, each with a context of its own, a bounded number."""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Any

from headrace.errors import BackendError
from headrace_trt.libraries.cuda import CudaError
from headrace_trt.running.memory import Stream

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

    from headrace_trt.libraries.cuda import Cuda
    from headrace_trt.running.execution import Execution

__all__ = ["GraphCache", "Recorded"]


class Recorded:
    """A graph and the context that it was recorded with, which must live as long.

    Attributes:
        execution: The context, whose shapes and addresses never change again.
        graph: The graph. None until it is recorded.
    """

    def __init__(self, execution: Execution) -> None:
        self.execution = execution
        self.graph: Any = None

    def close(self, cuda: Cuda) -> None:
        """Release graph and context."""
        graph, self.graph = self.graph, None
        if graph is not None:
            cuda.graph_destroy(graph)
        self.execution.close()


class GraphCache:
    """The graphs of one instance, by shape. If there are too many, the one unused for longest is released.

    A graph is recorded on a stream of its own and launched on the instance's. Every holder of a result knows the
    instance's stream. If another thread queued a copy or an event there during a recording, that would be recorded,
    or would end the recording.

    Args:
        cuda: The CUDA runtime.
        stream: The handle of the instance's stream.
        most: The most graphs that are kept.
        make: Makes a context for a new graph.
    """

    def __init__(self, cuda: Cuda, stream: int, most: int, make: Callable[[], Execution]) -> None:
        self._cuda = cuda
        self._stream = stream
        self._most = most
        self._make = make
        self._kept: OrderedDict[Hashable, Recorded] = OrderedDict()
        self._recording: Stream | None = None

    def __len__(self) -> int:
        return len(self._kept)

    def get(self, key: Hashable) -> Recorded:
        """Return the entry of ``key``; a new one, not recorded yet, if there is none."""
        recorded = self._kept.get(key)
        if recorded is None:
            while len(self._kept) >= self._most:
                # Queued work may still use the oldest graph.
                self._cuda.stream_synchronize(self._stream)
                _, oldest = self._kept.popitem(last=False)
                oldest.close(self._cuda)
            recorded = self._kept[key] = Recorded(self._make())
        self._kept.move_to_end(key)
        return recorded

    def run(self, recorded: Recorded) -> None:
        """Queue the graph. If it is not recorded yet, run the engine plainly once and record it.

        Raises:
            BackendError: The engine cannot be recorded.
        """
        if recorded.graph is None:
            # In the first run of a shape TensorRT sets up things that must not be part of the recording.
            self._cuda.stream_synchronize(self._stream)  # the inputs are in the buffers
            if self._recording is None:
                self._recording = Stream(self._cuda)
            stream = self._recording.handle
            recorded.execution.enqueue(stream)
            self._cuda.stream_synchronize(stream)
            recorded.graph = self._record(recorded.execution, stream)
        self._cuda.graph_launch(recorded.graph, self._stream)

    def _record(self, execution: Execution, stream: int) -> Any:
        try:
            self._cuda.begin_capture(stream)
            try:
                execution.enqueue(stream)
            except BaseException:
                self._abandon(stream)
                raise
            return self._cuda.end_capture(stream)
        except (CudaError, BackendError) as error:
            raise BackendError(
                f"the engine cannot be recorded as a CUDA graph: {error}",
                hint="Set cuda_graph = false: it has steps that wait for the device.",
            ) from error

    def _abandon(self, stream: int) -> None:
        try:
            self._cuda.graph_destroy(self._cuda.end_capture(stream))
        except CudaError:
            return  # ending an invalid recording raises, and discards it

    def clear(self) -> None:
        """Release all graphs, since an address that they hold has changed."""
        graphs, self._kept = self._kept, OrderedDict()
        if graphs:
            self._cuda.stream_synchronize(self._stream)
        for recorded in graphs.values():
            recorded.close(self._cuda)

    def close(self) -> None:
        """Release all graphs, and the stream on which they were recorded."""
        self.clear()
        recording, self._recording = self._recording, None
        if recording is not None:
            recording.close()
