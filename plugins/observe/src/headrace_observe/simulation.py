"""A pipeline on a virtual clock: the policies of a configuration, with given times of batches."""

from __future__ import annotations

import heapq
import math
import random
from array import array
from bisect import bisect_left
from collections import Counter, deque
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from headrace_observe.measurement import Point
from headrace_observe.notes import Window
from headrace_observe.simulated_node import OVER, RUNS, WAITS, Item, SimulatedNode
from headrace_observe.simulated_threads import Batch, Request, Threads

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from headrace.policies import BatchPolicy, DispatchPolicy
    from headrace_observe.service_times import ServiceTimes
    from headrace_observe.simulated_cluster import Machine, SimulatedCluster
    from headrace_observe.simulated_node import NodeRules

__all__ = ["SIMULATED_CLOCK", "Line", "Simulation"]

SIMULATED_CLOCK = (
    "virtual: from the arrival of a request to the end of its last batch; threads take turns as in the real scheduler; "
    "switches of threads and the work of clients take only `between_ms` of the times, in an open loop also `wake_ms`, in a "
    "closed loop of one node also `turn_ms`; instances slow each other down as far as `beside` of the times says"
)

_LATE, _END, _ARRIVE, _WAKE, _AWAKE = range(5)
"""Kinds of events; events of the same time happen in this order."""


@dataclass(frozen=True)
class Line:
    """The nodes of a pipeline, and which nodes follow which.

    Attributes:
        nodes: The rules of each node.
        after: For each node, the names of the nodes after it.
        entry: The node at which requests enter.
        queue_size: The most requests that may wait, anywhere in the pipeline.
        queue_full: ``wait``, ``reject`` or ``shed_oldest``.
    """

    nodes: Mapping[str, NodeRules]
    after: Mapping[str, tuple[str, ...]]
    entry: str
    queue_size: int = 1024
    queue_full: str = "wait"


@dataclass
class _Seen:
    """The results so far."""

    ended: array[float] = field(default_factory=lambda: array("d"))
    latencies: array[float] = field(default_factory=lambda: array("d"))
    failed: list[tuple[float, str]] = field(default_factory=list)
    batches: dict[str, list[tuple[float, int]]] = field(default_factory=dict)
    busy: dict[str, float] = field(default_factory=dict)


class Simulation(Threads):
    """Requests through the nodes of a pipeline on a virtual clock.

    Args:
        line: The nodes.
        policies: The batch policy and the dispatch policy of each node, new objects; the simulation asks them as
            the real scheduler does.
        times: The times of batches of each node.
        seed: The seed of the random draws of times.
        wake_s: The mean time that a woken thread takes to go on, in seconds; times are drawn from an exponential
            distribution. With 0, those of an open loop take times from the spread that was measured at the entry node.
            The threads of a closed loop of one node then go on one after the other, and take the turns that were
            measured there: the interpreter runs one thread at a time. What was not measured takes no time.
        like: Sample requests, for policies that pick: each request is like one that is drawn from these.
        cluster: The machines on which instances live, and which fail; None for none. What ran on a machine that has
            gone fails, or runs once more at the head of the queue; the instance is built anew where there is room.
    """

    def __init__(
        self,
        line: Line,
        policies: Mapping[str, tuple[BatchPolicy, DispatchPolicy]],
        times: Mapping[str, ServiceTimes],
        seed: int = 0,
        wake_s: float = 0.0,
        like: Sequence[Mapping[str, Any]] = (),
        cluster: SimulatedCluster | None = None,
    ) -> None:
        super().__init__(random.Random(seed).random, wake_s)  # noqa: S311 - no secret
        self._line, self._times = line, times
        self._like = len(like)
        self._draw_like = random.Random(seed + 1).randrange  # noqa: S311 - no secret
        self._nodes = {
            name: SimulatedNode(rules, *policies[name], self._full, like)
            for name, rules in line.nodes.items()
        }
        before = Counter(name for names in line.after.values() for name in names)
        self._joins = {name: count for name, count in before.items() if count > 1}
        self._events: list[tuple[float, int, int, Any, Any]] = []
        self._number = self._waiting = self._running = self._to_send = 0
        self._outside: deque[Request] = deque()
        self._seen = _Seen(
            batches={name: [] for name in line.nodes}, busy=dict.fromkeys(line.nodes, 0.0)
        )
        self._closed = False
        self._last_sent = 0.0
        self._cluster = cluster
        self._of_cluster = 0  # how many of the events tell of machines alone
        self._homeless: deque[tuple[str, int]] = deque()
        self._builds: Counter[tuple[str, int]] = Counter()
        self._rerun = 0

    def closed_loop(self, clients: int, requests: int, warm_up: int) -> Point:
        """Simulate ``clients`` clients, each of which sends its next request when it has its answer.

        The figures leave out the first ``warm_up`` answers, and the requests that end after the last of ``requests``
        requests was sent.
        """
        self._closed, self._to_send = True, requests
        if len(self._nodes) == 1:
            self._turns_s = self._times[self._line.entry].turns_s
        for _ in range(min(clients, requests)):
            self._push(0.0, _ARRIVE)
        self._run(iter(()))
        return self._point({"kind": "closed", "clients": clients}, warm_up)

    def open_loop(self, arrivals: Iterable[float], about: dict[str, Any], warm_up: int) -> Point:
        """Simulate requests that arrive at given times, in seconds; the figures leave out the same as `closed_loop`'s.

        The thread that sends wakes up for each request, and the thread that waits for its answer at the end;
        latencies count from the given arrival time.
        """
        if not self._wake_s:
            self._wakes_s = self._times[self._line.entry].wakes_s
        self._run(iter(arrivals))
        return self._point(about, warm_up)

    # Events.

    def _push(self, at: float, kind: int, a: Any = None, b: Any = None) -> None:
        self._number += 1
        heapq.heappush(self._events, (at, kind, self._number, a, b))

    def _run(self, arrivals: Iterator[float]) -> None:
        events, pop = self._events, heapq.heappop
        first = next(arrivals, None)
        if first is not None:
            self._push(first + self._waking(), _ARRIVE, first)
        self._let_fail()
        while len(events) > self._of_cluster or (events and (self._waiting or self._outside)):
            now, kind, _, a, b = pop(events)
            if kind == _END:
                self._may_end(a, b, now)
            elif kind == _ARRIVE:
                self._send(now, a)
                following = next(arrivals, None)
                if following is not None:  # a late sender does not sleep
                    late = following < now
                    self._push(now if late else following + self._waking(), _ARRIVE, following)
            elif kind == _LATE:
                self._late(a, b, now)
            elif kind == _AWAKE:
                a(now)
            elif a.wake_at == now:
                a.wake_at = None
                self._look(a, now, b if b is not None and b.waits else None)
            self._wake(now)

    def _at(self, at: float, goes_on: Callable[[float], None]) -> None:
        self._push(at, _AWAKE, goes_on)

    def _send(self, now: float, meant: float | None = None) -> None:
        """Let a request arrive; in a closed loop it is the next request of a client, if one is left to send."""
        if self._closed:
            if not self._to_send:
                return
            self._to_send -= 1
        self._last_sent = now
        sent = now if meant is None else meant
        like = self._draw_like(self._like) if self._like else 0
        self._enter(Request(sent, called=self._closed, like=like), now)

    # A request in the pipeline.

    def _full(self) -> bool:
        return self._waiting >= self._line.queue_size

    def _enter(self, request: Request, now: float) -> None:
        if self._outside or self._full():
            if self._line.queue_full == "wait":
                self._outside.append(request)
                return
            if self._line.queue_full == "reject" or not len(self._nodes[self._line.entry].queue):
                self._fail(request, "overloaded", now)
                return
            (oldest,) = self._nodes[self._line.entry].queue.take(1)
            self._starts(oldest)
            self._fail(oldest.request, "overloaded", now)
        self._join(self._line.entry, request, now, request.sent, request)

    def _join(
        self, name: str, request: Request, now: float, arrival: float, me: Request | None
    ) -> None:
        node = self._nodes[name]
        if not request.called:
            me = None
        if node.rules.elements is not None:
            self._join_each(node, request, now, arrival, me)
            return
        instance = node.claim() if me is not None else None
        if instance is not None:
            item = self._item(node, arrival, request, None)
            item.state = RUNS
            request.open += 1
            self._start(node, Batch(instance, [item], me), now)
        else:
            self._put(node, request, arrival)
            self._look(node, now, me)

    def _join_each(
        self, node: SimulatedNode, request: Request, now: float, arrival: float, me: Request | None
    ) -> None:
        """Let the elements of a request join a node; their number is the mean, rounded up or down at random."""
        name, mean = node.rules.name, node.rules.elements or 0.0
        count = int(mean) + (self._draw() < mean % 1)
        if not count:
            request.open += 1
            self._left(name, request, now, me)
            return
        request.elements = {**(request.elements or {}), name: count}
        for _ in range(count):
            self._put(node, request, arrival)
        self._look(node, now, me)

    def _put(self, node: SimulatedNode, request: Request, arrival: float) -> None:
        request.open += 1
        self._waits(request)
        limit = node.rules.timeout_s
        item = self._item(node, arrival, request, None if limit is None else arrival + limit)
        if item.deadline is not None:
            self._push(item.deadline, _LATE, node, item)
        node.push(item)

    def _waits(self, request: Request) -> None:
        request.waits += 1
        self._waiting += request.waits == 1

    def _item(
        self, node: SimulatedNode, arrival: float, request: Request, deadline: float | None
    ) -> Item:
        """Make the item of a request; at a node with `Iterate`, steps are drawn from a geometric distribution."""
        item, mean, most = Item(arrival, request, deadline), node.rules.steps, node.rules.steps_most
        if mean is not None and mean > 1:
            item.steps = 1 + int(math.log(1 - self._draw()) / math.log(1 - 1 / mean))
            if most is not None and item.steps > most:
                item.steps, item.endless = most, True
        return item

    def _again(self, node: SimulatedNode, item: Item, now: float) -> bool:
        if item.lost:
            self._was_lost(node, item, now)
            return True
        item.steps -= 1
        if item.steps > 0:
            item.state = WAITS
            self._waits(item.request)
            node.queue.push_again(item)
        elif item.endless:
            item.state = OVER
            if item.request.open > 0:
                self._fail(item.request, "limit", now)
        else:
            return False
        return True

    def _let_in(self, inside: SimulatedNode, now: float) -> None:
        """Admit requests that wait for room, the oldest first; ``inside`` is the node that is being dispatched."""
        entry, came = self._nodes[self._line.entry], False
        while self._outside and not self._full():
            request, came = self._outside.popleft(), True
            self._put(entry, request, request.sent)
        if came and entry is not inside:
            self._look(entry, now, None)

    def _starts(self, item: Item) -> None:
        """Record that an item of a request does not wait any more."""
        item.state = RUNS
        item.request.waits -= 1
        self._waiting -= item.request.waits == 0

    def _begun(self, items: list[Item], node: SimulatedNode, now: float) -> None:
        for item in items:
            self._starts(item)
        self._let_in(node, now)

    def _start(self, node: SimulatedNode, batch: Batch, now: float) -> None:
        name, count = node.rules.name, len(batch.items)
        size = node.rules.size_run(count) or count
        batch.seconds = self._times[name].seconds(size, self._draw(), self._running)
        self._running += 1
        self._seen.batches[name].append((now, count))
        self._seen.busy[name] += batch.seconds
        batch.ends = now + self._between(name, batch, now) + batch.seconds
        batch.instance.batch = batch
        self._push(batch.ends, _END, node, batch)
        if batch.instance.away:  # the machine has gone before it began
            self._lose(node, batch, now)

    # Machines.

    def _on_cluster(self, at: float, happens: Callable[[float], None]) -> None:
        """Let something happen to machines; the simulation ends where nothing else is left."""

        def event(now: float) -> None:
            self._of_cluster -= 1
            happens(now)

        self._of_cluster += 1
        self._at(at, event)

    def _let_fail(self) -> None:
        for machine in self._cluster.machines if self._cluster is not None else ():
            self._will_fail(machine, 0.0)

    def _may_end(self, node: SimulatedNode, batch: Batch, now: float) -> None:
        """End a batch, unless its machine has gone meanwhile."""
        if batch.ends == now:
            self._running -= 1
            self._ended(node, batch, now)

    def _will_fail(self, machine: Machine, now: float) -> None:
        assert self._cluster is not None  # noqa: S101 - for the type
        after_s = self._cluster.until_failure_s(machine, self._draw)
        if after_s is not None:
            self._on_cluster(now + after_s, partial(self._machine_fails, machine))

    def _machine_fails(self, machine: Machine, now: float) -> None:
        cluster = self._cluster
        assert cluster is not None  # noqa: S101 - for the type
        for name, index in cluster.fail(machine):
            node = self._nodes[name]
            self._builds[name, index] += 1
            instance = node.take_away(index)
            if instance.batch is not None:
                self._lose(node, instance.batch, now)
            away_s = cluster.asked[name].away_s
            self._on_cluster(now + away_s, partial(self._seek_machine, name, index))
        if machine.kind.repair_s is not None:
            self._on_cluster(now + machine.kind.repair_s, partial(self._machine_back, machine))

    def _machine_back(self, machine: Machine, now: float) -> None:
        assert self._cluster is not None  # noqa: S101 - for the type
        self._cluster.repair(machine)
        self._will_fail(machine, now)
        for _ in range(len(self._homeless)):
            self._seek_machine(*self._homeless.popleft(), now)

    def _seek_machine(self, name: str, index: int, now: float) -> None:
        """Build an instance anew where there is room; else it waits for a machine."""
        cluster = self._cluster
        assert cluster is not None  # noqa: S101 - for the type
        if not cluster.place(name, index):
            self._homeless.append((name, index))
            return
        build_s = cluster.asked[name].build_s
        self._builds[name, index] += 1
        number = self._builds[name, index]
        self._on_cluster(now + build_s, partial(self._built, name, index, number))

    def _built(self, name: str, index: int, number: int, now: float) -> None:
        if self._builds[name, index] == number:  # else its machine has gone while it was built
            node = self._nodes[name]
            node.bring_back(index)
            self._look(node, now, None)

    def _lose(self, node: SimulatedNode, batch: Batch, now: float) -> None:
        """Let a batch end as lost, once it is seen that its machine has gone."""
        assert self._cluster is not None  # noqa: S101 - for the type
        for item in batch.items:
            item.lost = True
        batch.ends = now + self._cluster.asked[node.rules.name].away_s
        self._push(batch.ends, _END, node, batch)

    def _was_lost(self, node: SimulatedNode, item: Item, now: float) -> None:
        """Run an item of a lost batch once more, at the head of the queue, or fail it."""
        assert self._cluster is not None  # noqa: S101 - for the type
        item.lost = False
        if item.reruns < self._cluster.asked[node.rules.name].retries:
            item.reruns += 1
            self._rerun += 1
            item.state = WAITS
            self._waits(item.request)
            node.queue.push_again(item)
        else:
            item.state = OVER
            if item.request.open > 0:
                self._fail(item.request, "instance_lost", now)

    def _between(self, name: str, batch: Batch, now: float) -> float:
        """Draw the time, in seconds, that passes before a batch that waited for its instance begins."""
        spread = self._times[name].between_s
        waited = batch.instance.ended == now and batch.items[0].arrival < now
        return spread[int(self._draw() * len(spread))] if waited and spread else 0.0

    def _refuse(self, node: SimulatedNode, items: list[Item], now: float) -> None:
        for item in items:
            self._starts(item)
            item.state = OVER
            self._fail(item.request, "batch_range", now)
        self._let_in(node, now)

    def _late(self, node: SimulatedNode, item: Item, now: float) -> None:
        """Fail a request whose time at a node is over; if its batch runs, it goes on."""
        if item.state == OVER:
            return
        if item.state == WAITS:
            node.queue.remove(item)
            self._starts(item)
        item.state = OVER
        if item.request.open <= 0:
            return  # the request has failed at another node, or because of another element
        self._fail(item.request, "deadline", now)
        self._let_in(node, now)
        self._look(node, now, None)

    def _wake_at(self, node: SimulatedNode, at: float, waker: Request | None) -> None:
        self._push(at, _WAKE, node, waker)

    def _goes_on(self, name: str) -> bool:
        return bool(self._line.after[name] or self._nodes[name].rules.reposts)

    def _left(
        self, name: str, request: Request, now: float, me: Request | None, count: int = 1
    ) -> None:
        if request.open <= 0:
            return  # the request has failed at another node meanwhile
        request.open -= count
        if request.elements and request.elements.get(name, 0):
            request.elements[name] -= count
            if request.elements[name]:
                return  # other elements of the request have not ended
        self._pass_on(name, request, now, me)
        if request.open:
            return
        if request.called:
            self._over(request, now)
            self._answered(request, now, me)
        else:
            self._awake(partial(self._over, request), now)

    def _over(self, request: Request, now: float) -> None:
        self._seen.ended.append(now)
        self._seen.latencies.append(now - request.sent)

    def _pass_on(self, name: str, request: Request, now: float, me: Request | None) -> None:
        reposts = self._nodes[name].rules.reposts
        drawn = self._draw() if reposts else 1.0
        for target, part in reposts:
            if drawn < part:
                request.reposted += 1
                if request.reposted > self._nodes[name].rules.limits.get(target, 100):
                    self._fail(request, "limit", now)
                    return
                self._join(target, request, now, now, me)
                return
            drawn -= part
        for after in self._line.after[name]:
            if after in self._joins:
                request.missing = request.missing or dict(self._joins)
                request.missing[after] -= 1
                if request.missing[after]:
                    request.open += 1  # the request waits at the join for its other branches
                    continue
                request.open -= self._joins[after] - 1
            share = self._nodes[after].rules.share
            if share is None or self._draw() < share:
                self._join(after, request, now, now, me)
            else:
                self._pass_on(after, request, now, me)

    def _fail(self, request: Request, code: str, now: float) -> None:
        request.open = -(10**9)
        self._seen.failed.append((now, code))
        self._answered(request, now, None)

    def _answered(self, request: Request, now: float, me: Request | None) -> None:
        """Let the client of an answered request send its next one: now if it runs, else when it has woken up."""
        if request.called and me is request:
            self._send(now)
        elif request.called:
            self.ready.append(self._send)

    # The figures.

    def _point(self, about: dict[str, Any], warm_up: int) -> Point:
        seen, end = self._seen, self._last_sent
        start = seen.ended[warm_up - 1] if 0 < warm_up <= len(seen.ended) else 0.0
        start = min(start, end)
        first, last = bisect_left(seen.ended, start), bisect_left(seen.ended, end)
        if last <= first:  # with so few requests all ended after the last one was sent
            first, last = 0, len(seen.ended)
            start, end = 0.0, seen.ended[-1] if seen.ended else end
        window = Window(start, end, seen.latencies[first:last])
        window.failed.update(code for at, code in seen.failed if start <= at <= end)
        sizes = {
            name: Counter(size for at, size in batches if start <= at <= end)
            for name, batches in seen.batches.items()
        }
        over = max([*seen.ended[-1:], self._last_sent])
        busy = {
            name: round(seen.busy[name] / (over * len(node.instances)), 4) if over else 0.0
            for name, node in self._nodes.items()
        }
        extrapolated = {
            name: sorted(self._times[name].extrapolated)
            for name in self._nodes
            if self._times[name].extrapolated
        }
        more: dict[str, Any] = {
            "simulated": True,
            "utilisation": busy,
            "extrapolated": extrapolated,
        }
        if self._cluster is not None:
            machines, lost = len(self._cluster.machines), self._cluster.lost
            more["cluster"] = {"machines": machines, "machines_lost": lost, "rerun": self._rerun}
        return Point(about, SIMULATED_CLOCK, window, nodes=sizes, more=more)
