"""What a request pays for naming its model, and what requests feel while a new version is built aside.

- ``lease``: microseconds of taking and giving back a lease, of a request by name, and of the same request at the
  bare pipeline, in turn: processor time of the thread, which other programs of the machine do not add to; the medians of
  the rounds.
- ``update``: the latency of requests of 5 ms that compute in native code, in windows of the same length: while
  nothing else happens, and while a version is built aside again and again, each build with a second of native
  computing in one thread. There is one client less than there are processors, so that a build finds a free one; other
  programs on the machine take that away. The ratio is that of the 99th percentiles, the median over the rounds.

    python -m benchmarks.models.lease [--quick] [--json FILE]
"""

from __future__ import annotations

import hashlib
import statistics
import threading
import time
from typing import TYPE_CHECKING, Any

from benchmarks.load import arguments, environment, print_environment, save, usable_cpus

import headrace
from headrace_models import Models

if TYPE_CHECKING:
    from collections.abc import Callable

CLIENTS = max(1, usable_cpus() - 1)


def compute(seconds: float) -> None:
    """Compute for so long in one thread, without the interpreter lock, as a library does."""
    block = bytes(1 << 18)
    until = time.perf_counter() + seconds
    while time.perf_counter() < until:
        hashlib.sha256(block)


class Computes(headrace.Backend):
    """``result = data`` after some time of computing; building takes its time as well.

    Reads:
        data: Anything.
    Writes:
        result: The same object.
    Batch:
        1.

    Raises:
        Nothing.
    Source:
        own
    """

    class Options(headrace.Options):
        """Options of Computes."""

        ms: float = 5.0
        build_s: float = 1.0

    def init(self, options: Any, context: Any) -> None:
        """Take the time of a build."""
        self.seconds = options.ms / 1e3
        compute(options.build_s)

    def forward(self, batch: list[dict[str, Any]]) -> None:
        """Take the time of a request."""
        compute(self.seconds)
        for request in batch:
            request["result"] = request["data"]


def us_per_call(function: Callable[[], Any], calls: int) -> float:
    """Return the microseconds of this thread per call, those of the loop included."""
    begin = time.thread_time()
    for _ in range(calls):
        function()
    return (time.thread_time() - begin) / calls * 1e6


def lease(rounds: int, calls: int) -> dict[str, float]:
    """Measure a lease, a request by name, and a request at the pipeline."""
    data = {"data": 1}
    with Models({"m": {"backend": "Identity"}}) as models, models.lease("m") as pipe:

        def leased() -> None:
            models._lease("m").leases.give_back()

        sides = {
            "lease": leased,
            "request by name": lambda: models("m", data),
            "request at the pipeline": lambda: pipe(data),
        }
        found: dict[str, list[float]] = {name: [] for name in sides}
        for _ in range(rounds):
            for name, side in sides.items():
                found[name].append(us_per_call(side, calls))
    return {name: statistics.median(values) for name, values in found.items()}


def latencies_ms(models: Models, ended: threading.Event) -> list[float]:
    """Send requests until the event; give the milliseconds of each."""
    found: list[float] = []
    lock = threading.Lock()

    def client() -> None:
        own = []
        while not ended.is_set():
            begin = time.perf_counter()
            models("m", {"data": 1})
            own.append((time.perf_counter() - begin) * 1e3)
        with lock:
            found.extend(own)

    threads = [threading.Thread(target=client) for _ in range(CLIENTS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


def window(models: Models, seconds: float, *, updating: bool) -> list[float]:
    """Give the latencies of one window, in which versions are built aside or not."""
    ended = threading.Event()

    def other() -> None:
        until = time.perf_counter() + seconds
        while updating and time.perf_counter() < until:
            models.update("m")
        ended.wait(max(0.0, until - time.perf_counter()))
        ended.set()

    thread = threading.Thread(target=other)
    thread.start()
    found = latencies_ms(models, ended)
    thread.join()
    return found


def p99(values: list[float]) -> float:
    """Return the 99th percentile."""
    return sorted(values)[int(len(values) * 0.99)]


def update(rounds: int, seconds: float, build_s: float) -> dict[str, Any]:
    """Measure the latency of requests in turn with and without builds."""
    headrace.register("Computes", Computes)
    config = {"backend": f"Computes(build_s={build_s})", "instance_num": CLIENTS}
    quiet, building = [], []
    with Models({"m": config}) as models:
        for _ in range(rounds):
            quiet.append(p99(window(models, seconds, updating=False)))
            building.append(p99(window(models, seconds, updating=True)))
        versions = int(models.status()["m"]["version"])
    ratios = [with_ / without for with_, without in zip(building, quiet, strict=True)]
    return {
        "quiet_p99_ms": statistics.median(quiet),
        "building_p99_ms": statistics.median(building),
        "ratio": statistics.median(ratios),
        "updates": versions - 1,
    }


def main() -> None:
    """Print both parts."""
    asked = arguments(__doc__).parse_args()
    about = environment(["headrace", "headrace-models"])
    print_environment(about)
    rounds, calls = (1, 1000) if asked.quick else (9, 100_000)
    costs = lease(rounds, calls)
    for name, us in costs.items():
        print(f"{name:<24} {us:7.3f} us")
    felt = update(1, 0.3, 0.05) if asked.quick else update(5, 6.0, 1.0)
    print(
        f"\np99 of requests: {felt['quiet_p99_ms']:.2f} ms alone, {felt['building_p99_ms']:.2f} ms while built aside"
        f" ({felt['updates']} updates), ratio {felt['ratio']:.2f}"
    )
    save(asked.json, about, {"lease_us": costs, "update": felt})


if __name__ == "__main__":
    main()
