"""The streams that `StreamPool` shares among the instances of a node."""

from __future__ import annotations

import contextlib
import threading
from typing import TYPE_CHECKING, Any

import torch

from headrace_torch.devices.own_stream import OwnStream
from headrace_torch.requests.rows import Row

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from headrace.keys import Request
    from headrace_torch.devices.place import Place

__all__ = ["SharedStreams"]


class SharedStreams:
    """A few streams of one device.

    Args:
        ordinal: The number of the CUDA device.
        number: The number of streams.
    """

    def __init__(self, ordinal: int, number: int) -> None:
        self._lock = threading.Lock()
        self._owners = [OwnStream(ordinal) for _ in range(number)]
        self._users = [0] * number

    @contextlib.contextmanager
    def around(self, place: Place, batch: Sequence[Request]) -> Iterator[None]:
        """Make the stream with the fewest users current for the block.

        Events order the pool's stream behind the earlier work of the instance's stream, and the instance's stream
        behind the work of the block. Tensors that the block writes into the requests were allocated on the pool's
        stream, so they are also recorded on the instance's stream: the allocator then does not reuse their memory
        before the instance's stream has read them.
        """
        with self._lock:
            index = self._users.index(min(self._users))
            self._users[index] += 1
        stream, home = self._owners[index].stream, torch.cuda.current_stream(place.device)
        try:
            stream.wait_stream(home)
            try:
                with torch.cuda.stream(stream):
                    yield
            finally:
                home.wait_stream(stream)
                for request in batch:
                    for tensor in _tensors_in(request.values()):
                        if tensor.device == place.device:
                            tensor.record_stream(home)
        finally:
            with self._lock:
                self._users[index] -= 1

    def close(self) -> None:
        """Release the streams."""
        for owner in self._owners:
            owner.close()


def _tensors_in(values: Iterable[Any]) -> Iterator[torch.Tensor]:
    for value in values:
        if isinstance(value, torch.Tensor):
            yield value
        elif type(value) is Row:
            yield value.tensor()
        elif isinstance(value, dict):
            yield from _tensors_in(value.values())
        elif isinstance(value, (list, tuple)):
            yield from _tensors_in(value)
