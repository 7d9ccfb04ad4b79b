"""CUDA graphs: one capture per batch size; a run copies the rows into it and the outputs out of it."""

from __future__ import annotations

import contextlib
import linecache
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from headrace.errors import SetupError
from headrace_torch.devices.memory import allocator_quiet, unless_lost, without_frames

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import TypeAlias

    Call: TypeAlias = Callable[[Sequence[torch.Tensor]], dict[str, torch.Tensor]]

__all__ = ["Graphs", "call_in", "sizes_to_capture"]

_WARM_UP_RUNS = 3
"""The number of runs before a capture, in which libraries choose kernels and allocate their workspaces."""


def sizes_to_capture(batch_sizes: Sequence[int] | None, most: int | None) -> tuple[int, ...]:
    """Return the batch sizes to capture: the node's ``batch_sizes``, else 1, 2, 4, ... and ``most``."""
    if batch_sizes:
        return tuple(sorted(set(batch_sizes)))
    sizes, size = set(), 1
    while size < (most or 1):
        sizes.add(size)
        size *= 2
    return tuple(sorted({*sizes, most or 1}))


class Graphs:
    """The graphs of one instance: static inputs, and a capture per batch size.

    Args:
        device: A CUDA device. Captures and replays go to the current stream of the thread.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._inputs: tuple[torch.Tensor, ...] = ()
        self._graphs: dict[int, tuple[Any, Sequence[torch.Tensor], dict[str, torch.Tensor]]] = {}
        self._pool: Any = None

    @property
    def sizes(self) -> tuple[int, ...]:
        """The batch sizes that were captured, ascending."""
        return tuple(sorted(self._graphs))

    def capture(
        self, call: Call, example: Callable[[int], tuple[torch.Tensor, ...]], sizes: Sequence[int]
    ) -> None:
        """Capture a graph per size, the largest first, all of them in one pool of memory.

        The capture mode is "thread local": only calls of this thread can invalidate the capture, and other
        instances go on meanwhile.

        Args:
            call: Calls the model with its inputs, and gives its outputs by name.
            example: Gives new inputs with a number of rows.
            sizes: The numbers of rows.

        Raises:
            SetupError: The model cannot be captured. The error names the call in the model.
        """
        self._inputs = example(max(sizes))
        self._pool = torch.cuda.graph_pool_handle()
        for size in sorted(sizes, reverse=True):
            failure = self._add(call, size)
            if failure is not None:
                self.close()
                # Raised here and not in `_add`: the traceback would keep that frame, with its tensors and graph.
                raise failure

    def _add(self, call: Call, size: int) -> SetupError | None:
        """Capture one graph; return the error if that fails, else None."""
        inputs = tuple(tensor[:size] for tensor in self._inputs)
        for _ in range(_WARM_UP_RUNS):
            call(inputs)
        with allocator_quiet():
            graph = torch.cuda.CUDAGraph()
            graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")
            try:
                outputs = call(inputs)
                graph.capture_end()
            except BaseException as error:
                self._give_up(graph)
                if not isinstance(error, Exception):
                    raise
                failure = SetupError(
                    f"the model cannot be captured in a CUDA graph (batch of {size}): "
                    f"{call_in(error)}: {' '.join(str(error).split())[:300]}",
                    hint="A captured model has no calls that wait for the device or depend on values;"
                    " cuda_graph = false runs it as it is.",
                )
                failure.__cause__ = without_frames(error)
                return failure
        self._graphs[size] = graph, inputs, outputs
        return None

    def _give_up(self, graph: Any) -> None:
        """End a capture that failed, so that neither the stream nor the allocator stays in capture mode."""
        # Ending an invalid capture raises, but does end it.
        with contextlib.suppress(RuntimeError):
            graph.capture_end()
        try:
            graph.pool()
        except RuntimeError:
            # The graph object does not know that the capture has ended, so its destructor will not release its share
            # of the pool; this does. Some versions of torch also let the allocator go on filling the pool.
            for name in ("_cuda_endAllocateToPool", "_cuda_releasePool"):
                give_up: Any = getattr(torch._C, name, None)
                if give_up is not None:
                    with contextlib.suppress(RuntimeError):
                        give_up(self._device.index, self._pool)
        else:
            graph.reset()

    def takes(self, tensors: Sequence[torch.Tensor], rows: int) -> bool:
        """Return whether a graph with enough rows was captured for these shapes and dtypes."""
        return (
            bool(self._graphs)
            and rows <= max(self._graphs)
            and all(
                tensor.dtype == static.dtype and tensor.shape[1:] == static.shape[1:]
                for tensor, static in zip(tensors, self._inputs, strict=True)
            )
        )

    def run(self, tensors: Sequence[torch.Tensor], rows: int) -> dict[str, torch.Tensor]:
        """Run the smallest graph that holds ``rows``. The outputs are new tensors of ``rows`` rows.

        If the graph holds more rows, copies of the last row fill it up.
        """
        size = min(size for size in self._graphs if size >= rows)
        graph, inputs, outputs = self._graphs[size]
        for static, tensor in zip(inputs, tensors, strict=True):
            # No view is made here, since each call of torch releases the interpreter lock.
            if rows == size:
                static.copy_(tensor, non_blocking=True)
                continue
            static[:rows].copy_(tensor, non_blocking=True)
            static[rows:].copy_(tensor[-1:].expand(size - rows, *tensor.shape[1:]))
        graph.replay()
        if rows == size:
            return {name: output.clone() for name, output in outputs.items()}
        return {name: output[:rows].clone() for name, output in outputs.items()}

    def close(self) -> None:
        """Release the graphs and their buffers."""
        with allocator_quiet():
            for graph, _, _ in self._graphs.values():
                with unless_lost("releasing a CUDA graph"):
                    graph.reset()
            self._graphs.clear()
            self._inputs = ()
            self._pool = None


def call_in(error: BaseException) -> str:
    """Return file, line and text of the call in the model that raised an error."""
    home = str(Path(torch.__file__).parent)
    own = str(Path(__file__).parents[1])
    frames = [
        (frame.f_code.co_filename, line)
        for frame, line in traceback.walk_tb(error.__traceback__)
        if not frame.f_code.co_filename.startswith((home, own))
    ]
    if not frames:
        return type(error).__name__
    file, line = frames[-1]
    text = linecache.getline(file, line).strip()
    name = Path(file).name if Path(file).is_file() else "the model's graph"
    return f"{name}, line {line}{': ' + text if text else ''}"
