"""The probe ``Remember`` keeps the last minutes of a pipeline: arrivals, batches, reasons and outcomes, and no inputs."""

from __future__ import annotations

import os
import time
import weakref
from collections import deque
from itertools import repeat
from typing import TYPE_CHECKING, Any

import pydantic

import headrace
from headrace.errors import SetupError, code_of
from headrace_observe.explain.causes import slowest
from headrace_observe.memory import LONGEST_NAME, Change, Memory, NodeFacts, Visit, memories
from headrace_observe.probes.packed import Packed

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from headrace.hookspecs import BatchRecord

__all__ = ["Remember"]

_LEAST_BYTES = 1 << 20

_RECENT = 20_000
"""The slowest requests are looked for among so many visits, and a server gives so many at a time."""


class Remember:
    """The probe that keeps what `headrace_observe.why` explains: the last visits of requests to nodes, as many as fit.

    No thread waits for another one here. Of what a request holds, its ``request_id`` alone is kept.

    Attributes:
        notes: What is kept.
    """

    class Options(headrace.Options):
        """How much is kept.

        Attributes:
            size: The most memory, as 64MiB; beyond it the oldest is forgotten (bytes).
        """

        positional = ("size",)

        size: pydantic.ByteSize = pydantic.Field(pydantic.ByteSize(64 << 20))

    def __init__(self, options: Remember.Options | None = None) -> None:
        """Begin to remember.

        Raises:
            SetupError: The memory is too little for anything, or more than the machine has.
        """
        size, most = int((options or self.Options()).size), _memory_bytes()
        if not _LEAST_BYTES <= size <= most:
            text = f"Remember(size={size}) keeps nothing: it takes 1 MiB to {most >> 20} MiB, the memory of this machine"
            raise SetupError(text, hint='Write probes = ["Remember(64MiB)"].')
        self.notes = Packed(size)
        self._changes: deque[Change] = deque(maxlen=4096)
        self._pipeline: weakref.ref[headrace.Pipeline] | None = None

    @staticmethod
    def slowest(pipeline: headrace.Pipeline, count: int) -> list[dict[str, Any]] | None:
        """Explain the slowest of the last requests of a pipeline, as plain data; None where it has no such probe."""
        remember = memories.get(pipeline)
        if remember is None or not count:
            return None if remember is None else []
        return [plan.to_dict() for plan in slowest(remember(_RECENT), count)]

    @staticmethod
    def dump(pipeline: headrace.Pipeline, request_id: str | None = None) -> list[str] | None:
        """Return the lines of `headrace_observe.memory.Memory.write` for the visits around a request, or the last ones.

        None where the pipeline has no such probe, or does not remember the request.
        """
        remember = memories.get(pipeline)
        memory = remember and remember()
        if memory is None or (request_id is not None and not memory.visits_of(request_id)):
            return None
        return [*memory.around(request_id, _RECENT).lines()]

    def pipeline_started(self, pipeline: headrace.Pipeline) -> None:
        """Note the pipeline, without keeping it alive; a hook of probes."""
        self._pipeline = weakref.ref(pipeline)
        memories[pipeline] = self.memory

    def batch_ran(self, record: BatchRecord) -> None:
        """Note the requests of a batch; a hook of probes."""
        node, instance, _, requests, started, ended, weight, errors, reason = record
        ran = [
            (_name_of(request), arrival, cut, own, priority, late)
            for request, arrival, cut, own, priority, late in requests
        ]
        codes = None
        if errors.count(None) < len(errors):
            codes = ["ok" if error is None else str(code_of(error)) for error in errors]
        self.notes.add((node, instance, started, ended, weight, str(reason), ran, codes))

    def request_done(
        self, node: str, request: Any, started: float, ended: float, error: BaseException | None
    ) -> None:
        """Note a request that has failed, which may have run in no batch; a hook of probes."""
        if error is not None:
            ran = [(_name_of(request), started, ended, 1, 0, None)]
            self.notes.add((node, -1, ended, ended, 1, "", ran, [str(code_of(error))]))

    def instance_changed(self, node: str, instance: int, state: str) -> None:
        """Note that an instance pauses, is ready or lost; a hook of probes."""
        self._changes.append(Change(node, instance, time.monotonic(), state))

    def memory(self, most: int | None = None) -> Memory:
        """Return what is remembered: all, or at least the last ``most`` visits; in any thread.

        Raises:
            SetupError: The probe belongs to no pipeline that still exists.
        """
        pipeline = None if self._pipeline is None else self._pipeline()
        if pipeline is None:
            raise SetupError("this Remember belongs to no pipeline, or to one that is gone")
        blocks = self.notes.blocks()
        visits: deque[Visit] = deque()
        while blocks and (most is None or len(visits) < most):
            visits.extendleft(reversed([*_visits(Packed.unpacked(blocks.pop()))]))
        nodes = pipeline.config.plan().nodes.items()
        facts = {name: NodeFacts.of(node) for name, node in nodes}
        memory = Memory(visits, [*self._changes], facts)
        if most is None:
            from headrace_observe.explain.cures import replay_of  # which only who simulates needs

            memory.replay = replay_of(pipeline.config, memory)
        return memory


def _name_of(request: Any) -> str | None:
    name = request.get("request_id") if isinstance(request, dict) else None
    return None if name is None else str(name)[:LONGEST_NAME]


def _visits(batches: Iterable[tuple[Any, ...]]) -> Iterator[Visit]:
    for node, instance, started, ended, weight, reason, ran, codes in batches:
        about = (started, ended, len(ran), weight, reason)
        for (name, arrival, cut, own, priority, late), code in zip(
            ran, codes or repeat("ok"), strict=False
        ):
            yield Visit(name, node, instance, arrival, cut, *about, priority, late, code, own)


def _memory_bytes() -> int:
    """Return the memory of this machine, in bytes; a terabyte where the platform does not say it."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, OSError, ValueError):
        return 1 << 40
