"""What a policy is, and what it sees of a node."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, TypeVar

from headrace._options import Options as _Options

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


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
    """The requests that wait at a node, in the order of service: ``len(queue)``, ``queue[0]``.

    A fake queue of a test may have only a length, ``weight`` and items; the policies of this module
    then take it that nothing runs, one instance is free, ``queue[0]`` is the oldest and more may
    come.

    Attributes:
        weight: Sum of their weights.
        running: How many instances of the node run a batch now.
        free: How many instances are free, with the one that is offered.
        oldest: When the oldest arrived, whatever its priority, in seconds on the clock of ``now``.
        open: Whether more may come: not while the queue is full or the node is closed.
    """

    weight: int

    @property
    def running(self) -> int:
        """How many instances run a batch now."""

    @property
    def free(self) -> int:
        """How many instances are free."""

    @property
    def oldest(self) -> float:
        """When the oldest arrived."""

    @property
    def open(self) -> bool:
        """Whether more may come."""

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
        wake_weight: With ``take = 0``, the waiting weight from which on to ask again because
            requests arrive, which saves asking at each of them; None for at every arrival.
    """

    take: int
    wake_at: float | None = None
    wake_weight: int | None = field(default=None, compare=False)


_Cut = TypeVar("_Cut", bound="Callable[..., Cut]")
_Choose = TypeVar("_Choose", bound="Callable[..., InstanceView | None]")


def takes_what_is_full(cut: _Cut) -> _Cut:
    """Mark a `cut` that takes all that fits as soon as no more would fit, whatever else it waits for.

    So nobody needs to ask it for an instance that takes one request at a time.
    """
    cut.takes_what_is_full = True  # type: ignore[attr-defined]
    return cut


def takes_the_only_one(choose: _Choose) -> _Choose:
    """Mark a `choose` that gives the free instance where there is one alone, so that nobody needs to ask."""
    choose.takes_the_only_one = True  # type: ignore[attr-defined]
    return choose


class BatchPolicy:
    """Decides when a batch is cut.

    A subclass has `cut` and perhaps ``Options``, which `__init__` keeps as ``self.options``. It is
    asked under the lock of the node: it must be quick, change nothing but itself, and call nothing
    of the pipeline. What it raises fails all that wait with a ContractError. Whatever it takes, no
    batch leaves the range of its instance. ::

        class Pairs(BatchPolicy):  # two at a time, and what is left over after a second
            def cut(self, queue, instance, now):
                if len(queue) >= 2 or now >= queue[0].arrival + 1.0:
                    return Cut(min(len(queue), 2))
                return Cut(0, wake_at=queue[0].arrival + 1.0)

    Attributes:
        Options: Its options; their names are keys of the node.
        sends_when_idle: True when a request that finds a free instance, nobody waiting and nothing
            to wait for may skip the queue. It speaks of the `cut` that a class has: a subclass with
            a `cut` of its own says it again. With a dispatch policy of one's own nobody skips it.
    """

    Options: ClassVar[type[_Options]] = _Options
    sends_when_idle: bool = False

    def __init__(self, options: Any = None) -> None:
        self.options: Any = type(self).Options() if options is None else options

    def cut(self, queue: Queue, instance: InstanceView, now: float) -> Cut:
        """Decide how many requests ``instance``, which is free, takes from ``queue`` now.

        A batch that was cut and has not begun is asked about a second time, without `choose` before
        it: it stands at the head of ``queue``, and those after it that are taken, too, join it.

        Args:
            queue: The waiting requests, at least one.
            instance: A free instance.
            now: The time, in seconds.
        """
        raise TypeError(f"{type(self).__name__} has no cut")


class DispatchPolicy:
    """Decides which free instance takes the next batch.

    What is said of `BatchPolicy` about locks, errors and options holds here, too. ::

        class LeastLoaded(DispatchPolicy):
            def choose(self, weight, free):
                return min(free, key=lambda instance: instance.batches)

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
