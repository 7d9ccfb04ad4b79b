"""One node on a virtual clock: its queue, its instances, and the configuration's own policies."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from headrace.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from headrace.policies import BatchPolicy, DispatchPolicy

__all__ = ["FAST_S", "OVER", "RUNS", "SUSTAINED", "WAITS", "Item", "NodeRules", "SimulatedNode"]

WAITS, RUNS, OVER = range(3)

FAST_S = 100e-6
"""If batches are shorter than this on average, a client's thread also runs batches of others, as in the scheduler."""

SUSTAINED = 8
"""Runners take over once batches were due at once this many times more often than an instance stayed free."""

WINDOW = 256
"""How many requests at the head of the queue a policy that picks sees, as in the scheduler."""

_SOONEST_S = 0.001
"""A policy that wants to be asked again at once is asked after this many seconds, as by the scheduler."""


class Item:
    """A request at a node, as a policy sees it.

    Attributes:
        arrival: When the item came to the node, in seconds.
        request: The request to which the item belongs.
        deadline: When the item fails unless it has ended, in seconds; None: never.
        state: `WAITS`, `RUNS` or `OVER`.
        trait: What a policy that picks compares; None for other policies.
        steps: How many steps it has yet to run, at a node with `Iterate`; 1 at all others.
        endless: Whether the limit of `Iterate` ends it then.
        lost: Whether the machine on which it ran has gone.
        reruns: How often it was run once more.
    """

    __slots__ = (
        *("arrival", "deadline", "endless", "lost", "request", "reruns", "state", "steps", "trait"),
    )

    weight = 1
    priority = 0

    def __init__(self, arrival: float, request: Any, deadline: float | None = None) -> None:
        self.arrival = arrival
        self.request = request
        self.deadline = deadline
        self.state = WAITS
        self.trait: Any = None
        self.steps, self.endless = 1, False
        self.lost, self.reruns = False, 0


class _Instance:
    """An instance, as a policy sees it; when its last batch ended (seconds), what it runs, and whether it is away."""

    __slots__ = (
        *("away", "batch", "batches", "busy", "device", "ended", "index", "max", "min"),
        "running_weight",
    )

    def __init__(self, index: int, low: int, high: int | None, device: str | None) -> None:
        self.index, self.min, self.max, self.device = index, low, high, device
        self.busy = False
        self.batches = self.running_weight = 0
        self.ended = -math.inf
        self.batch: Any = None
        self.away = False


class _Queue:
    """The items that wait, oldest first, as a policy sees them."""

    __slots__ = ("_again", "_head", "_items", "_node")

    def __init__(self, node: SimulatedNode) -> None:
        self._node = node
        self._again = 0  # how many at the front have run a step already
        self._items: list[Item] = []
        self._head = 0

    def __len__(self) -> int:
        return len(self._items) - self._head

    def __getitem__(self, index: int, /) -> Item:
        count = len(self._items) - self._head
        if not -count <= index < count:
            raise IndexError("queue index out of range")
        return self._items[index if index < 0 else self._head + index]

    @property
    def weight(self) -> int:
        """Sum of the weights; each item weighs 1."""
        return len(self._items) - self._head

    @property
    def running(self) -> int:
        """How many instances run."""
        return len(self._node.instances) - len(self._node.free)

    @property
    def free(self) -> int:
        """How many instances are free."""
        return len(self._node.free)

    @property
    def oldest(self) -> float:
        """When the oldest item arrived."""
        return self._items[self._head].arrival

    @property
    def open(self) -> bool:
        """Whether more items may come."""
        return not self._node.full()

    def push(self, item: Item) -> None:
        """Add an item at the end."""
        self._items.append(item)

    def push_again(self, item: Item) -> None:
        """Add an item that goes on before those that have not begun, behind those that go on as well."""
        self._items.insert(self._head + self._again, item)
        self._again += 1

    def remove(self, item: Item) -> None:
        """Remove an item from any position."""
        place = self._items.index(item, self._head)
        self._again -= place < self._head + self._again
        del self._items[place]

    def pick(self, places: Sequence[int]) -> list[Item]:
        """Take the items at these places."""
        if places == range(len(places)):
            return self.take(len(places))
        picked = [self._items[self._head + place] for place in places]
        self._again -= sum(place < self._again for place in places)
        for place in sorted(places, reverse=True):
            del self._items[self._head + place]
        return picked

    def take(self, count: int) -> list[Item]:
        """Take items from the front."""
        last = self._head + count
        taken = self._items[self._head : last]
        if last > 4096 and 2 * last > len(self._items):
            del self._items[:last]
            last = 0
        self._head = last
        self._again = max(0, self._again - count)
        return taken


class _Window:
    """The head of the queue, as a policy that picks sees it."""

    closing = False

    def __init__(self, queue: _Queue) -> None:
        self._queue = queue
        self.weight = min(len(queue), WINDOW)
        self.running, self.free = queue.running, queue.free
        self.oldest, self.open = queue.oldest, queue.open

    def __len__(self) -> int:
        return self.weight

    def __getitem__(self, index: int, /) -> Item:
        if not -self.weight <= index < self.weight:
            raise IndexError("queue index out of range")
        return self._queue[index + self.weight if index < 0 else index]


class _Joined:
    """A batch that has not begun and the queue behind it, as a policy sees them."""

    def __init__(self, items: list[Item], queue: _Queue) -> None:
        self._items, self._queue = items, queue
        self.weight = len(items) + len(queue)
        self.running, self.free = queue.running - 1, queue.free + 1
        self.oldest = items[0].arrival
        self.open = queue.open

    def __len__(self) -> int:
        return self.weight

    def __getitem__(self, index: int, /) -> Item:
        index += self.weight if index < 0 else 0
        if not 0 <= index < self.weight:
            raise IndexError("queue index out of range")
        count = len(self._items)
        return self._items[index] if index < count else self._queue[index - count]


@dataclass(frozen=True)
class NodeRules:
    """The keys of a node that the simulation needs.

    Attributes:
        name: The name of the node.
        instance_num: The number of instances.
        range: The smallest and the largest weight of a batch; None: unbounded.
        devices: The devices, which the instances take in turn.
        batch_sizes: The allowed sizes of a batch, ascending; empty: all.
        pad: Whether a batch that is too small is filled up with copies.
        lingers: Whether requests wait for further ones while another instance runs, even if an instance is free.
        timeout_s: The most seconds that a request may be at the node; None: no limit.
        owns_thread: Whether each instance has a thread of its own.
        share: For a node with ``or``, the share of requests that run there, while the others pass by; else None.
        elements: For a node with ``each``, the mean number of elements of a request; else None.
        reposts: The nodes to which the node's `Repost` sends requests, each with its share of the requests.
        limits: By such a node, how often a request may have been reposted until it goes on there.
        steps: For a node with `Iterate`, the mean number of steps of a request; else None.
        steps_most: How many steps `Iterate` lets a request run; then it fails.
    """

    name: str
    instance_num: int
    range: tuple[int, int | None]
    devices: tuple[str | None, ...] = (None,)
    batch_sizes: tuple[int, ...] = ()
    pad: bool = False
    lingers: bool = False
    timeout_s: float | None = None
    owns_thread: bool = False
    share: float | None = None
    elements: float | None = None
    reposts: tuple[tuple[str, float], ...] = ()
    limits: Mapping[str, int] = field(default_factory=dict)
    steps: float | None = None
    steps_most: int | None = None

    def size_run(self, size: int) -> int | None:
        """Return the size at which a batch of ``size`` runs, filled up with copies; None: it is refused."""
        low, high = self.range
        if high is not None and size > high:
            return None
        run = size
        if self.batch_sizes:
            fits = [allowed for allowed in self.batch_sizes if allowed >= size]
            if not fits or (fits[0] != size and not self.pad):
                return None
            run = fits[0]
        return None if run < low and not self.pad else max(run, low)


class SimulatedNode:
    """The state of a node; it decides like the scheduler, with the same policies.

    Args:
        rules: The keys of the node.
        batch, dispatch: The policies of the node.
        full: Returns whether the queue is full, so that no request may enter now.
        like: The sample requests, for a policy that picks.
    """

    def __init__(
        self,
        rules: NodeRules,
        batch: BatchPolicy,
        dispatch: DispatchPolicy,
        full: Any,
        like: Sequence[Mapping[str, Any]] = (),
    ) -> None:
        self.rules = rules
        self.full = full
        self._cut, self._choose = batch.cut, dispatch.choose
        self._names = (type(batch).__name__, type(dispatch).__name__)
        self.picks = batch.picks
        self._traits = [batch.trait({**one}) for one in like] if batch.picks else None
        marked = getattr(batch.cut, "takes_what_is_full", False)
        self._skips = marked and rules.range[1] == 1 and not self.picks
        self.instances = [
            _Instance(k, *rules.range, rules.devices[k % len(rules.devices)])
            for k in range(rules.instance_num)
        ]
        self.free = list(self.instances)
        self.queue = _Queue(self)
        self.wake_at: float | None = None
        self.asleep = 0
        self.pressure = 0
        self._mean_s = FAST_S
        self._skips_the_queue = (
            batch.sends_when_idle
            and not batch.picks
            and rules.timeout_s is None
            and rules.range[0] == 1
            and not rules.batch_sizes
            and not rules.owns_thread
        )

    @property
    def slow(self) -> bool:
        """Whether a batch takes longer than a switch of threads."""
        return self._mean_s >= FAST_S

    @property
    def crowded(self) -> bool:
        """Whether many clients have an answer but have not woken up yet."""
        return self.asleep > 2 * len(self.instances)

    def press(self) -> None:
        """Record that a batch was due as soon as an instance was free."""
        self.pressure = min(self.pressure + 1, 2 * SUSTAINED)

    def relax(self) -> None:
        """Record that an instance stays free."""
        self.pressure = max(self.pressure - 1, 0)

    def push(self, item: Item) -> None:
        """Let an item wait."""
        if self._traits is not None:
            item.trait = self._traits[item.request.like]
        self.queue.push(item)

    def claim(self) -> _Instance | None:
        """Give a free instance to a client that runs its own request past the queue, if it may."""
        free = self.free
        if not self._skips_the_queue or not free or len(self.queue) or self.crowded:
            return None
        if self.rules.lingers and len(free) < len(self.instances):
            return None
        instance = free.pop(0)
        instance.busy, instance.running_weight = True, 1
        return instance

    def joining(self, items: list[Item], instance: _Instance, now: float) -> list[Item]:
        """Add the items that arrived while the batch's thread woke up, as far as the policy would add them."""
        most = self.rules.range[1]
        if self.picks or not len(self.queue) or (most is not None and len(items) >= most):
            return []
        take = len(self._checked(_Joined(items, self.queue), instance, now)[0])
        if take <= len(items) or self.rules.size_run(take) is None:
            return []
        instance.running_weight = take
        return self.queue.take(take - len(items))

    def due(self, now: float) -> Iterator[tuple[_Instance, list[Item]]]:
        """Give each batch that is due with the instance that is to run it; set `wake_at`.

        Raises:
            InputError: A policy raised an error, chose an instance that was not offered, or cut a negative number.
        """
        self.wake_at = None
        offered = list(self.free)
        wake_at = None
        while offered and len(self.queue):
            places, instance, again_at = self._ask(offered, now)
            if instance is None:
                break
            if not places:
                offered.remove(instance)
                if again_at is not None:
                    again_at = again_at if again_at > now else now + _SOONEST_S
                    wake_at = again_at if wake_at is None else min(wake_at, again_at)
                continue
            items = self.queue.pick(places)
            if self.rules.size_run(len(items)) is not None:
                self.free.remove(instance)
                instance.busy, instance.running_weight = True, len(items)
            yield instance, items
            offered, wake_at = list(self.free), None
        self.wake_at = wake_at if len(self.queue) else None

    def _ask(
        self, offered: list[_Instance], now: float
    ) -> tuple[Sequence[int], _Instance | None, float | None]:
        try:
            instance: Any = self._choose(len(self.queue), offered)
        except Exception as error:
            raise self._failed(error) from error
        if instance is None:
            return (), None, None
        if not any(instance is one for one in offered):
            raise self._impossible(instance, 0)
        if self._skips:
            return range(1), instance, None
        seen: Any = _Window(self.queue) if self.picks else self.queue
        places, wake_at = self._checked(seen, instance, now)
        return places, instance, wake_at

    def _checked(
        self, queue: Any, instance: _Instance, now: float
    ) -> tuple[Sequence[int], float | None]:
        try:
            cut = self._cut(queue, instance, now)
            take: Any = cut.take
            if self.picks and isinstance(take, tuple):
                sound = len({*take}) == len(take) and all(0 <= one < len(queue) for one in take)
                places: Sequence[int] = take
            else:
                take = int(take)
                sound, places = take >= 0, range(min(take, len(queue)))
        except Exception as error:
            raise self._failed(error) from error
        if not sound:
            raise self._impossible(instance, take)
        return places, cut.wake_at

    def _failed(self, error: Exception) -> InputError:
        which = " and ".join(dict.fromkeys(self._names))
        return InputError(
            f"node {self.rules.name!r}: the policy {which} raised {type(error).__name__}: {error}"
        )

    def _impossible(self, instance: Any, take: Any) -> InputError:
        return InputError(
            f"node {self.rules.name!r}: the policy {' or '.join(self._names)} made an impossible decision: "
            f"instance {instance!r}, {take} requests"
        )

    def release(self, instance: _Instance, seconds: float, now: float) -> None:
        """Return an instance whose batch has ended now, after ``seconds``."""
        instance.ended = now
        self._mean_s += 0.25 * (min(seconds, 4 * self._mean_s) - self._mean_s)
        if not instance.batches:
            self._mean_s = seconds
        instance.busy, instance.running_weight = False, 0
        instance.batches += 1
        instance.batch = None
        if not instance.away:
            self.free.append(instance)

    def take_away(self, index: int) -> _Instance:
        """Let an instance have no machine any more."""
        instance = self.instances[index]
        instance.away = True
        if instance in self.free:
            self.free.remove(instance)
        return instance

    def bring_back(self, index: int) -> None:
        """Let an instance that was away be free, once the batch that it has lost has ended."""
        instance = self.instances[index]
        instance.away = False
        if not instance.busy:
            self.free.append(instance)
