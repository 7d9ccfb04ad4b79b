"""The policies that a node has when it names none."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pydantic import Field, field_validator

from headrace._options import Options as _Options
from headrace.policies._contract import (
    BatchPolicy,
    Cut,
    DispatchPolicy,
    takes_the_only_one,
    takes_what_is_full,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headrace.policies._contract import InstanceView, Queue


def oldest_of(queue: Queue) -> float:
    """Give when the oldest arrived; a queue that does not say is taken to be in that order."""
    found = getattr(queue, "oldest", None)
    return queue[0].arrival if found is None else found


class Sized(BatchPolicy):
    """Cuts no more than an instance takes, and sizes that the node allows.

    Attributes:
        Options: ``batch_sizes`` and ``pad`` of the node.
    """

    class Options(_Options):
        """Keys of the node that the policy reads."""

        batch_sizes: tuple[int, ...] | None = Field(
            None, description="The weights a batch may have; None allows all."
        )
        pad: bool = Field(
            False, description="Fill a batch that is too small with copies of its last item."
        )

        @field_validator("batch_sizes")
        @classmethod
        def _ascending(cls, sizes: tuple[int, ...] | None) -> tuple[int, ...] | None:
            if sizes is None:
                return None
            if not sizes or min(sizes) < 1:
                raise ValueError("batch_sizes needs at least one size, and sizes of at least 1")
            return tuple(sorted(set(sizes)))

    def __init__(self, options: Any = None) -> None:
        super().__init__(options)
        self._sizes: tuple[int, ...] = self.options.batch_sizes or ()
        self._pad: bool = self.options.pad

    def _most(self, instance: InstanceView) -> int | None:
        """Give the greatest weight of a batch on an instance."""
        most = instance.max
        if not self._sizes:
            return most
        # A size that the instance does not take is none of its own.
        sizes = [size for size in self._sizes if most is None or size <= most]
        return sizes[-1] if sizes else most

    def _fits(self, queue: Queue, most: int | None) -> tuple[int, int, bool]:
        """Give count and weight of the longest head within ``most``, and if more cannot join."""
        count, total = len(queue), queue.weight
        if most is None:
            return count, total, False
        if total <= most:
            return count, total, total == most
        if total == count:  # each weighs 1
            return most, most, True
        weight = take = 0
        for take in range(len(queue)):
            heavier = weight + queue[take].weight
            if heavier > most:
                return take, weight, True
            weight = heavier
        return len(queue), weight, weight >= most

    def _filled(self, queue: Queue, take: int, weight: int) -> int:
        """Shorten a head of ``take`` requests to the largest batch size it fills; 0 for none."""
        if not self._sizes or self._pad or weight in self._sizes:
            return take
        for shorter in range(take - 1, 0, -1):
            weight -= queue[shorter].weight
            if weight in self._sizes:
                return shorter
        return 0


class Greedy(Sized):
    """The default: an idle node sends at once, busy instances let batches grow.

    While another instance runs, a free one waits for company until its ``max`` is reached or the
    oldest request has waited ``batching_timeout``. With ``batch_sizes`` the largest size that is
    filled is cut; with ``pad`` the smallest that holds all that wait. ``batch_policy = "greedy"``.
    """

    class Options(Sized.Options):
        """Keys of the node that the policy reads."""

        batching_timeout: float = Field(
            0, ge=0, description="How long the oldest request waits for company, in milliseconds."
        )

    sends_when_idle = True

    def __init__(self, options: Any = None) -> None:
        super().__init__(options)
        self._linger = self.options.batching_timeout / 1000

    @takes_what_is_full
    def cut(self, queue: Queue, instance: InstanceView, now: float) -> Cut:
        """Cut as the class says; see `BatchPolicy.cut`."""
        most = self._most(instance)
        take, weight, full = self._fits(queue, most)
        if take == 0:
            return Cut(0)
        if not full and self._linger:
            over_at = oldest_of(queue) + self._linger
            if now < over_at:
                # A queue need not say what runs; then nothing does.
                if getattr(queue, "running", False):
                    return Cut(0, over_at, most)
                if weight < instance.min:
                    return Cut(0, over_at)
                if not self._filled(queue, take, weight):
                    return Cut(0, over_at)
        return Cut(self._filled(queue, take, weight) or take)


class BestFit(DispatchPolicy):
    """The default: the instance that wastes least, the least loaded among equals.

    Of the free instances whose range holds the waiting weight, the one with the smallest ``max``;
    if more waits than any can take, the one with the largest; if less than any does, the one with
    the smallest ``min``.
    """

    @takes_the_only_one
    def choose(self, weight: int, free: Sequence[InstanceView]) -> InstanceView | None:
        """Choose as the class says; see `DispatchPolicy.choose`."""
        if len(free) == 1:
            return free[0]
        fitting = [i for i in free if i.min <= weight and (i.max is None or weight <= i.max)]
        if fitting:
            return min(fitting, key=lambda i: (_most(i), i.batches, i.index))
        possible = [i for i in free if i.min <= weight]
        if not possible:
            return min(free, key=lambda i: (i.min, i.batches, i.index))
        return min(possible, key=lambda i: (-_most(i), i.batches, i.index))


def _most(instance: InstanceView) -> float:
    return float("inf") if instance.max is None else instance.max
