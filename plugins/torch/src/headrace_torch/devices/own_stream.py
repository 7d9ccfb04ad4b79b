"""The stream of one instance on a CUDA device."""

from __future__ import annotations

import threading

import torch

from headrace_torch.devices.memory import unless_lost

__all__ = ["OwnStream"]


class OwnStream:
    """A CUDA stream of one instance, in the form that plugins share.

    torch has 32 streams per device and hands them out in turn. This class shares a stream between instances only if
    none is unused. It uses a closed stream again first, so that the memory that libraries keep per stream does not
    grow with every pipeline.

    Args:
        ordinal: The number of the CUDA device.

    Attributes:
        handle: The ``cudaStream_t`` as an int.
        stream: The same stream as torch's object.
    """

    _lock = threading.Lock()
    _free: dict[int, list[torch.cuda.Stream]] = {}  # noqa: RUF012 - of the process, under the lock
    _used: set[tuple[int, int]] = set()  # noqa: RUF012 - of the process, under the lock

    def __init__(self, ordinal: int) -> None:
        self._ordinal = ordinal
        with OwnStream._lock:
            free = OwnStream._free.setdefault(ordinal, [])
            self.stream = free.pop() if free else self._new(ordinal)
            OwnStream._used.add((ordinal, self.stream.cuda_stream))
        self.handle: int = self.stream.cuda_stream

    @staticmethod
    def _new(ordinal: int) -> torch.cuda.Stream:
        for _ in range(32):
            stream = torch.cuda.Stream(device=ordinal)
            if (ordinal, stream.cuda_stream) not in OwnStream._used:
                break
        return stream

    def close(self) -> None:
        """Wait for the work on the stream, and leave the stream to the next instance."""
        with unless_lost("waiting for a stream that is being closed"):
            self.stream.synchronize()
        with OwnStream._lock:
            if (self._ordinal, self.handle) in OwnStream._used:
                OwnStream._used.discard((self._ordinal, self.handle))
                OwnStream._free[self._ordinal].append(self.stream)
