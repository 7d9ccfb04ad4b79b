"""The figures of `headrace bench`, beside two measurements that share no code with it.

- ``closed``: clients that wait for each answer. By hand: each client thread reads the clock around its calls, and what
  ended in the window is counted and sorted. By perf_analyzer's method (its synchronous one): the same clients,
  windows in a row until three agree within 10 %, in requests per second and in mean latency; these are taken together.
- ``open``: arrivals of a Poisson process. By hand: a loop sleeps until the next is due, submits it, and each latency
  counts from the time at which it was due.
- ``stall``: a backend that sleeps 2 ms, and once in five seconds for one second. A closed loop of one client sends
  nothing meanwhile, so one of its latencies shows it and its p99 does not; in an open loop it is in p99.

All sides of a cell are measured in turn on one pipeline; printed are the medians, over the rounds, of bench over
the other side. Aimed at is 5 % for throughput, mean and p50. Of 40 clients 16 are served at a time and 24 wait, so half
of the requests wait for one batch and half for two: the p50 lies between those and falls to either, and the mean says
more; of 32 clients all wait for one. The backend sleeps, so that the clients' own work takes
nothing from it. Latencies of the closed loop cover the call from its start to its return in the client's thread,
those of the open loop what passes from the intended arrival to the answer.

    python -m benchmarks.observe_bench [--part closed open stall] [--seconds 2] [--rounds 5] [--json FILE]
"""

from __future__ import annotations

import itertools
import math
import random
import statistics
import threading
import time
from functools import partial
from typing import TYPE_CHECKING, Any

from benchmarks.load import arguments, environment, print_environment, save

import headrace
from headrace_observe.arrivals import poisson
from headrace_observe.bench import LoadSpec, measure_loads
from headrace_observe.measurement import Plan, Point

if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import Future

    Figures = dict[str, float]

PARTS = ("closed", "open", "stall")
CONFIG = {"backend": "Sleeps", "max": 8, "instance_num": 2}
WINDOWS = 3
MOST_WINDOWS = 10
AGREE = 0.10


class Sleeps(headrace.Backend):
    """Sleep 8 ms and half a millisecond per request."""

    max = None

    def forward(self, batch: list[dict[str, Any]]) -> None:
        """Sleep, then give `data` back."""
        time.sleep(0.008 + 0.0005 * len(batch))
        for request in batch:
            request["result"] = request["data"]


class Stalls(headrace.Backend):
    """Sleep 2 ms, and once a second, two seconds after the first request."""

    def init(self, options: Any, context: headrace.InitContext) -> None:
        """Note that nothing has come yet."""
        self.due = math.inf

    def forward(self, batch: list[dict[str, Any]]) -> None:
        """Sleep, then give `data` back."""
        now = time.perf_counter()
        if self.due == math.inf:
            self.due = now + 2.0
        stalls = now >= self.due
        time.sleep(1.0 if stalls else 0.002)
        if stalls:
            self.due = now + 5.0
        for request in batch:
            request["result"] = request["data"]


def figures(latencies: list[float], seconds: float) -> Figures:
    """Return requests per second, and percentiles by sorting, in milliseconds."""
    ordered = sorted(latencies)
    if not ordered:
        return dict.fromkeys(("rps", "mean", "p50", "p90", "p99"), math.nan)
    at = {p: ordered[min(len(ordered) - 1, int(len(ordered) * p / 100))] for p in (50, 90, 99)}
    mean = 1000 * statistics.fmean(ordered)
    return {"rps": len(ordered) / seconds, "mean": mean, **{f"p{p}": 1000 * at[p] for p in at}}


def by_bench(pipe: headrace.Pipeline, spec: LoadSpec, seconds: float) -> Figures:
    points: list[Point] = []
    measure_loads(pipe, [{"data": 1}], [spec], Plan(0.25 * seconds, seconds=seconds), points.append)
    found = points[0].to_dict()
    latency = found["latency_ms"]
    return {
        "rps": found["throughput_rps"],
        **{
            key: math.nan if latency[key] is None else latency[key]
            for key in ("mean", "p50", "p90", "p99")
        },
    }


class Clients:
    """Threads that read the clock around each of their calls, until they are told to end."""

    def __init__(self, pipe: headrace.Pipeline, clients: int) -> None:
        self._pipe = pipe
        self._goes_on = True
        self._ended: list[list[tuple[float, float]]] = [[] for _ in range(clients)]
        self._threads = [threading.Thread(target=self._send, args=(e,)) for e in self._ended]
        for thread in self._threads:
            thread.start()

    def _send(self, ended: list[tuple[float, float]]) -> None:
        while self._goes_on:
            began = time.perf_counter()
            self._pipe({"data": 1})
            now = time.perf_counter()
            ended.append((now, now - began))

    def between(self, start: float, stop: float) -> list[float]:
        """Return the latencies of the calls that ended in a span of time."""
        return [latency for one in self._ended for at, latency in [*one] if start <= at < stop]

    def end(self) -> None:
        """Let each client end with the answer that it waits for."""
        self._goes_on = False
        for thread in self._threads:
            thread.join()


def closed_by_hand(pipe: headrace.Pipeline, clients: int, seconds: float) -> Figures:
    sending = Clients(pipe, clients)
    time.sleep(0.25 * seconds)
    start = time.perf_counter()
    time.sleep(seconds)
    stop = time.perf_counter()
    sending.end()
    return figures(sending.between(start, stop), stop - start)


def closed_by_windows(pipe: headrace.Pipeline, clients: int, seconds: float) -> Figures:
    """Measure windows until three in a row agree."""
    sending = Clients(pipe, clients)
    time.sleep(0.25 * seconds)
    windows: list[tuple[float, list[float]]] = []
    stop = time.perf_counter()
    for _ in range(MOST_WINDOWS):
        start = stop
        time.sleep(seconds / WINDOWS)
        stop = time.perf_counter()
        windows.append((stop - start, sending.between(start, stop)))
        last = windows[-WINDOWS:]
        if len(last) == WINDOWS and all(latencies for _, latencies in last):
            rates = [len(latencies) / span for span, latencies in last]
            means = [statistics.fmean(latencies) for _, latencies in last]
            if all(max(row) - min(row) <= AGREE * max(row) for row in (rates, means)):
                break
    sending.end()
    kept = windows[-WINDOWS:]
    together = [*itertools.chain(*(latencies for _, latencies in kept))]
    return figures(together, sum(span for span, _ in kept))


def open_by_hand(pipe: headrace.Pipeline, rate: float, seconds: float, seed: int) -> Figures:
    draw = random.Random(seed)
    began = time.perf_counter()
    first, last = began + 0.25 * seconds, began + 1.25 * seconds
    found: list[tuple[float, float]] = []
    futures = []
    due = began + draw.expovariate(rate)
    while due < last:
        if (left := due - time.perf_counter()) > 0:
            time.sleep(left)

        def noted(_: Future[Any], due: float = due) -> None:
            found.append((now := time.perf_counter(), now - due))

        futures.append(pipe.submit({"data": 1}))
        futures[-1].add_done_callback(noted)
        due += draw.expovariate(rate)
    for future in futures:
        future.result()
    return figures([latency for at, latency in found if first <= at < last], seconds)


def compared(name: str, sides: dict[str, Callable[[], Figures]], rounds: int) -> dict[str, Any]:
    """Measure the sides in turn; print and give bench over each other one."""
    rows: dict[str, list[Figures]] = {side: [] for side in sides}
    for _, side in itertools.product(range(rounds), sides):
        rows[side].append(sides[side]())
    cell: dict[str, Any] = {"rounds": rows, "ratio": {}}
    for side in [*sides][1:]:
        pairs = [*zip(rows["bench"], rows[side], strict=True)]
        ratio = {key: statistics.median(a[key] / b[key] for a, b in pairs) for key in rows[side][0]}
        cell["ratio"][side] = ratio
        rps = statistics.median(row["rps"] for row in rows["bench"])
        shown = "".join(f"{value:9.3f}" for value in ratio.values())
        print(f"{name:18}{rps:9.1f}  over {side:16}{shown}")
    return cell


def stall(seconds: float) -> dict[str, Any]:
    """Measure a backend that stalls under both loads."""
    found = {}
    about = {"kind": "open", "rate": 100.0}
    for name, spec in (
        ("closed", LoadSpec(clients=1)),
        ("open", LoadSpec(about=about, arrivals=lambda: poisson(100.0, 1))),
    ):
        with headrace.pipe({"backend": "Stalls"}) as pipe:
            points: list[Point] = []
            plan = Plan(0.0, seconds=seconds)
            measure_loads(pipe, [{"data": 1}], [spec], plan, points.append)
        found[name] = points[0].to_dict()
        print(
            f"stall, {name}: p50, p99, max ms",
            *(points[0].latency_ms[k] for k in ("p50", "p99", "max")),
        )
        print(f"  the clock: {points[0].clock}")
    return found


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--part", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--seconds", type=float, default=2.0, help="of one measurement")
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    seconds, rounds = (0.2, 1) if given.quick else (given.seconds, given.rounds)
    about = environment(["headrace", "headrace-observe"])
    print_environment(about)
    headrace.register("Sleeps", Sleeps)
    headrace.register("Stalls", Stalls)
    cells: dict[str, Any] = {}
    if {"closed", "open"} & {*given.part}:
        print(
            f"{'load':18}{'req/s':>9}  {'bench over':21}"
            f"{'req/s':>9}{'mean':>9}{'p50':>9}{'p90':>9}{'p99':>9}"
        )
    with headrace.pipe(CONFIG) as pipe:
        for clients in (1, 10, 32, 40) if "closed" in given.part else ():
            cells[f"closed {clients}"] = compared(
                f"closed {clients}",
                {
                    "bench": partial(by_bench, pipe, LoadSpec(clients=clients), seconds),
                    "by hand": partial(closed_by_hand, pipe, clients, seconds),
                    "perf_analyzer's": partial(closed_by_windows, pipe, clients, seconds),
                },
                rounds,
            )
        for rate in (50.0, 300.0) if "open" in given.part else ():
            spec = LoadSpec(about={"rate": rate}, arrivals=partial(poisson, rate, 1))
            cells[f"open {rate:g}/s"] = compared(
                f"open {rate:g}/s",
                {
                    "bench": partial(by_bench, pipe, spec, seconds),
                    "by hand": partial(open_by_hand, pipe, rate, seconds, 1),
                },
                rounds,
            )
    if "stall" in given.part:
        cells["stall"] = stall(0.5 if given.quick else 5.0)
    save(given.json, about, {"cells": cells})


if __name__ == "__main__":
    main()
