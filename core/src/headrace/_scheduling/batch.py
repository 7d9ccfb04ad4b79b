"""Running one cut batch on its instance: padding, the call, and one outcome per entry."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any

from headrace.errors import BackendError, BatchRangeError, NoResultError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headrace._scheduling.entry import Entry
    from headrace._scheduling.executors import Work
    from headrace._scheduling.instance import Instance
    from headrace.keys import Request

__all__ = ["entries_running_here", "no_result", "refusal", "run", "target_weight"]

_here = threading.local()


def entries_running_here() -> Sequence[Entry]:
    """Give the entries of the batch that the calling thread runs, if one has a deadline or priority."""
    entries: Sequence[Entry] = getattr(_here, "entries", ())
    return entries


Outcome = tuple["list[BaseException | None]", "BaseException | None"]


def target_weight(weight: int, instance: Instance, sizes: tuple[int, ...]) -> int:
    """Give the weight to which a batch of ``weight`` must be padded: itself if it fits as it is."""
    wanted = max(weight, instance.min)
    if sizes:
        wanted = next((size for size in sizes if size >= wanted), wanted)
    return wanted


def refusal(
    node: str, weight: int, instance: Instance, sizes: tuple[int, ...], *, pad: bool
) -> BatchRangeError | None:
    """Give the error of a batch that was cut too small and may not be padded, else None."""
    if pad or (weight >= instance.min and (not sizes or weight in sizes)):
        return None
    allowed = f"the sizes {', '.join(map(str, sizes))}" if sizes else f"a min of {instance.min}"
    return BatchRangeError(
        f"the wait for company is over with a weight of {weight}, and the node has {allowed}",
        weight=weight,
        min=instance.min,
        max=instance.max,
        node=node,
        instance=instance.index,
        hint="Set pad = true, a longer batching_timeout, or allow smaller batches.",
    )


def no_result(node: str, instance: Instance) -> NoResultError:
    """Make the error of a request whose backend ended without ``result``."""
    backend = instance.backend
    return NoResultError(
        f"{backend._label()} wrote no 'result'",
        node=node,
        backend=backend._label(),
        instance=instance.index,
    )


def _pad(batch: list[Request], weight: int, target: int, most: int | None) -> None:
    """Append shallow copies of the last item until the batch weighs ``target`` or more."""
    last = batch[-1]
    step = last.get("request_size", 1)
    while weight < target and (most is None or weight + step <= most):
        copy = dict(last)
        copy.pop("result", None)
        batch.append(copy)
        weight += step


def run(node: str, work: Work, sizes: tuple[int, ...], *, pad: bool) -> Outcome:
    """Run a batch on the instance that was claimed for it, in the calling thread.

    Returns:
        One error or None per entry, and the interrupt (a BaseException that is no Exception) that
        hit the calling thread meanwhile, if one did. Nothing is raised.
    """
    instance, entries = work
    batch: list[Any] = [entry.request for entry in entries]
    if pad:
        weight = instance.running_weight
        target = target_weight(weight, instance, sizes)
        if target > weight:
            _pad(batch, weight, target, instance.max)
    instance.ident = threading.get_ident()
    interrupt: BaseException | None = None
    timed = not instance.queued & instance.mask
    special = any(entry.deadline is not None or entry.priority for entry in entries)
    outer = entries_running_here() if special else ()
    if special:
        _here.entries = entries
    begun = time.perf_counter() if timed else 0.0
    try:
        outcomes = instance.backend(batch)
    except BaseException as error:  # noqa: BLE001 - nothing may be lost, whatever hits here
        interrupt = error
        outcomes = [interrupted(node, instance, error) for _ in entries]
    if special:
        _here.entries = outer
    if timed:
        instance.timed(time.perf_counter() - begun)
    if outcomes is None:
        errors: list[BaseException | None] = [
            None if "result" in entry.request else no_result(node, instance) for entry in entries
        ]
    else:
        errors = [
            no_result(node, instance) if error is None and "result" not in entry.request else error
            for entry, error in zip(entries, outcomes, strict=False)
        ]
    return errors, interrupt


def interrupted(node: str, instance: Instance, error: BaseException) -> BackendError:
    """Make the error of a request in whose batch an interrupt hit the running thread."""
    wrapped = BackendError(
        f"{type(error).__name__} hit the thread that ran the batch",
        node=node,
        backend=instance.backend._label(),
        instance=instance.index,
    )
    wrapped.__cause__ = error
    return wrapped
