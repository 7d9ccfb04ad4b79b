"""Orders an instance behind the work of callers on their own streams, by events and without a wait of the host.

`enter` runs in the thread of a caller, as a request comes in, and `wait_for_callers` in the thread of the instance. torch
is not imported for a request without arrays on a CUDA device.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from headrace_tensors.entering import LEGACY, caller_streams

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import torch

    from headrace.keys import Request
    from headrace_torch.place import Place

    Events = tuple[torch.cuda.Event, ...]

__all__ = ["Recorded", "enter", "wait_for_callers"]


class Recorded:
    """Whether this process has ever recorded an event in `enter`. Until then no batch looks for one.

    Attributes:
        any: It has.
    """

    any: ClassVar[bool] = False


def enter(request: Request) -> Events | None:
    """Record an event on each stream on which the calling thread may still be writing arrays of a request.

    The default stream of a device is left out, because a `Place` orders its stream behind that one itself.

    Returns:
        The events. None if there is none, or torch has no CUDA device.
    """
    streams = caller_streams(request)
    if not streams:
        return None
    import torch

    if not torch.cuda.is_available():
        return None
    events = []
    for ordinal, handle in streams:
        if handle in (0, LEGACY):
            continue
        device = torch.cuda.current_device() if ordinal is None else ordinal
        stream = torch.cuda.current_stream(device)
        if stream.cuda_stream != handle:
            stream = torch.cuda.ExternalStream(handle, device=device)
        events.append(stream.record_event())
    if not events:
        return None
    Recorded.any = True
    return tuple(events)


def wait_for_callers(
    place: Place, batch: Sequence[Request], entered: Callable[[Request], Events | None]
) -> None:
    """Let the current stream wait for the events that were recorded as the requests of a batch came in.

    The values of such requests are kept alive to the end of the batch.

    Args:
        place: The place of the instance, in its thread.
        batch: Requests.
        entered: Returns what `enter` has returned for a request.
    """
    for request in batch:
        events = entered(request)
        if events is None:
            continue
        place.events.extend(events)  # for the streams of other devices, see `Place.beside`
        place.keep(list(request.values()))
        if place.stream is not None:
            current = place.current_stream()
            for event in events:
                current.wait_event(event)
