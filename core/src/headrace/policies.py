"""When a batch is cut and which instance takes it: pure decisions, with no thread and no clock.

A policy is made once per node. On every arrival, release and ``wake_at`` the scheduler asks
``choose(total waiting weight, free)`` for an instance, then ``cut(queue, chosen, now)`` for a
batch; ``take = 0`` offers the next free instance. All a policy knows comes through its arguments,
so that a test or a simulator drives it with a clock of its own.

A class may be both, `BatchPolicy` and `DispatchPolicy`: named for both keys it is made once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from pydantic import Field, field_validator

from headrace._options import Options as _Options

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = [
    "BatchPolicy",
    "BestFit",
    "Cut",
    "DispatchPolicy",
    "Greedy",
    "InstanceView",
    "Queue",
    "Waiting",
]


class Waiting(Protocol):
    """A request that waits, as a policy sees it.

    Attributes:
        weight: Its ``request_size``.
        arrival, deadline: Times in seconds on the clock of ``now``; ``deadline`` None for none.
        priority: Greater goes first.
    """

    weight: int
    arrival: float
    deadline: float | None
    priority: int


class Queue(Protocol):
    """The requests that wait at a node, in the order of service.

    Attributes:
        weight: Sum of their weights.
        running: How many instances of the node run a batch now.
    """

    weight: int
    running: int

    def __len__(self) -> int: ...
    def __getitem__(self, index: int, /) -> Waiting: ...


class InstanceView(Protocol):
    """An instance, as a policy sees it.

    Attributes:
        index: Which of the node's instances it is, from 0.
        min, max: Its range in weights; ``max`` None for unbounded.
        device: Its device, None when unset.
        busy: Whether it runs a batch.
        running_weight: Weight of that batch, 0 when idle.
        batches: How many batches it has run.
    """

    index: int
    min: int
    max: int | None
    device: str | None

    @property
    def busy(self) -> bool:
        """Whether it runs a batch."""

    @property
    def running_weight(self) -> int:
        """Weight of that batch, 0 when idle."""

    @property
    def batches(self) -> int:
        """How many batches it has run."""


@dataclass(frozen=True)
class Cut:
    """What `BatchPolicy.cut` decides.

    Attributes:
        take: How many requests leave the head of the queue as one batch; 0 for none now.
        wake_at: When to ask again though nothing arrives or ends, in seconds on the clock of
            ``now``; None for never.
    """

    take: int
    wake_at: float | None = None


class BatchPolicy:
    """Decides when a batch is cut.

    Attributes:
        Options: Its options; their names are keys of the node.
        sends_when_idle: True when a request that finds a free instance, nobody waiting and nothing
            to wait for may skip the queue.
    """

    Options: ClassVar[type[_Options]] = _Options
    sends_when_idle: bool = False

    def __init__(self, options: Any = None) -> None:
        self.options: Any = type(self).Options() if options is None else options

    def cut(self, queue: Queue, instance: InstanceView, now: float) -> Cut:
        """Decide how many requests ``instance``, which is free, takes from ``queue`` now.

        Args:
            queue: The waiting requests, at least one.
            instance: A free instance.
            now: The time, in seconds.
        """
        raise TypeError(f"{type(self).__name__} has no cut")


class DispatchPolicy:
    """Decides which free instance takes the next batch.

    Attributes:
        Options: Its options; their names are keys of the node.
    """

    Options: ClassVar[type[_Options]] = _Options

    def __init__(self, options: Any = None) -> None:
        self.options: Any = type(self).Options() if options is None else options

    def choose(self, weight: int, free: Sequence[InstanceView]) -> InstanceView | None:
        """Choose one of ``free`` for a batch of at most ``weight``, or None to leave all idle.

        Args:
            weight: Sum of the weights of all waiting requests.
            free: The free instances, at least one.
        """
        raise TypeError(f"{type(self).__name__} has no choose")


class Greedy(BatchPolicy):
    """The default: an idle node sends at once, busy instances let batches grow.

    While another instance runs, a free one waits for company until its ``max`` is reached or the
    oldest request has waited ``batching_timeout``. With ``batch_sizes`` the largest size that is
    filled is cut; with ``pad`` the smallest that holds all that wait.
    """

    class Options(_Options):
        """Keys of the node that the policy reads."""

        batching_timeout: float = Field(
            0, ge=0, description="How long the oldest request waits for company, in milliseconds."
        )
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

    sends_when_idle = True

    def __init__(self, options: Any = None) -> None:
        super().__init__(options)
        self._linger = self.options.batching_timeout / 1000
        self._sizes: tuple[int, ...] = self.options.batch_sizes or ()
        self._pad: bool = self.options.pad

    def cut(self, queue: Queue, instance: InstanceView, now: float) -> Cut:
        """Cut as the class says; see `BatchPolicy.cut`."""
        take, weight, full = self._fits(queue, instance.max)
        if take == 0:
            return Cut(0)
        over_at = queue[0].arrival + self._linger if self._linger else now
        if not full and now < over_at:
            # A queue need not say what runs; then nothing does.
            if weight < instance.min or getattr(queue, "running", False):
                return Cut(0, over_at)
            if not self._filled(queue, take, weight):
                return Cut(0, over_at)
        return Cut(self._filled(queue, take, weight) or take)

    def _fits(self, queue: Queue, most: int | None) -> tuple[int, int, bool]:
        """Give count and weight of the longest head within ``most``, and if more cannot join."""
        if self._sizes:
            most = self._sizes[-1] if most is None else min(most, self._sizes[-1])
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


class BestFit(DispatchPolicy):
    """The default: the instance that wastes least, the least loaded among equals.

    Of the free instances whose range holds the waiting weight, the one with the smallest ``max``;
    if more waits than any can take, the one with the largest; if less than any does, the one with
    the smallest ``min``.
    """

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
