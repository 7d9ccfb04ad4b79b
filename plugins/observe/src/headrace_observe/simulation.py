"""A pipeline on a virtual clock: the policies of a configuration, with given times of batches."""

from __future__ import annotations

import heapq
import random
from array import array
from bisect import bisect_left
from collections import Counter, deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from headrace_observe.measurement import Point
from headrace_observe.notes import Window
from headrace_observe.simulated_node import Item, SimulatedNode

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from headrace.policies import BatchPolicy, DispatchPolicy
    from headrace_observe.service_times import ServiceTimes
    from headrace_observe.simulated_node import NodeRules

__all__ = ["SIMULATED_CLOCK", "Line", "Simulation"]

SIMULATED_CLOCK = (
    "virtual: from the arrival of a request to the end of its last batch; threads, hand-overs and the "
    "work of clients take no time, and instances do not slow each other down"
)

_END, _ARRIVE, _LOOK, _WAKE = range(4)
"""What happens at the same time happens in this order."""


@dataclass(frozen=True)
class Line:
    """The nodes of a pipeline and what comes after each.

    Attributes:
        nodes: Per node its rules.
        after: Per node the names of those after it.
        entry: Where requests enter.
        queue_size: How many that entered may wait.
        queue_full: ``wait``, ``reject`` or ``shed_oldest``.
    """

    nodes: Mapping[str, NodeRules]
    after: Mapping[str, tuple[str, ...]]
    entry: str
    queue_size: int = 1024
    queue_full: str = "wait"


class _Request:
    """One request on its way."""

    __slots__ = ("missing", "open", "sent", "together", "waits")

    def __init__(self, sent: float, together: bool = False) -> None:
        self.sent = sent
        self.together = together
        self.missing: dict[str, int] | None = None
        self.open = 0  # nodes that it is at; none once it has failed
        self.waits = 0  # of these, where it waits


@dataclass
class _Seen:
    """What has come out so far."""

    ended: array[float] = field(default_factory=lambda: array("d"))
    latencies: array[float] = field(default_factory=lambda: array("d"))
    failed: list[tuple[float, str]] = field(default_factory=list)
    batches: dict[str, list[tuple[float, int]]] = field(default_factory=dict)
    busy: dict[str, float] = field(default_factory=dict)


class Simulation:
    """Requests through the nodes of a pipeline on a virtual clock.

    Args:
        line: The nodes.
        policies: Per node its two policies, new objects; they are asked as by the real scheduler.
        times: Per node the times of its batches.
        seed: Of the times that are drawn.
    """

    def __init__(
        self,
        line: Line,
        policies: Mapping[str, tuple[BatchPolicy, DispatchPolicy]],
        times: Mapping[str, ServiceTimes],
        seed: int = 0,
    ) -> None:
        self._line, self._times = line, times
        self._nodes = {
            name: SimulatedNode(rules, *policies[name], self._full)
            for name, rules in line.nodes.items()
        }
        before = Counter(name for names in line.after.values() for name in names)
        self._joins = {name: count for name, count in before.items() if count > 1}
        self._draw = random.Random(seed).random  # noqa: S311 - no secret
        self._events: list[tuple[float, int, int, Any, Any, Any]] = []
        self._number = 0
        self._waiting = 0
        self._outside: deque[_Request] = deque()
        self._seen = _Seen(
            batches={name: [] for name in line.nodes}, busy=dict.fromkeys(line.nodes, 0.0)
        )
        self._closed = False
        self._to_send = 0
        self._last_sent = 0.0

    def closed_loop(self, clients: int, requests: int, warm_up: int) -> Point:
        """Let ``clients`` each send the next of ``requests`` when the last one is answered.

        The figures leave out what ended with the first ``warm_up`` answers, and after the last was
        sent.
        """
        self._closed, self._to_send = True, requests
        for _ in range(min(clients, requests)):
            self._send_at(0.0)
        self._run(iter(()))
        return self._point({"kind": "closed", "clients": clients}, warm_up)

    def open_loop(self, arrivals: Iterable[float], about: dict[str, Any], warm_up: int) -> Point:
        """Let requests arrive at their times, in seconds; see `closed_loop` for the figures."""
        self._run(iter(arrivals))
        return self._point(about, warm_up)

    # Events.

    def _push(self, at: float, kind: int, *payload: Any) -> None:
        self._number += 1
        a, b, c = (*payload, None, None, None)[:3]
        heapq.heappush(self._events, (at, kind, self._number, a, b, c))

    def _send_at(self, at: float, together: bool = False) -> None:
        if self._to_send:
            self._to_send -= 1
            self._push(at, _ARRIVE, together)

    def _run(self, arrivals: Any) -> None:
        events, pop = self._events, heapq.heappop
        first = next(arrivals, None)
        if first is not None:
            self._push(first, _ARRIVE)
        while events:
            now, kind, _, a, b, c = pop(events)
            if kind == _END:
                a.release(b)
                self._dispatch(a, now)
                for item in c:
                    self._left(a.rules.name, item.request, now, len(c) > 1)
            elif kind == _ARRIVE:
                self._last_sent = now
                self._enter(_Request(now, bool(a)), now)
                following = next(arrivals, None)
                if following is not None:
                    self._push(following, _ARRIVE)
            elif kind == _LOOK or a.wake_at == now:
                self._dispatch(a, now)

    # A request on its way.

    def _full(self) -> bool:
        return self._waiting >= self._line.queue_size

    def _enter(self, request: _Request, now: float) -> None:
        if self._outside or self._full():
            if self._line.queue_full == "wait":
                self._outside.append(request)
                return
            if self._line.queue_full == "reject" or not len(self._nodes[self._line.entry].queue):
                self._fail(request, "overloaded", now)
                return
            (oldest,) = self._nodes[self._line.entry].queue.take(1)
            self._starts(oldest.request)
            self._fail(oldest.request, "overloaded", now)
        self._join(self._line.entry, request, now, request.sent)

    def _join(self, name: str, request: _Request, now: float, arrival: float) -> None:
        node = self._nodes[name]
        self._put(node, request, arrival)
        if request.together:
            # Clients that got their answers from one batch come back while a thread wakes up to run
            # the first one's next request, and join it, as in the real scheduler.
            request.together = False
            self._push(now, _LOOK, node)
        else:
            self._dispatch(node, now)

    def _put(self, node: SimulatedNode, request: _Request, arrival: float) -> None:
        request.open += 1
        request.waits += 1
        self._waiting += request.waits == 1
        node.queue.push(Item(arrival, request))

    def _let_in(self, inside: SimulatedNode, now: float) -> None:
        """Let in who waits for room, first come first served, while ``inside`` gives its batches."""
        entry, came = self._nodes[self._line.entry], False
        while self._outside and not self._full():
            request, came = self._outside.popleft(), True
            self._put(entry, request, request.sent)
        if came and entry is not inside:
            self._dispatch(entry, now)

    def _starts(self, request: _Request) -> None:
        """Take note that a request waits at one node less."""
        request.waits -= 1
        self._waiting -= request.waits == 0

    def _dispatch(self, node: SimulatedNode, now: float) -> None:
        if not node.free or not len(node.queue):
            return
        name, planned = node.rules.name, node.wake_at
        for instance, items in node.due(now):
            for item in items:
                self._starts(item.request)
            size = node.rules.size_run(len(items))
            if size is None:
                for item in items:
                    self._fail(item.request, "batch_range", now)
            else:
                seconds = self._times[name].seconds(size, self._draw())
                self._seen.batches[name].append((now, len(items)))
                self._seen.busy[name] += seconds
                self._push(now + seconds, _END, node, instance, items)
            self._let_in(node, now)
        if node.wake_at is not None and node.wake_at != planned:
            self._push(node.wake_at, _WAKE, node)

    def _left(self, name: str, request: _Request, now: float, together: bool) -> None:
        """Let a request go on from a node to those after it, or end."""
        if request.open <= 0:
            return  # it has failed at another node meanwhile
        request.open -= 1
        for after in self._line.after[name]:
            if after in self._joins:
                request.missing = request.missing or dict(self._joins)
                request.missing[after] -= 1
                if request.missing[after]:
                    request.open += 1  # it waits there for its other branches
                    continue
                request.open -= self._joins[after] - 1
            self._join(after, request, now, now)
        if not request.open:
            self._seen.ended.append(now)
            self._seen.latencies.append(now - request.sent)
            self._answered(now, together)

    def _fail(self, request: _Request, code: str, now: float) -> None:
        request.open = -(10**9)
        self._seen.failed.append((now, code))
        self._answered(now)

    def _answered(self, now: float, together: bool = False) -> None:
        if self._closed:
            self._send_at(now, together)

    # The figures.

    def _point(self, about: dict[str, Any], warm_up: int) -> Point:
        seen, end = self._seen, self._last_sent
        start = seen.ended[warm_up - 1] if 0 < warm_up <= len(seen.ended) else 0.0
        start = min(start, end)
        first, last = bisect_left(seen.ended, start), bisect_left(seen.ended, end)
        if last <= first:  # so few that all ended after the last was sent
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
        more = {"simulated": True, "utilisation": busy, "extrapolated": extrapolated}
        return Point(about, SIMULATED_CLOCK, window, nodes=sizes, more=more)
