"""What a policy sees of a node and decides, and the default policies. Pure, without any options.

`headrace.policies` has the same classes with the options that a configuration gives them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from headrace._run.contract.checked import largest_size


class Waiting(Protocol):
    """A waiting request, as a policy sees it.

    Attributes:
        weight: Its ``request_size``.
        arrival, deadline: Times in seconds on the clock of ``now``. ``deadline`` None for none.
        priority: Greater goes first.
        trait: The value of `BatchPolicy.trait` for the request. Only a policy with ``picks`` may
            read it.
    """

    weight: int
    arrival: float
    deadline: float | None
    priority: int
    trait: Any


class Queue(Protocol):
    """The waiting requests of a node, in the order of service: ``len(queue)``, ``queue[0]``.

    A fake queue of a test may have only a length, ``weight`` and items. The policies of this module
    then assume that no instance runs, one is free, ``queue[0]`` is the oldest request and more may
    come. A policy with ``picks`` sees the first 256 requests, with their length and weight.

    Attributes:
        weight: The sum of the weights of the requests.
        running: How many instances of the node run a batch now.
        free: How many instances are free, including the offered one.
        oldest: When the oldest request arrived, whatever its priority, in seconds on the clock of
            ``now``.
        open: Whether more requests may come: not while the queue is full or the pipeline closes.
        closing: Whether the pipeline closes: waiting for more requests is in vain then.
    """

    weight: int
    closing: bool

    @property
    def running(self) -> int:
        """How many instances run a batch now."""

    @property
    def free(self) -> int:
        """How many instances are free."""

    @property
    def oldest(self) -> float:
        """When the oldest request arrived."""

    @property
    def open(self) -> bool:
        """Whether more requests may come."""

    def __len__(self) -> int: ...
    def __getitem__(self, index: int, /) -> Waiting: ...


class InstanceView(Protocol):
    """An instance, as a policy sees it.

    Attributes:
        index: Its index among the instances of the node, from 0.
        min, max: Its range in weights. ``max`` None for unbounded.
        device: Its device, None when unset.
        busy: Whether it runs a batch.
        running_weight: The weight of that batch, 0 when idle.
        batches: How many batches it has run.
        wide: Whether it has all threads of the pipeline, and is free only while no other instance
            runs.
    """

    index: int
    min: int
    max: int | None
    device: str | None
    wide: bool

    @property
    def busy(self) -> bool:
        """Whether it runs a batch."""

    @property
    def running_weight(self) -> int:
        """The weight of that batch, 0 when idle."""

    @property
    def batches(self) -> int:
        """How many batches it has run."""


@dataclass(frozen=True)
class Cut:
    """The decision of `BatchPolicy.cut`.

    Attributes:
        take: How many requests leave the head of the queue as one batch. 0 for none now. From a
            policy with ``picks`` also a tuple of the places of the requests, from 0, in the order
            of the batch: ``(0, 3, 4)``.
        wake_at: When to ask again even if no request arrives and no batch ends, in seconds on the
            clock of ``now``. None for never.
        wake_weight: With ``take = 0``, arrivals are a reason to ask again only once the waiting
            weight has reached this, which saves calls. None for every arrival.
        reason: Why the batch is formed now, a word as ``"timer"``, which ``stats()`` counts. Empty:
            ``"full"`` where the instance takes no more, ``"closing"`` where the pipeline closes,
            else ``"idle"``, since an instance was free.
    """

    take: int | tuple[int, ...]
    wake_at: float | None = None
    wake_weight: int | None = field(default=None, compare=False)
    reason: str = field(default="", compare=False)


def part_of(waiting: int, free: int, least: int) -> int:
    """Return how many of the waiting requests a free instance takes, where the free ones share."""
    return max(-(-waiting // max(1, free)), least)


class BatchPolicy:
    """Decides when a batch is formed. See `headrace.policies.BatchPolicy`."""

    sends_when_idle: bool = False
    picks: bool = False

    def trait(self, request: Any) -> Any:
        """Return what a policy with ``picks`` compares of a request: a length, a shape, a cost.

        It is called once for each request that comes to the node, by the thread that sends it,
        without a lock and by several threads at a time. It must be quick and change nothing.

        Args:
            request: The dict as it comes to the node.

        Raises:
            RequestError: The request is refused with this error. Another exception is a
                ContractError for it.
        """
        return None

    def trait_again(self, request: Any) -> Any:
        """Return the trait of a request that a backend has queued again, which may cost less now.

        It is called as `cut` is. What `trait` refuses in a newcomer may be allowed here, since the
        request has run already. The default is `trait`.

        Args:
            request: The dict as it is now.

        Raises:
            RequestError: The request ends with this error.
        """
        return self.trait(request)

    def cut(self, queue: Queue, instance: InstanceView, now: float) -> Cut:
        """Decide how many requests ``instance``, which is free, takes from ``queue`` now.

        Args:
            queue: The waiting requests, at least one.
            instance: A free instance.
            now: The time, in seconds.
        """
        raise TypeError(f"{type(self).__name__} has no cut")


class DispatchPolicy:
    """Decides which free instance takes the next batch. See `headrace.policies.DispatchPolicy`."""

    def choose(self, weight: int, free: Sequence[InstanceView]) -> InstanceView | None:
        """Choose one of ``free`` for a batch of at most ``weight``, or None to leave all idle.

        Args:
            weight: Sum of the weights of all waiting requests.
            free: The free instances, at least one.
        """
        raise TypeError(f"{type(self).__name__} has no choose")


# The default policies, which a node has when it names no others.


class Sized(BatchPolicy):
    """Base of policies that take no more than an instance takes, in the sizes that the node allows.

    Args:
        batch_sizes: The weights that a batch may have. Empty for all.
        pad: Whether a batch that is too small is filled up.
    """

    def __init__(self, batch_sizes: Sequence[int] = (), *, pad: bool = False) -> None:
        self._sizes = tuple(sorted({*batch_sizes}))
        self._pad = pad

    def _most(self, instance: InstanceView) -> int | None:
        """Return the greatest weight of a batch on an instance; None for any."""
        return largest_size(self._sizes, instance.max) if self._sizes else instance.max

    def head(self, queue: Queue, instance: InstanceView) -> tuple[int, int, bool]:
        """Return count and weight of the longest head that fits, and whether no more fits."""
        most = self._most(instance)
        count, total = len(queue), queue.weight
        if most is None or total <= most:
            return count, total, total == most
        if total == count:  # each weighs 1
            return most, most, True
        weight = 0
        for take in range(count):
            heavier = weight + queue[take].weight
            if heavier > most:
                return take, weight, True
            weight = heavier
        return count, weight, weight >= most

    def shorten(self, queue: Queue, take: int, weight: int) -> int:
        """Return how many of ``take`` requests fill the largest batch size; 0 for none."""
        if not self._sizes or self._pad or weight in self._sizes:
            return take
        for shorter in range(take - 1, 0, -1):
            weight -= queue[shorter].weight
            if weight in self._sizes:
                return shorter
        return 0


class Greedy(Sized):
    """An idle node sends at once, and batches grow while instances are busy.

    See `headrace.policies.Greedy`.

    Args:
        batch_sizes, pad: See `Sized`.
        batching_timeout_ms: How long the oldest request waits for others.

    Attributes:
        spreads: Whether idle instances share what waits, and wait for no more than they need.
    """

    sends_when_idle = True
    spreads = False

    def __init__(
        self, batch_sizes: Sequence[int] = (), *, pad: bool = False, batching_timeout_ms: float = 0
    ) -> None:
        super().__init__(batch_sizes, pad=pad)
        self._linger = batching_timeout_ms / 1000
        # The node need not ask `cut` then: an instance takes what waits, or its part of that.
        self.takes_what_waits: bool = not (self._linger or self._sizes)

    def cut(self, queue: Queue, instance: InstanceView, now: float) -> Cut:
        """Cut as the class says; see `BatchPolicy.cut`."""
        take, weight, full = self.head(queue, instance)
        if take == 0:
            return Cut(0)
        reason = ""
        # A test's fake queue needs no `free`, `oldest`, `running` and `closing`: see `Queue`.
        if self.spreads and weight == take:
            take = weight = min(take, part_of(len(queue), getattr(queue, "free", 1), instance.min))
        if not full and self._linger:
            over_at = getattr(queue, "oldest", queue[0].arrival) + self._linger
            if now < over_at:
                closing = getattr(queue, "closing", False)
                if getattr(queue, "running", False) and not (closing or self.spreads):
                    return Cut(0, over_at, self._most(instance))
                if weight < instance.min and not (closing and self._pad):
                    return Cut(0, over_at)
                if not self.shorten(queue, take, weight):
                    return Cut(0, over_at)
            else:
                reason = "timer"
        return Cut(self.shorten(queue, take, weight) or take, reason=reason)


class BestFit(DispatchPolicy):
    """Choose the instance that fits best, and among equals the least loaded.

    See `headrace.policies.BestFit`.
    """

    def choose(self, weight: int, free: Sequence[InstanceView]) -> InstanceView | None:
        """Choose as the class says; see `DispatchPolicy.choose`."""
        if len(free) == 1:
            return free[0]
        fitting = [i for i in free if i.min <= weight and (i.max is None or weight <= i.max)]
        if fitting:
            return min(fitting, key=lambda i: (not _is_wide(i), _most(i), i.batches, i.index))
        possible = [i for i in free if i.min <= weight]
        if not possible:
            return min(free, key=lambda i: (i.min, i.batches, i.index), default=None)
        return min(possible, key=lambda i: (-_most(i), i.batches, i.index))


def _is_wide(instance: InstanceView) -> bool:
    return getattr(instance, "wide", False)  # an instance of a test need not say


def _most(instance: InstanceView) -> float:
    return float("inf") if instance.max is None else instance.max
