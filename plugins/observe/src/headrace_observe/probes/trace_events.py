"""Makes events of the Trace Event Format from the records of a probe.

The format: "Trace Event Format", Google, the document that Chromium's tracing page links to. All events
are complete events (``X``), the two ends of flows (``s``, ``f``) and metadata (``M``). Times are in µs.

The tracks:

- The process *threads* has a track per thread, with its batches, and in them the elements that the thread has run.
- The process *devices* has a track per node, instance and track that a backend has named in ``context.span``.
- The process *requests of NODE* has as many tracks as requests were open at a time. Each request contains its wait in
  the queue and its run, and an arrow leads from its beginning to its batch.

Values and keys of requests, and messages of errors, are never in the file.
"""

from __future__ import annotations

import heapq
import json
import os
from typing import TYPE_CHECKING, NamedTuple

from headrace_observe.codes import bounded

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["BatchHeard", "EventMaker", "InsideHeard", "RequestHeard"]

_THREADS, _DEVICES, _FIRST_NODE = 1, 2, 3


class InsideHeard(NamedTuple):
    """An element that has run, with its size and thread; or a span that a backend has reported, with its name and track.

    In this and the next classes times are seconds of ``time.monotonic()``.
    """

    path: str
    what: int | str
    started: float
    ended: float
    where: int | str


class BatchHeard(NamedTuple):
    """A batch that has run; ``inside`` has the elements and spans of its instance since the instance's last batch."""

    number: int
    node: str
    instance: int
    thread: int
    started: float
    ended: float
    size: int
    weight: int
    failed: int
    inside: Sequence[InsideHeard]
    reason: str = ""


class RequestHeard(NamedTuple):
    """A request that has its outcome; ``batch`` is None if the request never ran."""

    node: str
    started: float
    ended: float
    code: str | None
    batch: BatchHeard | None


class _Lanes:
    """Tracks on which intervals do not overlap."""

    def __init__(self) -> None:
        self.count = 0
        self._free_from: list[tuple[int, int]] = []

    def take(self, start: int, end: int) -> int:
        """Return the track that has been free longest; a new track if none is free from ``start`` on."""
        if self._free_from and self._free_from[0][0] <= start:
            _, lane = self._free_from[0]
            heapq.heapreplace(self._free_from, (end, lane))
            return lane
        self.count += 1
        heapq.heappush(self._free_from, (end, self.count))
        return self.count


class EventMaker:
    """Makes the events of one trace. Used by one thread.

    Args:
        origin: When the trace begins, in seconds. Events that began earlier are left out.
        thread_names: The names of threads, by number. Other threads may add names meanwhile.
    """

    def __init__(self, origin: float, thread_names: Mapping[int, str]) -> None:
        self._origin = origin
        self._thread_names = thread_names
        self._threads: dict[int, tuple[int, str]] = {}
        self._nodes: dict[str, tuple[int, _Lanes]] = {}
        self._devices: dict[str, _Lanes] = {}
        self._device_tracks: dict[tuple[str, int], int] = {}
        self._arrows = 0

    def batch(self, heard: BatchHeard) -> list[str]:
        """Return the events of a batch, and of the elements and spans inside it."""
        start, end = self._ns(heard.started), self._ns(heard.ended)
        if start < 0:
            return []
        args = (
            f'{{"batch":{heard.number},"node":{_text(heard.node)},"instance":{heard.instance},'
            f'"size":{heard.size},"weight":{heard.weight},"failed":{heard.failed},"reason":{_text(heard.reason)}}}'
        )
        track, name = self._thread(heard.thread), f"batch of {heard.node}"
        events = [_slice(_THREADS, track, "batch", name, start, end, args)]
        for part in heard.inside:
            start, end = self._ns(part.started), self._ns(part.ended)
            if start < 0:
                continue
            args = f'{{"batch":{heard.number},"element":{_text(part.path)}'
            if isinstance(part.where, int):
                name = part.path.rpartition("/")[2].partition(":")[2] or part.path
                args = f'{args},"size":{part.what}}}'
                track = self._thread(part.where)
                events.append(_slice(_THREADS, track, "element", name, start, end, args))
            else:
                track = self._device(f"{heard.node}.{heard.instance} {part.where}", start, end)
                name = str(part.what)
                events.append(_slice(_DEVICES, track, "device", name, start, end, args + "}"))
        return events

    def request(self, heard: RequestHeard) -> list[str]:
        """Give the events of a request at one node: the request, its wait, its run, and the arrow to its batch."""
        start, end = self._ns(heard.started), self._ns(heard.ended)
        if start < 0:
            return []
        if heard.node not in self._nodes:
            self._nodes[heard.node] = (_FIRST_NODE + len(self._nodes), _Lanes())
        process, lanes = self._nodes[heard.node]
        lane, batch = lanes.take(start, end), heard.batch
        number = "null" if batch is None else str(batch.number)
        args = f'{{"batch":{number},"outcome":{_text(bounded(heard.code or "ok"))}}}'
        events = [_slice(process, lane, "request", "request", start, end, args)]
        if batch is None:
            return events
        # A slice inside ends at least 1 ns before the request does: a viewer adds start and duration as floating-point numbers
        # and rounds, and ends that are equal can become unequal, which takes the slice out of its request.
        begun, done = self._ns(batch.started), min(self._ns(batch.ended), end - 1)
        if begun > start:
            waited = min(begun, end - 1)
            events.append(_slice(process, lane, "queue", "queue", start, waited, "{}"))
        if start <= begun <= done:  # false if the owner gave up before the batch began
            events.append(_slice(process, lane, "run", "run", begun, done, "{}"))
            events += self._arrow(process, lane, start, self._thread(batch.thread), begun)
        return events

    def _arrow(self, process: int, lane: int, start: int, thread: int, begun: int) -> list[str]:
        self._arrows += 1
        same = f'"cat":"flow","name":"runs in","id":{self._arrows}'
        tail = f'{{"ph":"s","pid":{process},"tid":{lane},"ts":{_us(start)},{same}}}'
        head = f'{{"ph":"f","bp":"e","pid":{_THREADS},"tid":{thread},"ts":{_us(begun)},{same}}}'
        # If both have the same time, the tail comes first, because readers take events in the order of the file.
        return [tail, head]

    @staticmethod
    def head(about: dict[str, object]) -> str:
        """Return the beginning of the file: the data ``about`` the trace, and its first event."""
        text = json.dumps({**about, "pid": os.getpid()})
        opening = f'{{"displayTimeUnit":"ms","otherData":{text},"traceEvents":[\n'
        return opening + _named("process", _THREADS, 0, "threads")

    def tracks(self) -> list[str]:
        """Return the names of all tracks of the events so far."""
        lines = [_named("thread", _THREADS, track, name) for track, name in self._threads.values()]
        if self._devices:
            lines.append(_named("process", _DEVICES, 0, "devices"))
        for (where, lane), track in self._device_tracks.items():
            name = where if lane == 1 else f"{where} ({lane})"
            lines.append(_named("thread", _DEVICES, track, name))
        for node, (process, lanes) in self._nodes.items():
            lines.append(_named("process", process, 0, f"requests of {node}"))
            every = range(1, lanes.count + 1)
            lines += [_named("thread", process, lane, f"requests {lane}") for lane in every]
        return lines

    def _ns(self, at: float) -> int:
        return round((at - self._origin) * 1e9)

    def _thread(self, thread: int) -> int:
        track = self._threads.get(thread)
        if track is None:
            number = len(self._threads) + 1
            name = self._thread_names.get(thread, "thread")
            track = self._threads[thread] = (number, f"{name} [{number}]")
        return track[0]

    def _device(self, where: str, start: int, end: int) -> int:
        lane = self._devices.setdefault(where, _Lanes()).take(start, end)
        return self._device_tracks.setdefault((where, lane), len(self._device_tracks) + 1)


def _slice(
    process: int, track: int, category: str, name: str, start: int, end: int, args: str
) -> str:
    return (
        f'{{"ph":"X","pid":{process},"tid":{track},"ts":{_us(start)},"dur":{_us(end - start)},'
        f'"cat":"{category}","name":{_text(name)},"args":{args}}}'
    )


def _named(kind: str, process: int, track: int, name: str) -> str:
    args = json.dumps({"name": name})
    return f'{{"ph":"M","name":"{kind}_name","pid":{process},"tid":{track},"ts":0,"args":{args}}}'


def _us(ns: int) -> str:
    return f"{ns // 1000}.{ns % 1000:03d}"


_known: dict[str, str] = {}


def _text(text: str) -> str:
    """Return a text as JSON; results are cached, because names of nodes, elements and tracks recur."""
    quoted = _known.get(text)
    if quoted is None:
        if len(_known) > 10_000:
            _known.clear()
        quoted = _known[text] = json.dumps(text)
    return quoted
