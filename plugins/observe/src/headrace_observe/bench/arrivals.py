"""The intended arrival times of an open loop's requests, random or read from a file; and what requests hold."""

from __future__ import annotations

import math
import random
from typing import TYPE_CHECKING, Any

from headrace.errors import InputError
from headrace_formats import read_json
from headrace_observe.files import lines_of
from headrace_observe.memory import is_dump, read_dump

if TYPE_CHECKING:
    import os
    from collections.abc import Iterator

    from headrace_observe.memory import Memory, Visit

__all__ = ["Arrival", "arrivals_of", "poisson", "read_arrivals", "read_samples"]


class Arrival(float):
    """The time of an arrival in seconds, with what is known of its request.

    Attributes:
        visit: The visit of the request to its first node.
        took_s: How long a simulation lets it take. None until it has its outcome there.
    """

    visit: Visit
    took_s: float | None = None

    @classmethod
    def of(cls, visit: Visit, first: float) -> Arrival:
        """Return the arrival of a visit. Times count from ``first``."""
        arrival = cls(visit.arrival - first)
        arrival.visit = visit
        return arrival

    @property
    def timeout_s(self) -> float | None:
        """How long after its arrival its deadline is, None for none."""
        late = self.visit.deadline
        return None if late is None else max(0.0, late - self.visit.arrival)


def arrivals_of(memory: Memory, since: float = -math.inf) -> list[Arrival]:
    """Return the requests that came to the first nodes of a pipeline, in order; times count from the first one.

    Args:
        memory: What is remembered.
        since: The first of them came no earlier, on the clock of the memory.

    """
    visits: dict[Any, Visit] = {}
    for place, visit in enumerate(memory.visits):
        key = (visit.request_id or place, visit.node, visit.arrival)
        if (
            visit.arrival >= since
            and visit.node in memory.first_nodes
            and (key not in visits or visits[key].priority < visit.priority)
        ):
            visits[key] = visit
    ordered = sorted(visits.values(), key=lambda visit: visit.arrival)
    return [Arrival.of(visit, ordered[0].arrival) for visit in ordered]


def poisson(rate: float, seed: int = 0) -> Iterator[float]:
    """Return the times of a Poisson process without end, in seconds from its start.

    Args:
        rate: Mean arrivals per second, above 0.
        seed: The same seed gives the same times.

    Source:
        The gaps of a Poisson process are exponential with the mean ``1 / rate``.
    """
    if not 0 < rate < math.inf:
        raise ValueError(f"a rate is a number of requests per second above 0, got {rate!r}")
    gap = random.Random(seed).expovariate  # noqa: S311 - no secret
    at = 0.0
    while True:
        at += gap(rate)
        yield at


def read_arrivals(path: str | os.PathLike[str]) -> list[float]:
    """Read a file with the time of one arrival per line, in seconds, in ascending order.

    Empty lines, and the rest of a line after ``#``, are left out. The returned times count from the first
    one, so that a column of time stamps may be given as it is. It may also be a dump of the probe `Remember`: then each is an
    `Arrival`.

    Raises:
        InputError: The file cannot be read or has no times, or a line is no time or is before the line above it.
    """
    if is_dump(path):
        if arrivals := arrivals_of(read_dump(path)):
            return [*arrivals]
        raise InputError(f"{path}: no request is remembered in it")
    lines = lines_of(path, "the arrivals in")
    times: list[float] = []
    for number, line in enumerate(lines, 1):
        text = line.partition("#")[0].strip()
        if not text:
            continue
        try:
            at = float(text)
        except ValueError:
            at = math.nan
        if not math.isfinite(at):
            raise InputError(f"{path}:{number}: expected a time in seconds, got {text!r}")
        if times and at < times[-1]:
            raise InputError(f"{path}:{number}: the time {text} is before the one above it")
        times.append(at)
    if not times:
        raise InputError(f"{path}: there is no arrival in it: a time in seconds per line")
    return [at - times[0] for at in times]


def read_samples(path: str | os.PathLike[str]) -> list[dict[str, Any]]:
    """Read a file with a sample request per line, as JSON: ``{"length": 12}``. Empty lines are left out.

    Raises:
        InputError: The file cannot be read, has no request, or a line is no JSON object.
    """
    lines = lines_of(path, "the sample requests in")
    samples: list[dict[str, Any]] = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            sample = read_json(line)
        except ValueError:
            sample = None
        if not isinstance(sample, dict):
            raise InputError(f"{path}:{number}: expected a JSON object, got {line.strip()[:80]!r}")
        samples.append(sample)
    if not samples:
        raise InputError(
            f'{path}: there is no request in it: a JSON object per line, {{"length": 12}}'
        )
    return samples
