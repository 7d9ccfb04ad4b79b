"""The probe ``Remember`` keeps the last minutes of a pipeline: arrivals, batches, reasons and outcomes, and no inputs."""

from __future__ import annotations

import os
import threading
import time
import weakref
from array import array
from collections import deque
from itertools import chain
from typing import TYPE_CHECKING, Any

import pydantic

import headrace
from headrace.errors import SetupError, code_of
from headrace_observe.explaining import slowest
from headrace_observe.memory import Change, Memory, NodeFacts, Visit, memories

if TYPE_CHECKING:
    from collections.abc import Iterator

    from headrace.hookspecs import BatchRecord

__all__ = ["Remember"]

_LEAST_BYTES = 1 << 20

_FRESH = 512
"""How many visits lie in memory as they came before the thread of a batch packs them."""

_SEGMENTS = 16
"""The oldest of so many parts of the memory is forgotten at a time."""

_NAME_BYTES = 96
"""What an identifier takes, about, with its place in a list."""

_LONGEST_NAME = 200

_RECENT = 20_000
"""The slowest requests are looked for among so many visits, and a server gives so many at a time."""

_WIDTH = len(Visit._fields) - 1


class _Segment:
    """Visits in a row: their numbers in one array, their identifiers in a list."""

    def __init__(self) -> None:
        self.numbers = array("d")
        self.names: list[str | None] = []

    @property
    def nbytes(self) -> int:
        """What it takes, in bytes."""
        return 8 * len(self.numbers) + _NAME_BYTES * len(self.names)


class Remember:
    """The probe that keeps what `headrace_observe.why` explains: the last visits of requests to nodes, as many as fit.

    No thread waits for another one here. Of what a request holds, its ``request_id`` alone is kept.
    """

    class Options(headrace.Options):
        """How much is kept."""

        positional = ("size",)

        size: pydantic.ByteSize = pydantic.Field(
            pydantic.ByteSize(64 << 20),
            description="The most memory, as 64MiB; beyond it the oldest is forgotten (bytes).",
        )

    def __init__(self, options: Remember.Options | None = None) -> None:
        """Begin to remember.

        Raises:
            SetupError: The memory is too little for anything, or more than the machine has.
        """
        size = int((options or self.Options()).size)
        most = _memory_bytes()
        if not _LEAST_BYTES <= size <= most:
            what = f"Remember(size={size}) keeps nothing: it takes 1 MiB to {most >> 20} MiB, the memory of this machine"
            raise SetupError(what, hint='Write probes = ["Remember(64MiB)"].')
        self._most_bytes = size
        self._fresh: deque[tuple[Any, ...]] = deque()
        self._packing = threading.Lock()
        self._segments: deque[_Segment] = deque([_Segment()])
        self._texts: dict[str, int] = {}
        self._changes: deque[Change] = deque(maxlen=4096)
        self._pipeline: weakref.ref[headrace.Pipeline] | None = None

    @staticmethod
    def slowest(pipeline: headrace.Pipeline, count: int) -> list[dict[str, Any]] | None:
        """Explain the slowest of the last requests of a pipeline, as plain data; None where it has no such probe."""
        remember = memories.get(pipeline)
        if remember is None or not count:
            return None if remember is None else []
        return [one.to_dict() for one in slowest(remember(_RECENT), count)]

    @staticmethod
    def dump(pipeline: headrace.Pipeline, request_id: str | None = None) -> list[str] | None:
        """Return the lines of `headrace_observe.memory.Memory.write` for the visits around a request, or the last ones.

        None where the pipeline has no such probe, or does not remember the request.
        """
        remember = memories.get(pipeline)
        memory = remember and remember()
        if memory is None or (request_id is not None and request_id not in memory.by_name):
            return None
        return [*memory.around(request_id, _RECENT).lines()]

    def pipeline_started(self, pipeline: headrace.Pipeline) -> None:
        """Note the pipeline, without keeping it alive; a hook of probes."""
        self._pipeline = weakref.ref(pipeline)
        memories[pipeline] = self.memory

    # While requests run: plain appends. Now and then one thread packs what has come, and no other one waits for it.

    def batch_ran(self, record: BatchRecord) -> None:
        """Note the requests of a batch; a hook of probes."""
        node, instance, _, requests, started, ended, weight, errors, reason = record
        about, fresh = (node, instance, started, ended, len(requests), weight, reason), self._fresh
        for (request, arrival, cut, own, priority, deadline), error in zip(
            requests, errors, strict=True
        ):
            code = "ok" if error is None else code_of(error)
            name = request.get("request_id")
            fresh.append((name, arrival, cut, own, priority, deadline, code, about))
        if len(fresh) > _FRESH:
            self._pack()

    def request_done(
        self, node: str, request: Any, started: float, ended: float, error: BaseException | None
    ) -> None:
        """Note a request that has failed, which may have run in no batch; a hook of probes."""
        if error is not None:
            name = request.get("request_id") if isinstance(request, dict) else None
            about = (node, -1, ended, ended, 0, 0, "")
            self._fresh.append((name, started, ended, 1, 0, None, code_of(error), about))

    def instance_changed(self, node: str, instance: int, state: str) -> None:
        """Note that an instance pauses, is ready or lost; a hook of probes."""
        self._changes.append(Change(node, instance, time.monotonic(), state))

    def _pack(self) -> None:
        if self._packing.acquire(blocking=False):
            try:
                self._pack_all()
            finally:
                self._packing.release()

    def _pack_all(self) -> None:
        texts, rows, names = self._texts, [], []
        for _ in range(len(self._fresh)):
            name, arrival, cut, own, priority, deadline, code, about = self._fresh.popleft()
            node, instance, started, ended, size, weight, reason = about
            place, cause, how = (texts.setdefault(one, len(texts)) for one in (node, reason, code))
            names.append(None if name is None else str(name)[:_LONGEST_NAME])
            late = -1.0 if deadline is None else deadline
            rows.append(
                (
                    *(place, instance, arrival, cut, started, ended, size, weight, cause),
                    *(priority, late, how, own),
                )
            )
        last = self._segments[-1]
        if last.nbytes > self._most_bytes // _SEGMENTS:
            last = _Segment()
            self._segments.append(last)
        last.numbers.extend(array("d", chain.from_iterable(rows)))
        last.names.extend(names)
        while len(self._segments) > 1 and self.nbytes > self._most_bytes:
            self._segments.popleft()

    @property
    def nbytes(self) -> int:
        """What is kept takes so many bytes, about."""
        return sum(one.nbytes for one in self._segments.copy())

    # Reading, in any thread.

    def memory(self, most: int | None = None) -> Memory:
        """Return what is remembered: the last ``most`` visits, or all.

        Raises:
            SetupError: The probe belongs to no pipeline that still exists.
        """
        pipeline = None if self._pipeline is None else self._pipeline()
        if pipeline is None:
            raise SetupError("this Remember belongs to no pipeline, or to one that is gone")
        with self._packing:
            self._pack_all()
            visits = [*self._visits(most)]
        facts = {
            name: NodeFacts.of(name, node) for name, node in pipeline.config.plan().nodes.items()
        }
        memory = Memory(visits, [*self._changes], facts)
        from headrace_observe.cures import replay_of  # which only who simulates needs

        if most is None:
            memory.replay = replay_of(pipeline.config, memory)
        return memory

    def _visits(self, most: int | None) -> Iterator[Visit]:
        texts = [*self._texts]
        skip = 0 if most is None else max(0, sum(len(s.names) for s in self._segments) - most)
        for segment in self._segments:
            for index in range(min(skip, len(segment.names)), len(segment.names)):
                row: list[Any] = [*segment.numbers[index * _WIDTH : (index + 1) * _WIDTH]]
                place, instance, arrival, cut, started, ended, size, weight, cause = row[:9]
                priority, late, how, own = row[9:]
                name, late = segment.names[index], None if late < 0 else late
                yield Visit._make(
                    (
                        *(name, texts[int(place)], int(instance), arrival, cut, started, ended),
                        *(int(size), int(weight), texts[int(cause)], int(priority), late),
                        *(texts[int(how)], int(own)),
                    )
                )
            skip = max(0, skip - len(segment.names))


def _memory_bytes() -> int:
    """Return the memory of this machine, in bytes; a terabyte where the platform does not say it."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, OSError, ValueError):
        return 1 << 40
