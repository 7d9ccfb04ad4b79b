"""The probe ``Remember`` keeps the last minutes of a pipeline in memory: arrivals, batches, reasons and outcomes, and no inputs."""

from __future__ import annotations

import threading
import time
import weakref
from array import array
from collections import deque
from itertools import chain
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import pydantic

import headrace
from headrace.errors import SetupError, code_of
from headrace.plugins import usable_memory_bytes

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from headrace.hookspecs import BatchRecord

__all__ = ["Remember", "Visit"]

_LEAST_BYTES = 1 << 20

_FRESH = 512
"""How many visits lie in memory as they came before the thread of a batch packs them."""

_SEGMENTS = 16
"""The oldest of so many parts of the memory is forgotten at a time."""

_TEXT_BYTES = 96
"""What the text of an identifier takes, about, with its place in a list."""


class Visit(NamedTuple):
    """One run of a request in a batch at a node, or a request that ended there with an error and ran in none.

    Attributes:
        request_id: Its identifier, None where it has none.
        node, instance: Where it ran. The instance is -1 where it never ran.
        arrival, cut, started, ended: Seconds on the clock of ``time.monotonic()``: when it came to the node, was put into the batch,
            and when the batch began and ended. All but the arrival are the end where it never ran.
        size, weight: How many requests were in the batch, and what they weigh together.
        reason: Why the batch was formed.
        priority: That of its call.
        deadline: Its deadline on the same clock, None for none.
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
    """An instance that has become ``ready``, or is ``paused`` or ``lost``, at a time in seconds."""

    node: str
    instance: int
    at: float
    state: str


_NUMBERS = len(Visit._fields) - 1


class _Segment:
    """Visits in a row: their numbers in one array, their identifiers in a list."""

    def __init__(self) -> None:
        self.numbers = array("d")
        self.names: list[str | None] = []

    @property
    def nbytes(self) -> int:
        return 8 * len(self.numbers) + _TEXT_BYTES * len(self.names)


class Remember:
    """The probe that keeps what `headrace_observe.why` explains: the last visits of requests to nodes, as many as fit.

    It takes no lock, and about 200 bytes a visit. What a request holds is not kept, but for its ``request_id``.
    """

    class Options(headrace.Options):
        """How much is kept."""

        positional = ("size",)

        size: pydantic.ByteSize = pydantic.Field(
            pydantic.ByteSize(64 << 20),
            description="The most memory, as 64MiB; then the oldest is forgotten (bytes).",
        )

    _of: ClassVar[weakref.WeakKeyDictionary[headrace.Pipeline, Remember]] = (
        weakref.WeakKeyDictionary()
    )

    def __init__(self, options: Remember.Options) -> None:
        """Begin to remember.

        Raises:
            SetupError: The memory is too little for anything, or more than this process may use.
        """
        most = usable_memory_bytes()
        if options.size < _LEAST_BYTES or (most is not None and options.size > most):
            there = "" if most is None else f" and at most {most >> 20} MiB, which this machine has"
            what = f"Remember cannot keep {int(options.size)} bytes: it takes at least 1 MiB{there}"
            raise SetupError(what, hint='Write probes = ["Remember(64MiB)"].')
        self._most_bytes = int(options.size)
        self._fresh: deque[tuple[Any, ...]] = deque()
        self._packing = threading.Lock()
        self._segments: deque[_Segment] = deque([_Segment()])
        self._texts: dict[str, int] = {}
        self._changes: deque[Change] = deque(maxlen=4096)
        self.pipeline: weakref.ref[headrace.Pipeline] | None = None

    @classmethod
    def of(cls, pipeline: headrace.Pipeline) -> Remember | None:
        """Return the probe of a pipeline; None where it has none."""
        return cls._of.get(pipeline)

    def pipeline_started(self, pipeline: headrace.Pipeline) -> None:
        """Note the pipeline, without keeping it alive."""
        self.pipeline = weakref.ref(pipeline)
        self._of[pipeline] = self

    # While requests run: plain appends, and now and then a thread that packs what has come. None waits for another.

    def batch_ran(self, record: BatchRecord) -> None:
        """Note the requests of a batch; a hook of probes."""
        fresh = self._fresh
        for one, error in zip(record.requests, record.errors, strict=True):
            code = "ok" if error is None else code_of(error)
            fresh.append((one, one.request.get("request_id"), code, record))
        if len(fresh) > _FRESH:
            self._pack()
