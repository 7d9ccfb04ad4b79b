"""Why a request was slow: its time, from its arrival to its last end, split into causes that add up to it."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from difflib import get_close_matches
from itertools import chain, pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import headrace
from headrace.errors import InputError, SetupError
from headrace_observe.memory import Memory, memories

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from headrace_observe.memory import Visit

__all__ = ["CAUSES", "Explanation", "Part", "slowest", "why"]

_TINY_S = 1e-9

_SHOWN_S = 50e-6
"""Parts that would be 0.0 ms are left out of the text."""

CAUSES = {
    "run": "ran",
    "instance": "waited for an instance",
    "others": "waited for other requests to share its batch",
    "priority": "waited behind a greater priority",
    "room": "waited for room in the queue",
    "pause": "waited while an instance was away",
    "thread": "waited for a thread",
}
"""Every cause, with its words."""


class Part(NamedTuple):
    """A part of the time of a request.

    Attributes:
        node: Where it was spent.
        cause: One of `CAUSES`.
        seconds: How long it took.
        detail: What there is to add, as ``2 in the batch, instance 1``. Empty for nothing.
    """

    node: str
    cause: str
    seconds: float
    detail: str

    def __str__(self) -> str:
        more = f" ({self.detail})" if self.detail else ""
        return f"{1000 * self.seconds:.1f} {CAUSES[self.cause]}{more}"


@dataclass(frozen=True)
class Explanation:
    """Where the time of one request went.

    Attributes:
        request_id: Its identifier.
        began, ended: When it came to its first node, and when its last run ended, in seconds on the clock of ``time.monotonic()``.
        code: The code of its error, ``ok`` for none.
        parts: The parts of its time, the greatest first. They add up to `seconds`.
    """

    request_id: str | None
    began: float
    ended: float
    code: str
    parts: tuple[Part, ...]

    @property
    def seconds(self) -> float:
        """The time from its arrival to its end."""
        return self.ended - self.began

    @property
    def greatest(self) -> Part:
        """The part that took longest."""
        return self.parts[0]

    def __str__(self) -> str:
        several = len({part.node for part in self.parts}) > 1
        shown = [part for part in self.parts if part.seconds >= _SHOWN_S] or self.parts[:1]
        text = "; ".join(f"{p.node}: {p}" if several else str(p) for p in shown)
        how = "" if self.code == "ok" else f", and failed with the code {self.code}"
        return f"{1000 * self.seconds:.1f} ms{how}: {text}"

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain data for JSON; times in milliseconds."""
        parts = [
            {"node": p.node, "cause": p.cause, "ms": 1000 * p.seconds, "detail": p.detail}
            for p in self.parts
        ]
        about = {"request_id": self.request_id, "ms": 1000 * self.seconds, "code": self.code}
        return {**about, "text": str(self), "parts": parts}


def why(source: headrace.Pipeline | Memory, request_id: str) -> list[Explanation]:
    """Explain the time of a request.

    Args:
        source: A pipeline with ``probes = ["Remember(64MiB)"]``, or what such a probe has kept.
        request_id: The ``request_id`` that the request had.

    Returns:
        An explanation for each time that a request with this identifier came, in their order.

    Raises:
        TypeError: The source is neither.
        SetupError: The pipeline has no such probe.
        InputError: No request of this identifier is remembered.
    """
    memory = source if isinstance(source, Memory) else _memory_of(source)
    visits = memory.visits_of(request_id)
    if not visits:
        near = get_close_matches(str(request_id)[:200], [*memory.by_name][-1000:], 1)
        hint = f"Did you mean {near[0]!r}?" if near else f"It keeps {len(memory.by_name)} others."
        text = f"no request {request_id!r} is remembered: it has not ended, or was forgotten"
        raise InputError(text, hint=hint)
    return [_explained(memory, run) for run in _occurrences(memory, visits)]


def slowest(memory: Memory, count: int = 10) -> list[Explanation]:
    """Explain the requests that took longest, the slowest first; only those with an identifier."""
    every = [
        (max(v.ended for v in run) - min(v.arrival for v in run), name, place, run)
        for name, visits in memory.by_name.items()
        for place, run in enumerate(_occurrences(memory, visits))
    ]
    return [_explained(memory, row[3]) for row in sorted(every, reverse=True)[:count]]


def _memory_of(pipeline: headrace.Pipeline) -> Memory:
    if not isinstance(pipeline, headrace.Pipeline):
        raise TypeError(f"it takes a Pipeline or a Memory, got {type(pipeline).__name__}")
    remember = memories.get(pipeline)
    if remember is None:
        hint = 'Write probes = ["Remember(64MiB)"] into [global].'
        raise SetupError("the pipeline has no probe Remember", hint=hint)
    return remember()


def _occurrences(memory: Memory, visits: Sequence[Visit]) -> list[list[Visit]]:
    """Part the visits of an identifier that came more than once: each arrival at a first node begins a request."""
    groups: list[list[Visit]] = []
    for visit in sorted(visits, key=lambda visit: (visit.arrival, visit.cut)):
        is_first = visit.node in memory.first_nodes
        if not groups or (is_first and visit.arrival > groups[-1][0].arrival):
            groups.append([])
        groups[-1].append(visit)
    return groups


def _explained(memory: Memory, visits: Sequence[Visit]) -> Explanation:
    runs = _ended(visits)
    began, ended = min(run.arrival for run in runs), max(run.ended for run in runs)
    codes = [v.code for v in sorted(visits, key=lambda visit: visit.ended) if v.code != "ok"]
    seconds: dict[tuple[str, str], float] = defaultdict(float)
    details: dict[tuple[str, str], dict[str, None]] = defaultdict(dict)
    for part in _Split(memory, runs).split(began, ended):
        seconds[part.node, part.cause] += part.seconds
        if part.detail and part.seconds > 0:
            details[part.node, part.cause][part.detail] = None
    parts = [
        Part(*key, spent, _together([*details[key]]))
        for key, spent in sorted(seconds.items(), key=lambda pair: -pair[1])
        if spent > 0
    ]
    first = runs[0]
    parts = parts or [Part(first.node, "run", 0.0, "")]
    return Explanation(first.request_id, began, ended, (codes or ["ok"])[-1], tuple(parts))


def _together(details: Sequence[str]) -> str:
    return ", then ".join(details[:2]) + (f", and {len(details) - 2} more" if details[2:] else "")


def _ended(visits: Sequence[Visit]) -> list[Visit]:
    """End each run no later than the request had its outcome there: a backend may go on after its caller has left."""
    outcomes = {(visit.node, visit.arrival): visit.ended for visit in visits if visit.instance < 0}
    ran = {(visit.node, visit.arrival) for visit in visits if visit.instance >= 0}
    ended = []
    for visit in visits:
        end = outcomes.get((visit.node, visit.arrival), visit.ended)
        if visit.instance >= 0:
            times = [min(at, end) for at in (visit.cut, visit.started, visit.ended)]
            ended.append(visit._replace(cut=times[0], started=times[1], ended=times[2]))
        elif (visit.node, visit.arrival) not in ran:
            ended.append(visit)
    return ended


class _Split:
    """Splits a span of time along the visits that its end waited for: from the last one backwards.

    Args:
        memory: What is remembered.
        visits: The visits of one request.
    """

    def __init__(self, memory: Memory, visits: Sequence[Visit]) -> None:
        self._memory = memory
        called = {to for node in memory.nodes.values() for to in node.calls}
        self._called = [visit for visit in visits if visit.node in called]
        self._led = [visit for visit in visits if visit.node not in called] or self._called

    def split(self, start: float, end: float) -> Iterator[Part]:
        """Give the parts of a request."""
        yield from self._along(self._led, start, end, None)

    def _along(
        self, visits: Sequence[Visit], start: float, end: float, around: Part | None
    ) -> Iterator[Part]:
        """Give the parts of a span. What no visit covers is that of ``around``, or the way from node to node."""
        at = end
        left = [visit for visit in visits if visit.arrival >= start - _TINY_S]
        while at > start:
            left = [visit for visit in left if visit.ended <= at + _TINY_S]
            last = max(left, key=lambda visit: (visit.ended, -visit.arrival), default=None)
            before = start if last is None else max(start, min(at, last.ended))
            if at > before:
                gap = around or Part(visits[0].node, "thread", 0.0, "between nodes")
                yield gap._replace(seconds=at - before)
            if last is None:
                return
            left.remove(last)
            at = before
            for part in self._visit(last, start, at, left):
                yield part
                at -= part.seconds
            at = min(at, max(start, self._since(last, left)))

    @staticmethod
    def _since(visit: Visit, others: Sequence[Visit]) -> float:
        """Return when the wait for a run began: with its arrival, or the end of the run before it at the same node."""
        same = [
            v.ended
            for v in others
            if (v.node, v.arrival) == (visit.node, visit.arrival) and v.ended <= visit.cut
        ]
        return max([visit.arrival, *same])

    def _visit(
        self, visit: Visit, start: float, end: float, others: Sequence[Visit]
    ) -> Iterator[Part]:
        node = visit.node
        since = max(start, self._since(visit, others))
        cut, started = max(since, min(visit.cut, end)), max(since, min(visit.started, end))
        if visit.instance >= 0:
            detail = (
                f"{visit.size} in the batch, instance {visit.instance}, formed by {visit.reason}"
            )
            ran = Part(node, "run", 0.0, detail)
            inner = [
                called
                for called in self._called
                if called is not visit
                and started <= called.arrival
                and called.ended <= end + _TINY_S
                and called.node != node
            ]
            yield from self._along(inner, started, end, ran)
            if started > cut:
                yield Part(node, "thread", started - cut, "")
        yield from self._wait(visit, since, cut)

    def _wait(self, visit: Visit, since: float, cut: float) -> Iterator[Part]:
        """Give the parts of the wait in a queue: at each moment what its instances did."""
        memory, node = self._memory, visit.node
        queued = min(max(memory.in_queue_at(visit), since), cut)
        if queued > since:
            yield Part(node, "room", queued - since, "")
        count = range(memory.nodes[node].instance_num)
        ran = [batch for k in count for batch in memory.running(node, k, queued, cut)]
        away = [memory.pauses.get((node, k), []) for k in count]
        spans = chain(((batch.cut, batch.ended) for batch in ran), *away)
        edges = {queued, cut, *(at for at in chain(*spans) if queued < at < cut)}
        for begin, end in pairwise(sorted(edges)):
            now = [next(iter(memory.running(node, k, begin, end)), None) for k in count]
            paused = [any(gone <= begin < back for gone, back in each) for each in away]
            cause, detail = self._cause(visit, queued, now, paused)
            yield Part(node, cause, end - begin, detail)

    def _cause(
        self, visit: Visit, queued: float, now: Sequence[Visit | None], paused: Sequence[bool]
    ) -> tuple[str, str]:
        """Return why a request waits, and the detail, by what each instance runs and whether it is away."""
        idle = [gone for batch, gone in zip(now, paused, strict=True) if batch is None]
        if not all(idle) and self._memory.nodes[visit.node].waits_for_others:
            return "others", f"formed by {visit.reason or visit.code}"
        if any(idle):
            return "pause", f"instance {', '.join(str(k) for k, gone in enumerate(paused) if gone)}"
        busy = [batch for batch in now if batch is not None]
        overtook = [batch.priority for batch in busy if batch.cut >= queued - _TINY_S]
        if overtook and max(overtook) > visit.priority:
            return "priority", f"priority {max(overtook)}"
        if not busy:
            return "instance", ""
        sizes = " and ".join(map(str, sorted({batch.size for batch in busy})))
        each = "one ran a batch" if len(now) == 1 else f"all {len(now)} ran batches"
        return "instance", f"{each} of {sizes}"
