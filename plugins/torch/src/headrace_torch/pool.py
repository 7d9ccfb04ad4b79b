"""Streams that the instances of a node share: the computation of `StreamPool`."""

from __future__ import annotations

import contextlib
import threading
from typing import TYPE_CHECKING, Any

import torch

from headrace_torch.own_stream import OwnStream
from headrace_torch.rows import Row

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from headrace.keys import Request
    from headrace_torch.place import Place

__all__ = ["SharedStreams"]


class SharedStreams:
    """A few streams of one device.

    Args:
        ordinal: Which CUDA device.
        number: How many streams.
    """

    def __init__(self, ordinal: int, number: int) -> None:
        self._lock = threading.Lock()
        self._owners = [OwnStream(ordinal) for _ in range(number)]
        self._users = [0] * number

    @contextlib.contextmanager
    def around(self, place: Place, batch: Sequence[Request]) -> Iterator[None]:
        """Make the stream that the fewest use current, behind and before the instance's by events.

        What is written inside was made on that stream: its memory is not used again before the
        instance's stream has passed, too.
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
        """Give the streams up."""
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
