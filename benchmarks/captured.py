"""A module with captured CUDA graphs, as a program written by hand would call it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["Captured"]


class Captured:
    """A module with a captured graph per batch size, as one thread of a program would call it.

    Pictures are gathered in pinned memory. A batch whose size has no graph runs at the next larger size
    that has one. On the CPU the module is called without graphs.

    Args:
        module: Takes ``uint8 [N, H, W, 3]`` and gives ``int64 [N]``, both on the module's device.
        batch: Most pictures in one call.
        shape: ``H, W, 3``.
    """

    def __init__(self, module: torch.nn.Module, batch: int, shape: tuple[int, ...]) -> None:
        self._module = module
        device = next(module.parameters()).device
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None
        if self._stream is None:
            return
        self._pinned = torch.zeros((batch, *shape), dtype=torch.uint8, pin_memory=True)
        self._rows = self._pinned.numpy()
        self._graphs: dict[int, tuple[torch.cuda.CUDAGraph, torch.Tensor, torch.Tensor]] = {}
        given = torch.zeros((batch, *shape), dtype=torch.uint8, device=device)
        self._sizes = [1 << k for k in range((batch - 1).bit_length())] + [batch]
        with torch.inference_mode():
            for size in reversed(self._sizes):
                static = given[:size]
                with torch.cuda.stream(self._stream):
                    for _ in range(3):
                        module(static)
                self._stream.synchronize()
                graph = torch.cuda.CUDAGraph()
                with torch.cuda.graph(graph, stream=self._stream):
                    output = module(static)
                self._graphs[size] = graph, static, output

    def __call__(self, pictures: list[NDArray[np.uint8]]) -> list[int]:
        """Wait for the classes of a batch of pictures, and give them."""
        found: list[int]
        count = len(pictures)
        with torch.inference_mode():
            if self._stream is None:
                found = self._module(torch.from_numpy(np.stack(pictures))).tolist()
                return found
            size = next(size for size in self._sizes if size >= count)
            graph, static, output = self._graphs[size]
            for row, picture in zip(self._rows, pictures, strict=False):
                row[...] = picture
            with torch.cuda.stream(self._stream):
                static.copy_(self._pinned[:size], non_blocking=True)
                graph.replay()
                found = output.tolist()
        return found[:count]
