"""Batch policies without a pipeline: a queue by hand, a node on a virtual clock, and the rules that every policy keeps."""

from __future__ import annotations

import copy
import heapq
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Any, ClassVar

from headrace.errors import RequestError
from headrace.policies import BatchPolicy, Cut

__all__ = ["Played", "PolicyConformance", "PolicyQueue", "Sent", "play"]

WINDOW = 256
"""How many requests a policy with ``picks`` sees, as in a pipeline."""

_ASKED_AT_MOST = 100_000


def _must(holds: object, problem: str) -> None:
    if not holds:
        raise AssertionError(problem)


@dataclass
class Sent:
    """A request that a test sends.

    Attributes:
        at: When it arrives, in seconds.
        request: The dict. ``request_size`` is its weight, else 1.
        priority: Greater goes first.
    """

    at: float
    request: dict[str, Any]
    priority: int = 0


@dataclass(eq=False)
class _Waiting:
    """See `headrace.policies.Waiting`; ``trait`` is there for a policy with ``picks`` alone."""

    request: dict[str, Any]
    weight: int
    arrival: float
    priority: int
    deadline: float | None = None


class PolicyQueue:
    """A queue as a policy sees it, and no more than that: see `headrace.policies.Queue`.

    Args:
        policy: The policy that is to see it, whose ``trait`` is asked if it picks.
        sent: The requests that wait, in any order.

    Attributes:
        items: The requests in the order of service.
        running, free, open, closing: See `headrace.policies.Queue`. A test sets them.
    """

    def __init__(self, policy: BatchPolicy, sent: Sequence[Sent] = ()) -> None:
        self._policy = policy
        self._arrivals: list[float] = []
        self.items: list[Any] = []
        self.running, self.free, self.open, self.closing = 0, 1, True, False
        for request in sent:
            self.push(request)

    def push(self, sent: Sent) -> None:
        """Let a request in behind those of its priority.

        Raises:
            RequestError: The policy refuses it.
        """
        weight = sent.request.get("request_size", 1)
        item = _Waiting(sent.request, weight, sent.at, sent.priority)
        if self._policy.picks:
            item.trait = self._policy.trait(sent.request)  # type: ignore[attr-defined]
        behind = [k for k, other in enumerate(self.items) if other.priority < sent.priority]
        self.items.insert(behind[0] if behind else len(self.items), item)

    @property
    def seen(self) -> list[Any]:
        """The requests that the policy sees."""
        return self.items[:WINDOW] if self._policy.picks else self.items

    @property
    def weight(self) -> int:
        """The sum of the weights of the requests that the policy sees."""
        return sum(item.weight for item in self.seen)

    @property
    def oldest(self) -> float:
        """When the oldest request arrived."""
        return float(min(item.arrival for item in self.items))

    def __len__(self) -> int:
        return len(self.seen)

    def __getitem__(self, index: int, /) -> Any:
        return self.seen[index]

    def take(self, cut: Cut) -> list[Any]:
        """Take what a cut says out of the queue, and return it in the order of the batch.

        Raises:
            AssertionError: A pipeline would not accept the cut.
        """
        places = places_of(cut, self._policy, len(self))
        taken = [self.items[place] for place in places]
        self.items = [
            item for item in self.items if not any(item is taken_item for taken_item in taken)
        ]
        return taken


def places_of(cut: Any, policy: BatchPolicy, count: int) -> Sequence[int]:
    """Return the places among ``count`` requests that a cut takes; AssertionError for what no pipeline accepts."""
    _must(isinstance(cut, Cut), f"cut gives a Cut, got {cut!r}")
    if isinstance(cut.take, tuple):
        _must(policy.picks, f"{cut!r} names places, and the policy does not say picks = True")
        known = [place for place in cut.take if isinstance(place, int) and 0 <= place < count]
        _must(len({*known}) == len(cut.take), f"{cut!r} names no places of {count} requests")
        return cut.take
    _must(isinstance(cut.take, int), f"{cut!r} takes no number of requests")
    _must(cut.take >= 0, f"{cut!r} takes less than nothing")
    return range(min(cut.take, count))


@dataclass
class _Instance:
    """See `headrace.policies.InstanceView`."""

    index: int
    min: int
    max: int | None
    device: str | None = None
    busy: bool = False
    running_weight: int = 0
    batches: int = 0
    wide: bool = False


@dataclass
class Played:
    """What became of the requests of `play`.

    Attributes:
        batches: The time at which each batch began, in seconds, and its requests, in the order of the batch.
        refused: The requests that the policy refused as they came, each with the error.
        left: The requests that still wait.
    """

    batches: list[tuple[float, list[dict[str, Any]]]] = field(default_factory=list)
    refused: list[tuple[dict[str, Any], RequestError]] = field(default_factory=list)
    left: list[dict[str, Any]] = field(default_factory=list)


def play(
    policy: BatchPolicy,
    sent: Sequence[Sent],
    *,
    runs_s: float = 1.0,
    instance_num: int = 1,
    min: int = 1,  # noqa: A002 - the names of the keys of a node
    max: int | None = None,  # noqa: A002
    closes: bool = False,
) -> Played:
    """Let a node with this policy serve requests, on a virtual clock.

    Args:
        policy: The policy.
        sent: The requests, in the order of their times.
        runs_s: How long each batch takes, in seconds.
        instance_num: How many instances there are.
        min: The least weight that an instance takes.
        max: The greatest weight that an instance takes. None for any.
        closes: Whether the node begins to close with the last request, so that it waits for no company.

    Raises:
        AssertionError: A decision that no pipeline accepts, a batch above ``max``, or a policy that asks to be asked
            again and again.
    """
    played = Played()
    queue: Any = PolicyQueue(policy)
    free = [_Instance(index, min, max) for index in range(instance_num)]
    ends: list[tuple[float, int, _Instance]] = []
    coming, now, wake_at, calls = list(sent), 0.0, inf, 0
    while coming or ends or wake_at < inf:
        now = _next_time(now, coming, ends, wake_at)
        while coming and coming[0].at <= now:
            _arrive(queue, coming.pop(0), played)
        while ends and ends[0][0] <= now:
            instance = heapq.heappop(ends)[2]
            instance.busy, instance.running_weight = False, 0
            free.append(instance)
        queue.closing = closes and not coming
        queue.open = not queue.closing
        wake_at = inf
        for instance in sorted(free, key=lambda free_instance: free_instance.index):
            if not queue.items:
                break
            calls += 1
            _must(calls < _ASKED_AT_MOST, f"{type(policy).__name__} wants to be asked without end")
            queue.running, queue.free = len(ends), len(free)
            cut = policy.cut(queue, instance, now)
            taken = queue.take(cut)
            if not taken:
                again = inf if cut.wake_at is None else cut.wake_at
                wake_at = _least(wake_at, again if again > now else now + 0.001)
                continue
            instance.running_weight = sum(item.weight for item in taken)
            _must(max is None or instance.running_weight <= max, f"{cut!r} is above max = {max}")
            instance.busy, instance.batches = True, instance.batches + 1
            free.remove(instance)
            heapq.heappush(ends, (now + runs_s, instance.index, instance))
            played.batches.append((now, [item.request for item in taken]))
            wake_at = now if free and queue.items else inf  # a batch has begun: all are asked again
            break
    played.left = [item.request for item in queue.items]
    return played


def _arrive(queue: PolicyQueue, sent: Sent, played: Played) -> None:
    try:
        queue.push(sent)
    except RequestError as error:
        played.refused.append((sent.request, error))


def _least(value: float, other: float) -> float:
    return min(other, value)


def _next_time(
    now: float, coming: Sequence[Sent], ends: Sequence[tuple[float, int, _Instance]], wake: float
) -> float:
    times = [wake, *(request.at for request in coming[:1]), *(end[0] for end in ends[:1])]
    return max(now, min(times))


class PolicyConformance:
    """The rules of `headrace.policies.BatchPolicy`, as tests of pytest.

    A subclass, whose name begins with ``Test``, says which policy, and makes requests that it takes::

        class TestAlike(PolicyConformance):
            policy = Alike
            options = {"spread": 0.5}

            def make_requests(self, count):
                return [{"data": "x" * (1 + k % 7)} for k in range(count)]

    Attributes:
        policy: The class.
        options: Its options, those of a node among them.
        max: The greatest weight of a batch in these tests.
    """

    policy: ClassVar[type[BatchPolicy]]
    options: ClassVar[Mapping[str, Any]] = {}
    max: ClassVar[int] = 4

    def make_requests(self, count: int) -> list[dict[str, Any]]:
        """Return requests that a node with the policy takes; they should differ where the policy tells them apart."""
        return [{"data": number} for number in range(count)]

    def make_policy(self) -> BatchPolicy:
        """Return a new policy."""
        return self.policy(self.policy.Options(**self.options))

    def _sent(self, count: int, apart_s: float = 0.0) -> list[Sent]:
        requests = self.make_requests(count)
        _must(len(requests) == count, f"make_requests({count}) made {len(requests)}")
        return [Sent(place * apart_s, request) for place, request in enumerate(requests)]

    def test_it_decides_the_same_twice_and_changes_no_queue(self) -> None:
        """Two policies, and one that is asked twice, decide the same of the same."""
        for count in (1, 3, 9):
            for running in (0, 1):
                first, other = self.make_policy(), self.make_policy()
                queue: Any = PolicyQueue(first, self._sent(count))
                queue.running = running
                before = list(queue.items)
                instance = _Instance(0, 1, self.max)
                cuts = [policy.cut(queue, instance, 0.0) for policy in (first, first, other)]
                _must(queue.items == before, "cut changed the queue")
                _must(cuts[0] == cuts[1] == cuts[2], "cut gave different answers to one question")

    def test_a_trait_changes_no_request_and_is_the_same_twice(self) -> None:
        """The trait belongs to the request alone."""
        policy = self.make_policy()
        if policy.picks:
            for request in self.make_requests(9):
                before = copy.deepcopy(request)
                first, second = policy.trait(request), policy.trait(request)
                _must(first == second, f"trait gave {first!r} and {second!r} of one request")
                _must(repr(request) == repr(before), "trait changed the request")

    def test_every_request_is_served_once(self) -> None:
        """However they come, and when no more come, all are in one batch each."""
        for instances in (1, 2):
            for apart_s in (0.0, 0.3, 3.0):
                sent = self._sent(40, apart_s)
                played = play(
                    self.make_policy(),
                    sent,
                    instance_num=instances,
                    max=self.max,
                    closes=True,
                )
                served = [id(request) for _, batch in played.batches for request in batch]
                ids = [id(request.request) for request in sent]
                _must(sorted(served) == sorted(ids), f"left in the queue: {played.left!r}")

    def test_weights_stay_within_the_instance(self) -> None:
        """A batch weighs ``max`` at most, whatever its requests weigh."""
        sent = self._sent(24)
        for place, request in enumerate(sent):
            request.request["request_size"] = 1 + place % 3
        played = play(self.make_policy(), sent, max=self.max, closes=True)
        _must(sum(len(batch) for _, batch in played.batches) == len(sent), "some were left")

    def test_a_long_queue_is_served_to_its_end(self) -> None:
        """Also where more wait than a policy that picks sees."""
        played = play(self.make_policy(), self._sent(3 * WINDOW), max=self.max, closes=True)
        _must(
            sum(len(batch) for _, batch in played.batches) == 3 * WINDOW,
            "not every request was served",
        )
