"""Orders an instance behind the work of callers on their own streams, by events and without a wait of the host.

`enter` runs in the thread of a caller, as a request comes in, and `wait_for_callers` in the thread of the instance.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, ClassVar

from headrace.errors import MissingDependencyError
from headrace_tensors import caller_streams

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from headrace.keys import Request
    from headrace_trt.cuda import Cuda

__all__ = ["Mark", "enter", "wait_for_callers"]


class Mark:
    """A mark behind the work that is queued on a stream now, for which other streams wait.

    Args:
        cuda: The CUDA runtime.
        ordinal: The number of the stream's device. None: the device that is current in this thread.
        stream: The handle of the stream.

    Attributes:
        made: Whether this process has ever made one. Until then no batch looks for one.
    """

    made: ClassVar[bool] = False

    def __init__(self, cuda: Cuda, ordinal: int | None, stream: int) -> None:
        self._cuda = cuda
        self._event: int | None = None
        here = contextlib.nullcontext() if ordinal is None else cuda.on_device(ordinal)
        with here:  # an event belongs to the device that is current
            self._event = cuda.event_create()
            cuda.event_record(self._event, stream)
        Mark.made = True

    def hold_back(self, stream: int) -> None:
        """Make later work on ``stream`` wait for the work before the mark."""
        if self._event is not None:
            self._cuda.stream_wait(stream, self._event)

    def __del__(self) -> None:
        event, self._event = self._event, None
        if event is not None:
            with contextlib.suppress(Exception):  # at the end of the process there may be no CUDA
                self._cuda.event_destroy(event)


def enter(request: Request) -> tuple[Mark, ...] | None:
    """Put a mark on each stream on which the calling thread may still be writing arrays of a request.

    Returns:
        The marks. None if there are none, or cuda-bindings is not installed.
    """
    streams = caller_streams(request)
    if not streams:
        return None
    from headrace_trt.cuda import load_cuda

    try:
        cuda = load_cuda()
    except MissingDependencyError:
        return None
    return tuple(Mark(cuda, ordinal, handle) for ordinal, handle in streams)


def wait_for_callers(
    batch: Sequence[Request], entered: Callable[[Request], tuple[Mark, ...] | None], stream: int
) -> None:
    """Make ``stream`` wait for the marks of all requests of a batch; ``entered`` returns those of one."""
    for request in batch if Mark.made else ():
        for mark in entered(request) or ():
            mark.hold_back(stream)
