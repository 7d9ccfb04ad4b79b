"""What `Remember` has kept of a pipeline, as plain data: visits of requests to nodes, pauses of instances, facts of the nodes."""

from __future__ import annotations

import json
import logging
from bisect import bisect_left, bisect_right
from collections import defaultdict
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple
from weakref import WeakKeyDictionary

import pydantic

from headrace.errors import InputError
from headrace_observe.files import lines_of, write_text

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    import headrace
    from headrace.plan import NodePlan

__all__ = [
    "LONGEST_NAME",
    "Change",
    "Memory",
    "NodeFacts",
    "Visit",
    "is_dump",
    "memories",
    "parse_dump",
    "read_dump",
]

_log = logging.getLogger("headrace.observe.memory")

_KIND = "headrace-memory"
_VERSION = 1

LONGEST_NAME = 200
"""Of an identifier so many characters are kept."""

memories: WeakKeyDictionary[headrace.Pipeline, Callable[..., Memory]] = WeakKeyDictionary()
"""What gives the memory of each pipeline that has a probe for it."""


class Visit(NamedTuple):
    """One run of a request in a batch at a node; or, with the instance -1, a request that failed there.

    Attributes:
        request_id: Its identifier, None where it has none.
        node, instance: Where it ran.
        arrival, cut, started, ended: When it came to the node, was put into the batch, and when the batch began and ended, in
            seconds on the clock of ``time.monotonic()``. Of a failure without a run the last three are its end.
        size, weight: How many requests were in the batch, and what they weigh together.
        reason: Why the batch was formed.
        priority, deadline: Those of its call; the deadline is on the same clock, None for none.
        code: The code of its error, ``ok`` for none.
        own_weight: What the request itself weighs.
    """

    request_id: str | None
    node: str
    instance: int
    arrival: float
    cut: float
    started: float
    ended: float
    size: int
    weight: int
    reason: str
    priority: int
    deadline: float | None
    code: str
    own_weight: int


class Change(NamedTuple):
    """An instance is ``ready``, ``paused``, ``lost`` or ``closed`` from a time on, in seconds."""

    node: str
    instance: int
    at: float
    state: str


def side_by_side(node: NodePlan) -> int:
    """Return how many instances of a node run side by side, without the one that serves a request alone."""
    return node.instance_num - node.wide


class NodeFacts(NamedTuple):
    """What the configuration says of a node, as far as it explains waits.

    Attributes:
        instance_num: How many instances run side by side.
        waits_for_others: Whether a free instance may wait for further requests.
        room: How many requests may wait before others wait for room; None for no bound that makes them wait.
        calls, next: The nodes that its expression calls, and those after it.
    """

    instance_num: int
    waits_for_others: bool
    room: int | None
    calls: tuple[str, ...] = ()
    next: tuple[str, ...] = ()

    @classmethod
    def of(cls, node: NodePlan) -> NodeFacts:
        """Return the facts of a node of a plan."""
        keys = {key: value.value for key, value in node.values.items()}
        waits = keys["batching_timeout"] > 0 or keys["batch_policy"] not in (None, "greedy")
        room = keys["queue_size"] if keys["queue_full"] == "wait" else None
        waits = bool(waits or keys["batch_sizes"] or node.range[0] > 1)
        return cls(side_by_side(node), waits, room, node.links.calls, node.next)


class Memory:
    """What is remembered of a pipeline.

    Args:
        visits: The visits.
        changes: What has become of instances.
        nodes: The facts of each node.
        replay: What `headrace_observe.explain.cures.replay_of` gives.
    """

    def __init__(
        self,
        visits: Iterable[Visit],
        changes: Iterable[Change],
        nodes: Mapping[str, NodeFacts],
        replay: Mapping[str, Any] | None = None,
    ) -> None:
        self.visits, self.changes, self.nodes = [*visits], [*changes], dict(nodes)
        self.replay = replay or {"why_not": "the settings of its nodes are not known"}

    def around(self, request_id: str | None, most: int) -> Memory:
        """Return what is remembered of at most so many visits: those around a request, or the last ones."""
        place = len(self.visits)
        if request_id is not None and (known := self.visits_of(request_id)):
            place = self.visits.index(known[0]) + most // 2
        last = min(len(self.visits), max(place, most))
        return Memory(
            self.visits[max(0, last - most) : last], self.changes, self.nodes, self.replay
        )

    @cached_property
    def batches(self) -> dict[tuple[str, int], list[Visit]]:
        """The batches of each instance, in order; an instance runs one at a time.

        A batch is the visit of one of its requests, with the first arrival, the greatest priority, and the code ``ok`` if
        none failed.
        """
        visits: dict[tuple[str, int, float], list[Visit]] = defaultdict(list)
        for visit in self.visits:
            if visit.instance >= 0:
                visits[visit.node, visit.instance, visit.cut].append(visit)
        ran: dict[tuple[str, int], list[Visit]] = defaultdict(list)
        for (node, instance, _), each in sorted(visits.items()):
            worst = next((v for v in each if v.code != "ok"), each[0])
            most, came = max(v.priority for v in each), min(v.arrival for v in each)
            ran[node, instance].append(worst._replace(priority=most, arrival=came))
        return ran

    @cached_property
    def first_nodes(self) -> set[str]:
        """The nodes at which requests come to the pipeline: no other one leads to them."""
        return {*self.nodes}.difference(*((*n.next, *n.calls) for n in self.nodes.values()))

    def idle_until(self, at: float) -> float:
        """Return when, at last before a time, a request came while none was on its way. The first one did."""
        idle_s, busy_until = at, float("-inf")
        for visit in sorted(self.visits, key=lambda visit: visit.arrival):
            if visit.arrival > at:
                break
            if visit.arrival > busy_until and visit.node in self.first_nodes:
                idle_s = visit.arrival
            busy_until = max(busy_until, visit.ended)
        return idle_s

    @cached_property
    def pauses(self) -> dict[tuple[str, int], list[tuple[float, float]]]:
        """From when to when each instance was away, in order."""
        spans: dict[tuple[str, int], list[tuple[float, float]]] = defaultdict(list)
        for change in sorted(self.changes, key=lambda change: change.at):
            known = spans[change.node, change.instance]
            if known and known[-1][1] == float("inf"):
                known[-1] = known[-1][0], change.at
            if change.state in ("paused", "lost"):
                known.append((change.at, float("inf")))
        return spans

    @cached_property
    def by_name(self) -> dict[str, list[Visit]]:
        """The visits of each identifier."""
        visits: dict[str, list[Visit]] = defaultdict(list)
        for visit in self.visits:
            if visit.request_id is not None:
                visits[visit.request_id].append(visit)
        return visits

    def visits_of(self, request_id: object) -> list[Visit]:
        """Return the visits of an identifier, none where it is not remembered."""
        return self.by_name.get(str(request_id)[:LONGEST_NAME], [])

    @cached_property
    def _waits(self) -> dict[str, tuple[list[float], list[float]]]:
        """The times at which requests came to each node, and those at which they left its queue, in order."""
        times: dict[str, tuple[list[float], list[float]]] = defaultdict(lambda: ([], []))
        for visit in self.visits:
            times[visit.node][0].append(visit.arrival)
            times[visit.node][1].append(visit.cut)
        return {node: (sorted(came), sorted(left)) for node, (came, left) in times.items()}

    def in_queue_at(self, visit: Visit) -> float:
        """Return when a request had room in the queue of its node, in seconds."""
        room = self.nodes[visit.node].room
        if room is None:
            return visit.arrival
        came, left = self._waits[visit.node]
        gone = bisect_right(left, visit.arrival)
        missing = bisect_left(came, visit.arrival) - gone - room
        place = gone + missing
        return left[place] if missing >= 0 and place < len(left) else visit.arrival

    def running(self, node: str, instance: int, start: float, end: float) -> Sequence[Visit]:
        """Return the batches that an instance ran between two times."""
        every = self.batches.get((node, instance), [])
        first = bisect_right(every, start, key=lambda ran: ran.ended)
        return every[first : bisect_left(every, end, key=lambda ran: ran.cut)]

    # One file, which `headrace simulate` and `headrace tune` read too.

    def write(self, path: str | os.PathLike[str]) -> None:
        """Write everything into one file, a line of JSON per visit.

        Raises:
            OSError: It cannot be written.
        """
        write_text(path, "\n".join(self.lines()) + "\n")

    def lines(self) -> Iterator[str]:
        """Return the lines of the file: first what it is, then the visits in the order in which they ended."""
        about = {"kind": _KIND, "version": _VERSION, "nodes": self.nodes, "changes": self.changes}
        yield json.dumps({**about, "replay": self.replay})
        for visit in self.visits:
            yield json.dumps(visit)


def is_dump(path: str | os.PathLike[str]) -> bool:
    """Tell whether a path names a dump."""
    try:
        with open(path, "rb") as file:  # noqa: PTH123 - a text that is no path is no dump
            return _KIND.encode() in file.read(80)
    except (OSError, ValueError):
        return False


def read_dump(path: str | os.PathLike[str]) -> Memory:
    """Read a file that `Memory.write` has written. Where its end is cut off, the logger ``headrace.observe.memory`` warns.

    Raises:
        InputError: It cannot be read, is none, or of another version.
    """
    return parse_dump(lines_of(path, "the dump"), str(path))


class _Head(pydantic.BaseModel):
    nodes: dict[str, NodeFacts]
    changes: list[Change]
    replay: dict[str, Any]


_VISIT = pydantic.TypeAdapter(Visit)


def parse_dump(lines: Sequence[str], origin: str) -> Memory:
    """Read the lines of a dump; see `read_dump`. ``origin`` is where they come from, for errors."""
    try:
        head = json.loads(lines[0]) if lines else None
    except ValueError:
        head = None
    if not isinstance(head, dict) or head.get("kind") != _KIND:
        raise InputError(f"{origin}: it is no dump of the probe Remember")
    if head.get("version") != _VERSION:
        raise InputError(
            f"{origin}: it has the version {head.get('version')}, and this headrace-observe reads {_VERSION}"
        )
    try:
        about = _Head.model_validate(head)
    except pydantic.ValidationError as error:
        where = ".".join(map(str, error.errors()[0]["loc"]))
        raise InputError(f"{origin}:1: the first line of the dump is broken at {where}") from error
    visits: list[Visit] = []
    for number, line in enumerate(lines[1:], 2):
        try:
            visit = _VISIT.validate_json(line)
        except pydantic.ValidationError:
            visit = None
        if visit is None or visit.node not in about.nodes:
            text = "%s:%d: the rest is cut off; %d visits before it were read"
            _log.warning(text, origin, number, len(visits))
            break
        visits.append(visit)
    return Memory(visits, about.changes, about.nodes, about.replay)
