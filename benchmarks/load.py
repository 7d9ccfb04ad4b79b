"""Measuring shared by the benchmarks: a closed-loop load, sides in turn, and the environment.

A *side* is one way of doing the same work. All sides of a cell run in one process, one after the
other, several rounds; what is compared is the ratio of two sides within a round, and the median of
these ratios, because a shared machine changes its speed from minute to minute.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import json
import math
import os
import platform
import shlex
import statistics
import subprocess
import sys
import threading
import time
from array import array
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.figures import Figure, as_dicts, compare

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

__all__ = [
    "Load",
    "arguments",
    "beside",
    "drive",
    "environment",
    "first_cores",
    "in_turn",
    "middle",
    "on_cores",
    "print_environment",
    "ratio",
    "save",
    "usable_cpus",
]

ROOT = Path(__file__).resolve().parents[1]

_MOST_SAMPLES = 200_000
"""Most latencies that are sorted for the percentiles; of more latencies every n-th is sorted."""


@dataclass(frozen=True)
class Load:
    """What one window of load showed.

    Attributes:
        clients: Threads that each sent one request after the other.
        seconds: Length of the window.
        rps: Requests answered per second.
        p50_us, p99_us: Latency as a client sees it, from call to return, in microseconds.
        cpu_us: Processor time per request, of the whole process (clients included) and of the
            other processes that were counted with it.
        cores: The same processor time per second.
        slowest: Requests of the slowest client over the mean of all.
        others_us: The part of ``cpu_us`` that the other processes took.
    """

    clients: int
    seconds: float
    rps: float
    p50_us: float
    p99_us: float
    cpu_us: float
    cores: float
    slowest: float
    others_us: float = 0.0


def drive(
    call: Callable[[int], object],
    clients: int,
    seconds: float,
    warm_up: float = 0.2,
    others: Callable[[], float] = float,
) -> Load:
    """Send requests from ``clients`` threads, each its next one when the last is answered.

    The clock of a request covers the whole ``call(i)``; one reading of it ends a request and starts
    the next, so the driver's own work (two list operations) is part of each. The threads run
    through warm-up and window without a pause; the window is cut out of what they noted.

    Args:
        call: Sends request number ``i`` and checks the answer.
        clients: How many threads.
        seconds: Length of the window; it is longer where no request is answered in that time.
        warm_up: Seconds of load before it, at most as many as the window has.
        others: Gives the seconds of processor time of the other processes that serve these
            requests; there are none unless it is given.

    Raises:
        RuntimeError: A call raised.
    """
    latencies = [array("d") for _ in range(clients)]
    errors: list[BaseException] = []
    running = [True]
    start = threading.Barrier(clients + 1)

    def client(index: int) -> None:
        note, now, i = latencies[index].append, time.perf_counter, index
        start.wait()
        try:
            then = now()
            while running:
                call(i)
                after = now()
                note(after - then)
                then = after
                i += clients
        except BaseException as error:  # noqa: BLE001 - reported by the driving thread
            errors.append(error)

    threads = [threading.Thread(target=client, args=(k,), daemon=True) for k in range(clients)]
    gc.collect()
    for thread in threads:
        thread.start()
    start.wait()
    time.sleep(min(warm_up, seconds))
    began, cpu, served = time.perf_counter(), time.process_time(), others()
    first = [len(noted) for noted in latencies]
    time.sleep(seconds)
    while not errors and first == [len(noted) for noted in latencies]:
        time.sleep(seconds)  # no request ended in the window: the machine is slow or busy
    ended, cpu_ended, served_ended = time.perf_counter(), time.process_time(), others()
    last = [len(noted) for noted in latencies]
    running.clear()
    for thread in threads:
        thread.join()
    if errors:
        raise RuntimeError(f"a request failed: {errors[0]!r}") from errors[0]
    counts = [b - a for a, b in zip(first, last, strict=True)]
    done, length, elsewhere = sum(counts), ended - began, served_ended - served
    used = cpu_ended - cpu + elsewhere
    window = array("d")
    for noted, a, b in zip(latencies, first, last, strict=True):
        window.extend(noted[a:b])
    ordered = sorted(window[:: max(1, done // _MOST_SAMPLES)])
    return Load(
        clients=clients,
        seconds=length,
        rps=done / length,
        p50_us=1e6 * ordered[len(ordered) // 2],
        p99_us=1e6 * ordered[len(ordered) * 99 // 100],
        cpu_us=1e6 * used / done,
        cores=used / length,
        slowest=min(counts) * clients / done,
        others_us=1e6 * elsewhere / done,
    )


def in_turn(sides: Mapping[str, Callable[[], Load]], rounds: int) -> dict[str, list[Load]]:
    """Run all sides one after the other, ``rounds`` times; give the loads of each, by round."""
    loads: dict[str, list[Load]] = {name: [] for name in sides}
    for _ in range(rounds):
        for name, side in sides.items():
            loads[name].append(side())
    return loads


def middle(loads: Sequence[Load]) -> Load:
    """Return the load with the median of the requests per second (the lower of two)."""
    return sorted(loads, key=lambda load: load.rps)[(len(loads) - 1) // 2]


def ratio(ours: Sequence[Load], theirs: Sequence[Load], what: str = "rps") -> float:
    """Return the median over the rounds of ours / theirs, for one attribute of `Load`; NaN where theirs is 0 in all."""
    pairs = [(getattr(a, what), getattr(b, what)) for a, b in zip(ours, theirs, strict=True)]
    return statistics.median([a / b for a, b in pairs if b] or [math.nan])


MEASURED = {
    "rps": ("requests a second", "1/s", "higher", 1.0),
    "p99_us": ("99th percentile of the latency", "ms", "lower", 1e-3),
    "cpu_us": ("processor time of a request", "µs", "lower", 1.0),
}
"""What is kept of a load: its name, its unit, which is better, and the factor to that unit."""


def beside(
    what: str,
    ours: Sequence[Load],
    name: str,
    theirs: Sequence[Load],
    measured: str = "rps",
    *,
    own: bool = False,
) -> Figure:
    """Return the figure of our loads beside those of a side (``own``: ours too), for one key of `MEASURED`."""
    said, unit, better, factor = MEASURED[measured]
    sides = [[factor * getattr(load, measured) for load in loads] for loads in (ours, theirs)]
    return compare(f"{what}: {said}", unit, better, sides[0], name, sides[1], own=own)


def usable_cpus() -> int:
    """Return the number of processors this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


@contextlib.contextmanager
def on_cores(cores: Collection[int] | None, *, all_threads: bool = False) -> Iterator[None]:
    """Let this thread, and the threads and processes that it starts meanwhile, use some cores alone.

    None changes nothing. It is for systems that tell a thread its cores, as Linux does; with ``all_threads`` it
    holds for all threads of this process. Processes that were started before keep theirs.
    """
    if cores is None:
        yield
        return
    before = os.sched_getaffinity(0)
    _use(cores, all_threads=all_threads)
    try:
        yield
    finally:
        _use(before, all_threads=all_threads)


def _use(cores: Collection[int], *, all_threads: bool) -> None:
    threads = [int(one.name) for one in Path("/proc/self/task").iterdir()] if all_threads else [0]
    for thread in threads:
        with contextlib.suppress(ProcessLookupError):  # it has just ended
            os.sched_setaffinity(thread, cores)


def first_cores(count: int | None) -> list[int] | None:
    """Return so many of the processors that this process may use, the lowest numbers; None for None."""
    return None if count is None else sorted(os.sched_getaffinity(0))[:count]


def environment(packages: Iterable[str]) -> dict[str, Any]:
    """Return processors, system, Python and the versions of ``packages`` (None: not installed)."""
    versions: dict[str, str | None] = {}
    for package in packages:
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            versions[package] = None
    return {
        "cpus": usable_cpus(),
        "load_average": round(os.getloadavg()[0], 1) if hasattr(os, "getloadavg") else None,
        "system": f"{platform.system()} {platform.machine()}",
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "switch_interval_ms": 1e3 * sys.getswitchinterval(),
        "packages": versions,
    }


def print_environment(about: Mapping[str, Any]) -> None:
    """Print one line with what `environment` gave."""
    packages = ", ".join(f"{name} {version or '-'}" for name, version in about["packages"].items())
    turns = f"switch interval {about['switch_interval_ms']:g} ms"
    print(f"{about['cpus']} CPUs, {about['system']}, {about['python']}, {turns}; {packages}\n")
    sys.stdout.flush()


def set_switch_interval(text: str) -> float:
    """Let threads of this process ask each other for the interpreter after so many milliseconds."""
    sys.setswitchinterval(float(text) / 1e3)
    return float(text)


def arguments(doc: str | None) -> argparse.ArgumentParser:
    """Make a parser with the options that all benchmarks share."""
    parser = argparse.ArgumentParser(description=(doc or "").splitlines()[0])
    parser.add_argument(
        "--switch-interval-ms", type=set_switch_interval, help="of CPython's threads"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write all figures there")
    parser.add_argument("--quick", action="store_true", help="short windows: shows that it runs")
    return parser


def save(
    path: Path | None,
    about: Mapping[str, Any],
    figures: Mapping[str, Any],
    kept: Sequence[Figure] = (),
) -> None:
    """Write what ran, environment and figures as JSON, if a file was asked for.

    Args:
        path: The file.
        about: What `environment` gave.
        figures: All figures of all rounds, in the form of the script.
        kept: Those that ``python -m benchmarks.figures`` takes from the file.
    """
    if path is None:
        return
    written = {"run": _run(), "environment": about, "kept": as_dicts(kept), **figures}
    text = json.dumps(written, indent=1, default=asdict)
    path.write_text(text + "\n", encoding="utf-8")
    print(f"\nwritten to {path}")


def _run() -> dict[str, str]:
    """Return script, command, commit of the checkout and date of this run."""
    script = Path(sys.modules["__main__"].__file__ or "").resolve().relative_to(ROOT)
    module = ".".join(script.with_suffix("").parts)
    words = [module, *sys.argv[1:]]
    if "--json" in words:
        place = words.index("--json")
        del words[place : place + 2]
    asked = ["git", "-C", str(ROOT), "rev-parse", "HEAD"]
    commit = subprocess.run(asked, capture_output=True, text=True, check=False).stdout.strip()
    return {
        "script": script.as_posix(),
        "command": f"python -m {shlex.join(words)}",
        "commit": commit[:10] or "0" * 10,
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
    }
