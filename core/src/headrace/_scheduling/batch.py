"""Running one cut batch on its instance: padding, the call, and one outcome per entry."""

from __future__ import annotations

import time
from threading import get_ident
from typing import TYPE_CHECKING, Any

from headrace._scheduling.calls import served_by, serves
from headrace._scheduling.executors import Caller
from headrace.errors import BackendError, BatchRangeError, ClosedError, NoResultError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headrace._scheduling.entry import Entry
    from headrace._scheduling.executors import Work
    from headrace._scheduling.instance import Instance
    from headrace.keys import Request

__all__ = [
    "Filler",
    "entries_running_here",
    "no_result",
    "outside",
    "refusal",
    "run",
    "served_here",
    "target_weight",
    "waited_for",
    "wrapped",
]


class Filler(dict[str, Any]):
    """A copy of an item that fills a batch up, and is nobody's request: what it gives is dropped."""


_running: dict[int, tuple[Sequence[Entry], ...]] = {}
"""Per thread the batches from queues that it runs, one inside the other."""

Outcome = tuple["list[BaseException | None]", "BaseException | None"]


def entries_running_here() -> list[Entry]:
    """Give the entries of the batches that the calling thread runs, or that wait for its job."""
    batches = [batch for ident in served_by(get_ident()) for batch in _running.get(ident, ())]
    return [entry for batch in batches for entry in batch]


def waited_for(ident: int) -> bool:
    """Tell whether other threads may wait for what thread ``ident`` does now."""
    return ident in _running or serves(ident)


def served_here(ident: int) -> set[int]:
    """Give thread ``ident`` and all threads that wait for what it does now."""
    found: set[int] = set()
    left = [ident]
    while left:
        for thread in served_by(left.pop()) - found:
            found.add(thread)
            for entries in _running.get(thread, ()):
                left += [e.owner.ident for e in entries if isinstance(e.owner, Caller)]
    return found


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


def no_result(node: str, instance: Instance, request: Request) -> NoResultError:
    """Make the error of a request whose backend ended without ``result``."""
    silent = instance.backend._last_label(request)
    return NoResultError(
        f"{silent} wrote no 'result'",
        node=node,
        backend=silent,
        instance=instance.index,
    )


def _pad(batch: list[Request], weight: int, target: int, most: int | None) -> None:
    """Append shallow copies of the last item until the batch weighs ``target`` or more."""
    last = batch[-1]
    step = last.get("request_size", 1)
    while weight < target and (most is None or weight + step <= most):
        copy = Filler(last)
        copy.pop("result", None)
        batch.append(copy)
        weight += step


def run(
    node: str, work: Work, sizes: tuple[int, ...], *, pad: bool, needs_result: bool = True
) -> Outcome:
    """Run a batch on the instance that was claimed for it, in the calling thread.

    Args:
        node: The node.
        work: The batch and its instance.
        sizes: The weights a batch may have; empty for all.
        pad: Whether a batch that is too small is filled up.
        needs_result: Whether an item that ends without a ``result`` has failed.

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
    interrupt: BaseException | None = None
    outcomes: Sequence[BaseException | None] | None
    timed = not instance.queued & instance.mask
    me = get_ident()
    outer = _running.get(me)
    _running[me] = (entries,) if outer is None else (*outer, entries)
    begun = time.perf_counter() if timed else 0.0
    try:
        outcomes = instance.run(batch)
    except BaseException as error:  # noqa: BLE001 - nothing may be lost, whatever hits here
        if not isinstance(error, Exception):
            interrupt = error
        outcomes = [wrapped(node, instance, error) for _ in entries]
    finally:
        if outer is None:
            del _running[me]
        else:
            _running[me] = outer
    if timed:
        instance.timed(time.perf_counter() - begun)
    errors: list[BaseException | None] = (
        [None] * len(entries)
        if outcomes is None
        else [outside(error) for error in outcomes[: len(entries)]]
    )
    if needs_result:
        for index, entry in enumerate(entries):
            if errors[index] is None and "result" not in entry.request:
                errors[index] = no_result(node, instance, entry.request)
    try:
        return errors, interrupt
    finally:
        del outcomes, errors, interrupt  # see `Entry.take_error`


def outside(error: BaseException | None) -> BaseException | None:
    """Give the outcome of a request as its owner gets it: see `ClosedError`."""
    if isinstance(error, ClosedError):
        return ClosedError(error.args[0], abandoned=error.abandoned)
    return error


def wrapped(node: str, instance: Instance, error: BaseException) -> BackendError:
    """Make the error of one request in whose batch ``error`` was raised past the backend."""
    name = type(error).__name__
    outcome = BackendError(
        f"{instance.backend._label()} raised {name}"
        if isinstance(error, Exception)
        else f"{name} hit the thread that ran the batch",
        node=node,
        backend=instance.backend._label(),
        instance=instance.index,
        abandoned=getattr(error, "abandoned", False) is True,
    )
    outcome.__cause__ = error
    return outcome
