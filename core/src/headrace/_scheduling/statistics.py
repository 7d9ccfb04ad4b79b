"""What ``stats()`` shows of one node."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from headrace._scheduling.entry import RUNNING
from headrace._scheduling.instance import RESTING
from headrace._scheduling.timings import Timings

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headrace._scheduling.entry import Entry
    from headrace._scheduling.instance import Instance
    from headrace._scheduling.node import Node

__all__ = ["Past", "statistics", "statistics_anyhow"]


class Past:
    """The counts of instances that are gone; see `Instance` for their meaning."""

    __slots__ = ("direct", "failures", "forward", "sizes", "waited")

    def __init__(self) -> None:
        self.direct = 0
        self.failures: dict[str, int] = {}
        self.sizes: dict[int, int] = {}
        self.forward = Timings()
        self.waited = Timings()

    def absorb(self, other: Instance | Past, *, direct: int | None = None) -> None:
        """Count all that ``other`` has counted; ``direct`` stands for that of a moment ago."""
        self.direct += other.direct if direct is None else direct
        self.forward.merge(other.forward)
        self.waited.merge(other.waited)
        _add(self.failures, other.failures)
        _add(self.sizes, other.sizes)


def statistics(node: Node) -> dict[str, Any]:
    """Give the counts, which are exact, and the times, which are sampled. Under the lock.

    Keys of the histogram are texts, so that the whole is the same after a way through JSON.
    """
    total = Past()
    total.absorb(node.past)
    running = 0
    for instance in node.every:
        # No call in between: a caller that claims it without the lock is seen in both, or in none.
        direct, holder, entries = instance.direct, instance.holder, instance.entries
        total.absorb(instance, direct=direct)
        running += _running(holder, entries)
    failed, sizes = total.failures, total.sizes
    _add(failed, node.failures)
    if total.direct:
        _add(sizes, {1: total.direct})
    submitted = total.direct + node.entered
    waiting = node.line.count + len(node.outside)
    batches = sum(sizes.values())
    items = sum(size * count for size, count in sizes.items())
    return {
        "waiting": waiting,
        "submitted": submitted,
        "ok": submitted - sum(failed.values()) - waiting - running,
        "failed": failed,
        "batches": batches,
        "batch_size": {
            "mean": round(items / batches, 4) if batches else 0.0,
            "histogram": {str(size): sizes[size] for size in sorted(sizes) if sizes[size]},
        },
        "queue_ms": total.waited.summary(),
        "forward_ms": total.forward.summary(),
        "instances": [instance.statistics() for instance in node.instances],
    }


def statistics_anyhow(node: Node) -> dict[str, Any]:
    """Give the counts as they are at some moment in between: the calling thread holds a lock."""
    while True:
        try:
            return statistics(node)
        except RuntimeError:  # another thread has changed a dict meanwhile
            continue


def _running(holder: object, entries: Sequence[Entry] | None) -> int:
    """Count the open requests on an instance."""
    if holder is None or holder is RESTING:
        return 0
    if entries is None:
        return 1  # a caller's own, past the queue
    return sum(1 for entry in entries if entry.state == RUNNING)


def _add(total: dict[Any, int], counts: dict[Any, int]) -> None:
    # A copy, in one step: the main thread counts its failures without the lock.
    for key, count in counts.copy().items():
        total[key] = total.get(key, 0) + count
