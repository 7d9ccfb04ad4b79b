"""The time that the main thread loses by running no steps: calls in it beside calls in another thread.

The main thread runs its request itself where an instance is idle. Else a thread of the pool runs the request
while the main thread waits. Printed per case are the microseconds per call in the main thread and in
another thread, their ratio, and the time that the main thread loses per call:

- ``idle``: no other thread calls. One backend does nothing, others sleep 0.2, 1 and 5 ms.
- ``busy``: two other threads call the same node all the time.
- ``list``, ``submit``: a list of eight requests; one future, and waiting for it.
- ``thread``: a backend with a thread of its own.

Both sides run in turn, in several rounds; the figures are the medians.

    python -m benchmarks.scheduling.main_thread [--quick] [--json FILE]
"""

from __future__ import annotations

import statistics
import threading
import time
from typing import TYPE_CHECKING, Any

from benchmarks.load import arguments, environment, print_environment, save

import headrace

if TYPE_CHECKING:
    from collections.abc import Callable

SLEEPS_MS = (0.2, 1.0, 5.0)


class Nothing(headrace.Backend):
    """``result = data``."""

    max = 8

    def forward(self, batch: list[dict[str, Any]]) -> None:
        """Copy."""
        for request in batch:
            request["result"] = request["data"]


class Sleeps(headrace.Backend):
    """Sleeps as a model that releases the interpreter lock does."""

    max = 8

    class Options(headrace.Options):
        """Options of Sleeps."""

        sleep_ms: float = 1.0

    def init(self, options: Any, context: headrace.InitContext) -> None:
        """Take the time."""
        self._sleep_s = options.sleep_ms / 1000

    def forward(self, batch: list[dict[str, Any]]) -> None:
        """Sleep and copy."""
        time.sleep(self._sleep_s)
        for request in batch:
            request["result"] = request["data"]


def one(pipe: headrace.Pipeline) -> None:
    """Call with one request."""
    pipe({"data": 1})


def many(pipe: headrace.Pipeline) -> None:
    """Call with a list."""
    pipe([{"data": k} for k in range(8)])


def future(pipe: headrace.Pipeline) -> None:
    """Submit one request and wait."""
    pipe.submit({"data": 1}).result()


def cases() -> list[tuple[str, dict[str, Any], Callable[[headrace.Pipeline], None], int, float]]:
    """Return per case its name, configuration, call, number of other callers, and cost in ms."""
    quick = {"backend": "Nothing"}
    found: list[Any] = [("idle 0 ms", quick, one, 0, 0.01)]
    sleeps = [(ms, {"backend": "Sleeps", "sleep_ms": ms}) for ms in SLEEPS_MS]
    found += [(f"idle {ms} ms", config, one, 0, ms) for ms, config in sleeps]
    found += [("busy 0 ms", quick, one, 2, 0.1)]
    found += [(f"busy {ms} ms", config, one, 2, ms) for ms, config in sleeps]
    found += [("list 0 ms", quick, many, 0, 0.05), ("submit 0 ms", quick, future, 0, 0.05)]
    found += [("thread 0 ms", {"backend": "BackgroundThread[Nothing]"}, one, 0, 0.05)]
    return found


def timed(call: Callable[[headrace.Pipeline], None], pipe: headrace.Pipeline, times: int) -> float:
    """Return the microseconds per call."""
    begun = time.perf_counter()
    for _ in range(times):
        call(pipe)
    return (time.perf_counter() - begun) / times * 1e6


def in_thread(function: Callable[[], float]) -> float:
    """Run a function in another thread."""
    found: list[float] = []
    thread = threading.Thread(target=lambda: found.append(function()))
    thread.start()
    thread.join()
    return found[0]


def measure(
    config: dict[str, Any],
    call: Callable[[headrace.Pipeline], None],
    others: int,
    times: int,
    rounds: int,
) -> tuple[float, float]:
    """Return the medians in the main thread and in another."""
    stop = threading.Event()
    with headrace.pipe(config) as pipe:

        def load() -> None:
            while not stop.is_set():
                one(pipe)

        threads = [threading.Thread(target=load) for _ in range(others)]
        for thread in threads:
            thread.start()
        timed(call, pipe, max(1, times // 10))
        mine, theirs = [], []
        for _ in range(rounds):
            mine.append(timed(call, pipe, times))
            theirs.append(in_thread(lambda: timed(call, pipe, times)))
        stop.set()
        for thread in threads:
            thread.join()
    return statistics.median(mine), statistics.median(theirs)


def main() -> None:
    """Measure and print."""
    args = arguments(__doc__).parse_args()
    seconds, rounds = (0.01, 1) if args.quick else (0.3, 7)
    about = environment(["headrace"])
    headrace.register("Nothing", Nothing, replace=True)
    headrace.register("Sleeps", Sleeps, replace=True)
    print_environment(about)
    print(f"{'case':14} {'main µs':>9} {'thread µs':>10} {'ratio':>6} {'loses µs':>9}")
    figures = {}
    for name, config, call, others, cost_ms in cases():
        times = max(3, int(seconds * 1000 / (cost_ms * (1 + others))))
        main_us, thread_us = measure(config, call, others, times, rounds)
        figures[name] = {"main_us": main_us, "thread_us": thread_us}
        ratio, loss = main_us / thread_us, main_us - thread_us
        print(f"{name:14} {main_us:9.1f} {thread_us:10.1f} {ratio:6.2f} {loss:9.1f}", flush=True)
    save(args.json, about, {"cases": figures})


if __name__ == "__main__":
    main()
