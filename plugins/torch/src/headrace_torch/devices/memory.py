"""Device memory: recognizes errors that say it ran out or the device is lost, and returns memory."""

from __future__ import annotations

import contextlib
import gc
import logging
import threading
from typing import TYPE_CHECKING, Any

import torch

import headrace_tensors as tensors
from headrace.errors import InstanceLostError, NoMemoryError, is_out_of_memory

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = [
    "LivePlaces",
    "allocator_quiet",
    "as_backend_error",
    "give_back_memory",
    "is_lost",
    "unless_lost",
    "without_frames",
]

_log = logging.getLogger("headrace.torch")

_allocator = threading.RLock()


@contextlib.contextmanager
def allocator_quiet() -> Iterator[None]:
    """Prevent that torch's allocator is emptied during a capture of a CUDA graph, by a lock of the process.

    The race: thread A captures a graph while thread B empties the cache, which torch's allocator refuses during any
    capture in the process. If A comes first, B waits for the end of the capture. If B comes first, A waits.
    """
    with _allocator:
        yield


class LivePlaces:
    """Counts the instances that compute on CUDA devices in this process, for `give_back_memory`."""

    _lock = threading.Lock()
    _count = 0

    @classmethod
    def add(cls, change: int) -> int:
        """Add ``change``, which may be negative, to the number of instances, and return the new number."""
        with cls._lock:
            cls._count += change
            return cls._count


def is_lost(error: BaseException) -> bool:
    """Return whether a CUDA error means that this process cannot use the device any more."""
    return isinstance(error, RuntimeError) and tensors.is_lost(text=str(error))


@contextlib.contextmanager
def unless_lost(what: str) -> Iterator[None]:
    """Suppress RuntimeErrors of the block: silently if the device is lost, else with a warning about ``what``."""
    try:
        yield
    except RuntimeError as error:
        if not is_lost(error):
            _log.warning("%s failed: %s", what, " ".join(str(error).split())[:300])


def without_frames(error: Exception) -> Exception:
    """Remove the tracebacks of an error and of all its causes, since variables of their frames keep tensors alive."""
    ids: set[int] = set()
    waiting: list[BaseException | None] = [error]
    while waiting:
        link = waiting.pop()
        if link is not None and id(link) not in ids:
            ids.add(id(link))
            link.__traceback__ = None
            waiting += [link.__cause__, link.__context__]
    return error


def as_backend_error(error: Exception, device: torch.device) -> Exception:
    """Return the error for requests. If memory ran out or the device is lost, it says what to do.

    Such an error has no traceback, because variables of its frames would keep the memory of the batch.
    """
    if is_out_of_memory(error):
        text = " ".join(str(error).split())
        failure = NoMemoryError(
            f"out of memory on {device}: {text}{_free(device)}",
            hint="A smaller `max` or fewer instances need less; so does `dtype = 'float16'`.",
        )
        failure.__cause__ = without_frames(error)
        return failure
    if is_lost(error):
        lost = InstanceLostError(
            f"{device} can run nothing more in this process: {str(error).splitlines()[0]}",
            hint="Start the process again; CUDA_LAUNCH_BLOCKING=1 shows which call it was.",
        )
        lost.__cause__ = without_frames(error)
        return lost
    return error


def _free(device: torch.device) -> str:
    """Return a text with the free memory of a CUDA device; ``""`` for other devices."""
    if device.type != "cuda":
        return ""
    with contextlib.suppress(RuntimeError):
        free, total = torch.cuda.mem_get_info(device)
        reserved = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return (
            f" ({free} of {total} bytes were free, and {reserved} reserved by torch and not in use)"
        )
    return ""


def give_back_memory(device: torch.device, *, last: bool = False) -> None:
    """Return the memory that torch's allocators have cached to the device.

    Args:
        device: The device of an instance that was closed, or that ran out of memory.
        last: Whether no other instance of the process computes on a CUDA device. Then cuBLAS's workspaces, one
            per thread and stream, and the cached pinned memory are freed as well, otherwise another instance may be
            using a workspace.
    """
    if device.type == "mps":
        torch.mps.empty_cache()
    if device.type != "cuda":
        return
    with allocator_quiet(), unless_lost(f"giving memory back to {device}"):
        clear: Any = getattr(torch._C, "_cuda_clearCublasWorkspaces", None)
        if last and clear is not None:
            clear()
        gc.collect()
        torch.cuda.empty_cache()
        empty_pinned: Any = getattr(torch._C, "_host_emptyCache", None)
        if last and empty_pinned is not None:
            empty_pinned()
