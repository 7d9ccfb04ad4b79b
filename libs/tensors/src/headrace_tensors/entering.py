"""The streams on which the calling thread may still be writing the arrays of a request, for a backend's ``enter``."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["LEGACY", "PER_THREAD", "CallerStream", "caller_streams"]

LEGACY: Final = 1
"""The handle of the legacy default stream of CUDA; 0 is the same stream."""
PER_THREAD: Final = 2
"""The handle of the default stream of the calling thread."""

_CUDA: Final = 2  # the number of CUDA in DLPack
_passed: Final[set[type]] = {type(None), bool, int, float, complex, str, bytes, bytearray}
"""Types of values that are on the host, or finished; those of numpy and of Headrace's plugins are added as they come."""


class CallerStream(NamedTuple):
    """A stream of the calling thread.

    Attributes:
        ordinal: The number of its CUDA device. None: the one that is current in the thread.
        handle: The ``cudaStream_t`` as an int. `LEGACY` and `PER_THREAD` are default streams.
    """

    ordinal: int | None
    handle: int


def caller_streams(request: Mapping[str, Any]) -> set[CallerStream]:
    """Return the streams on which work for the arrays of a request may be queued. To be called in the caller's thread.

    What is read for each kind of array:

    - a tensor of torch: torch's current stream of the tensor's device.
    - ``__cuda_array_interface__`` (CuPy, numba): its ``stream``.
    - DLPack alone: ``__dlpack__(stream=PER_THREAD)`` orders the default stream of the calling thread behind the work of
      the array's maker.

    Arrays of Headrace's own plugins are results of a batch, so they are finished. No library is imported.

    Args:
        request: A request. All values are looked at, and the elements of lists, tuples and dicts among them, but
            not what is inside these.

    Returns:
        The streams. Empty for a request without arrays on a CUDA device.
    """
    found: set[CallerStream] = set()
    for value in request.values():
        kind = type(value)
        if kind in _passed:
            continue
        if kind is list or kind is tuple:
            if not _passed.issuperset(map(type, value)):
                for one in value:
                    _add(one, found)
        elif kind is dict:
            for one in value.values():
                _add(one, found)
        else:
            _add(value, found)
    return found


def _add(value: Any, found: set[CallerStream]) -> None:
    """Add the stream for one value, if it is an array on a CUDA device."""
    kind = type(value)
    if kind in _passed:
        return
    if kind.__module__.startswith(("numpy", "headrace_")):
        _passed.add(kind)
        return
    torch: Any = sys.modules.get("torch")
    tensor: Any = getattr(torch, "Tensor", ())
    if isinstance(value, tensor):
        if value.is_cuda:
            ordinal = value.get_device()
            handle = int(torch.cuda.current_stream(ordinal).cuda_stream)
            found.add(CallerStream(ordinal, handle))
        return
    try:
        place = getattr(value, "__dlpack_device__", None)
        where = None if place is None else place()
        about = getattr(value, "__cuda_array_interface__", None)
        if about is not None:
            handle = about.get("stream")
            if handle is not None:
                found.add(CallerStream(None if where is None else int(where[1]), int(handle)))
        elif where is not None and int(where[0]) == _CUDA:
            value.__dlpack__(stream=PER_THREAD)
            found.add(CallerStream(int(where[1]), PER_THREAD))
    except Exception:  # noqa: BLE001 - a foreign array may raise anything. Reading it reports the error
        return
