"""The closed loop that the word `Benchmark` runs on a part of an expression."""

from __future__ import annotations

import itertools
import time
from collections import Counter, deque
from typing import TYPE_CHECKING

from headrace_observe.bench.load import ClosedLoop
from headrace_observe.bench.measurement import Point
from headrace_observe.bench.notes import Notes, gathered
from headrace_observe.bench.usage import meter

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import TypeAlias

    from headrace import Backend
    from headrace.keys import Request

    Turn: TypeAlias = tuple[float, int]
    """When a client got its last answer, and the index of the sample that it sends next."""

__all__ = ["BACKEND_CLOCK", "NODE_CLOCK", "of_backend", "of_node"]

BACKEND_CLOCK = (
    "from the moment a client has its last answer to the end of the batch that its next request ran in; "
    "one thread runs all batches, up to the range of the backend and the node, without a queue or a hand-over"
)
NODE_CLOCK = "from the call of the node to its return, in the client's thread"


class _Outcomes:
    """The first error of each sample that has failed and never succeeded."""

    def __init__(self) -> None:
        self._succeeded: set[int] = set()
        self._first: dict[int, Exception] = {}

    def add(self, sample: int, error: Exception | None) -> None:
        if error is None:
            self._succeeded.add(sample)
        else:
            self._first.setdefault(sample, error)

    def errors(self) -> dict[int, Exception]:
        return {k: error for k, error in self._first.items() if k not in self._succeeded}


def of_backend(
    backend: Backend,
    samples: Sequence[Request],
    clients: int,
    total: int,
    node: str,
    *,
    most: int | None = None,
    clock: Callable[[], float] = time.perf_counter,
) -> tuple[Point, dict[int, Exception]]:
    """Run requests of several clients through a backend, in the calling thread.

    Args:
        backend: The backend to measure. A batch below its ``min`` is filled up with copies of the batch's last
            request, which are not counted.
        samples: The requests, which are sent in turn. Each is copied.
        clients: The number of clients. Each sends its next request when it has its answer.
        total: The number of requests, of all clients.
        node: The name of the batch sizes in the figures.
        most: The greatest weight of a batch, where it is less than the backend's ``max``.
        clock: Gives the time in seconds.

    Returns:
        The figures, and the first error of each sample of which no request succeeded, by the sample's index.
    """
    notes, sizes, outcomes = Notes(), Counter[int](), _Outcomes()
    used, began = meter(), clock()
    most = min((end for end in (most, backend.max) if end is not None), default=None)
    to_send = itertools.islice(itertools.cycle(range(len(samples))), total)
    waiting = deque((began, k) for k in itertools.islice(to_send, clients))
    while waiting:
        turns, batch = _cut(waiting, samples, backend.min, most)
        errors = backend(batch) or [None] * len(batch)
        ended = clock()
        sizes[len(turns)] += 1
        for (arrived, sample), error in zip(turns, errors, strict=False):
            outcomes.add(sample, error)
            if error is None:
                notes.ok(ended, ended - arrived)
            else:
                notes.failed(ended, error)
        waiting.extend((ended, k) for k in itertools.islice(to_send, len(turns)))
    # A window leaves out requests that ended exactly at its end, so the end lies just after the last request.
    window = gathered([notes], began, clock() + 1e-9)
    about = {"kind": "closed", "clients": clients}
    point = Point(about, BACKEND_CLOCK, window, nodes={node: sizes}, usage=used())
    return point, outcomes.errors()


def _cut(
    waiting: deque[Turn], samples: Sequence[Request], least: int, most: int | None
) -> tuple[list[Turn], list[Request]]:
    """Take the oldest turns that fit into one batch of this range; give them with the batch."""
    turns: list[Turn] = []
    batch: list[Request] = []
    weight = 0
    while waiting:
        sample = samples[waiting[0][1]]
        more = weight + sample.get("request_size", 1)
        if batch and most is not None and (most == 1 or more > most):
            break
        turns.append(waiting.popleft())
        batch.append(dict(sample))
        weight = more
    while weight < least:
        batch.append(dict(batch[-1]))
        weight += batch[-1].get("request_size", 1)
    return turns, batch


def of_node(
    backend: Backend,
    samples: Sequence[Request],
    clients: int,
    total: int,
    node: str,
    *,
    clock: Callable[[], float] = time.perf_counter,
) -> tuple[Point, dict[int, Exception]]:
    """Let one thread per client call a node; arguments and result are those of `of_backend`."""
    outcomes = _Outcomes()
    numbered = [{**sample, _NUMBER: k} for k, sample in enumerate(samples)]

    def call(request: Request) -> None:
        sample = request.pop(_NUMBER)
        (error,) = backend([request]) or [None]
        outcomes.add(sample, error)
        if error is not None:
            raise error

    used, began = meter(), clock()
    load = ClosedLoop(call, numbered, clients, total=total, clock=clock)
    load.run()
    window = gathered(load.notes, began, clock() + 1e-9)
    return Point(load.about, NODE_CLOCK, window, usage=used()), outcomes.errors()


_NUMBER = "headrace_observe.sample"
"""The key under which a request carries the index of its sample, until the request is sent."""
