"""A model on a stream of its own, as one thread of a program written by hand calls it: torch, ONNX Runtime, TensorRT.

All three gather rows into static memory, run there, copy the answers out and wait for an event. Only how a run is
queued differs. Without a GPU torch and ONNX Runtime run on the CPU, to show that the scripts work.
"""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from numpy.typing import NDArray

__all__ = ["EngineLane", "Lane", "SessionLane", "TorchLane", "alone"]

CLASSES = 1000


class Lane:
    """A stream, and static memory for one batch of it.

    Args:
        device: ``cuda:N`` or ``cpu``.
        batch: Most rows in one run.
        shape: Of one row.
        dtype: Of inputs and answers.
    """

    def __init__(
        self, device: str, batch: int, shape: tuple[int, ...], dtype: torch.dtype = torch.float32
    ) -> None:
        self.batch, self.shape, self.device = batch, shape, device
        self.cuda = device.startswith("cuda")
        self.given = torch.randn((batch, *shape), device=device).to(dtype)
        self.answers = torch.zeros((batch, CLASSES), device=device, dtype=dtype)
        self._host = torch.zeros((batch, *shape), pin_memory=self.cuda)
        self._rows = self._host.numpy()
        self._read = torch.zeros((batch, CLASSES), dtype=dtype, pin_memory=self.cuda)
        if self.cuda:
            torch.cuda.synchronize(device)
            self.stream = torch.cuda.Stream(device)
            self._done = torch.cuda.Event()
            self._default = torch.cuda.default_stream(device)

    def launch(self, count: int) -> torch.Tensor:
        """Queue a run of the first rows of ``given``; give their answers, which are there when the stream is."""
        raise NotImplementedError

    def warm(self) -> None:
        """Run every number of rows once."""
        with torch.inference_mode():
            for count in range(self.batch, 0, -1):
                self._enter()
                self.launch(count)
                self._finish()
        if self.cuda:
            torch.cuda.set_stream(self._default)

    def queue(self) -> None:
        """Wait for the last run, and queue a full one: what `alone` measures."""
        if self.cuda:
            self._done.synchronize()
            torch.cuda.set_stream(self.stream)
        self.launch(self.batch)
        if self.cuda:
            self._done.record(self.stream)

    def on_device(self, items: list[tuple[torch.Tensor, Any]]) -> Sequence[torch.Tensor]:
        """Return the answers to tensors on the device, each with the event that its stream recorded, or None."""
        count = len(items)
        with torch.inference_mode():
            self._enter()
            if items[0][1] is not None:
                for _, event in items:
                    self.stream.wait_event(event)
            elif self.cuda and not self._default.query():
                self.stream.wait_stream(self._default)
            torch.stack([tensor for tensor, _ in items], out=self.given[:count])
            found = self.launch(count).clone()
            self._finish()
            return found.unbind(0)

    def on_host(self, items: list[NDArray[np.float32]]) -> list[NDArray[Any]]:
        """Return the answers to arrays of the host, as arrays of the host."""
        count = len(items)
        with torch.inference_mode():
            self._enter()
            for row, item in zip(self._rows, items, strict=False):
                row[...] = item
            # The dtype changes on the device: on the host it would take longer than the copy.
            self.given[:count].copy_(self._host[:count].to(self.device, non_blocking=True))
            self._read[:count].copy_(self.launch(count), non_blocking=True)
            self._finish()
            return list(self._read[:count].numpy().copy())

    def _enter(self) -> None:
        if self.cuda:
            torch.cuda.set_stream(self.stream)

    def _finish(self) -> None:
        if self.cuda:
            self._done.record(self.stream)
            self._done.synchronize()


class TorchLane(Lane):
    """A module, with a captured graph per power of two up to the batch; other batches take the next larger one."""

    def __init__(self, module: torch.nn.Module, *about: Any) -> None:
        super().__init__(*about)
        self._module = module
        self._graphs: dict[int, tuple[torch.cuda.CUDAGraph, torch.Tensor]] = {}
        self._sizes = [1 << k for k in range((self.batch - 1).bit_length())] + [self.batch]
        if not self.cuda:
            return
        with torch.inference_mode():
            for size in reversed(self._sizes):
                rows = self.given[:size]
                with torch.cuda.stream(self.stream):
                    for _ in range(3):
                        module(rows)
                self.stream.synchronize()
                graph = torch.cuda.CUDAGraph()
                with torch.cuda.graph(graph, stream=self.stream, capture_error_mode="thread_local"):
                    answers = module(rows)
                self._graphs[size] = graph, answers

    def launch(self, count: int) -> torch.Tensor:
        """Replay a graph."""
        if not self._graphs:
            found: torch.Tensor = self._module(self.given[:count])
            return found
        graph, answers = self._graphs[next(size for size in self._sizes if size >= count)]
        graph.replay()
        return answers[:count]


class SessionLane(Lane):
    """A session of ONNX Runtime that computes on the stream of this lane."""

    def __init__(self, model: Path, *about: Any) -> None:
        super().__init__(*about)
        import onnxruntime as ort

        provider: Any = "CPUExecutionProvider"
        self._options = ort.RunOptions()
        if self.cuda:
            # OnnxTensor sets the first of these by default. Without it the sides would run other kernels.
            options = {
                "cudnn_conv_algo_search": "HEURISTIC",
                "user_compute_stream": str(self.stream.cuda_stream),
            }
            provider = "CUDAExecutionProvider", options
            self._options.add_run_config_entry("disable_synchronize_execution_providers", "1")
        self._session = ort.InferenceSession(str(model), providers=[provider])
        self._bound: dict[int, Any] = {}

    def launch(self, count: int) -> torch.Tensor:
        """Run with inputs and answers bound."""
        binding = self._bound.get(count)
        if binding is None:
            binding = self._bound[count] = self._session.io_binding()
            kind = "cuda" if self.cuda else "cpu"
            shape = (count, *self.shape)
            binding.bind_input("x", kind, 0, np.float32, shape, self.given.data_ptr())
            shape = (count, CLASSES)
            binding.bind_output("y", kind, 0, np.float32, shape, self.answers.data_ptr())
        self._session.run_with_iobinding(binding, self._options)
        return self.answers[:count]


class EngineLane(Lane):
    """A context of an engine of TensorRT with one input and one output."""

    def __init__(self, engine: Any, *about: Any) -> None:
        super().__init__(*about)
        self._engine, plan = engine, engine.engine
        self._input, output = (plan.get_tensor_name(i) for i in range(plan.num_io_tensors))
        self._context = plan.create_execution_context()
        self._context.set_optimization_profile_async(0, self.stream.cuda_stream)
        self._context.set_tensor_address(self._input, self.given.data_ptr())
        self._context.set_tensor_address(output, self.answers.data_ptr())
        self._count = 0

    def launch(self, count: int) -> torch.Tensor:
        """Queue a run."""
        if count != self._count:
            self._context.set_input_shape(self._input, (count, *self.shape))
            self._count = count
        self._context.execute_async_v3(self.stream.cuda_stream)
        return self.answers[:count]


def alone(lanes: Sequence[Lane], seconds: float) -> float:
    """Return the rows a second of full batches that one thread queues on all lanes in turn: nobody waits for an answer."""
    with torch.inference_mode():
        for length in (seconds / 5, seconds):  # the first warms up
            count, begun = 0, time.perf_counter()
            while time.perf_counter() - begun < length:
                for lane in lanes:
                    lane.queue()
                    count += lane.batch
            if lanes[0].cuda:
                torch.cuda.synchronize(lanes[0].device)
            rate = count / (time.perf_counter() - begun)
        if lanes[0].cuda:
            torch.cuda.set_stream(torch.cuda.default_stream(lanes[0].device))
    return rate
