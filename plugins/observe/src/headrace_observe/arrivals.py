"""The intended arrival times of an open loop's requests, random or read from a file; and what requests hold."""

from __future__ import annotations

import math
import random
from typing import TYPE_CHECKING, Any

from headrace.errors import InputError
from headrace.plugins import read_lines
from headrace_formats import read_json

if TYPE_CHECKING:
    import os
    from collections.abc import Iterator

__all__ = ["poisson", "read_arrivals", "read_samples"]


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
    one, so that a column of time stamps may be given as it is.

    Raises:
        InputError: The file cannot be read or has no times, or a line is no time or is before the line above it.
    """
    try:
        lines = read_lines(path)
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        raise InputError(f"the arrivals in {path} cannot be read: {why}") from error
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
    try:
        lines = read_lines(path)
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        raise InputError(f"the sample requests in {path} cannot be read: {why}") from error
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
