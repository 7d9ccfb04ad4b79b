"""Microseconds per request while the process has 1000 other nodes, and while 1000 backends are registered.

- ``call``: a call that finds the node idle.
- ``submit``: one future and waiting for it, in a thread that is not the main thread.
- ``queue``: a call that passes the queue, since its node has a ``timeout_ms``.

The two numbers of nodes are measured in turn, in several rounds; the figures are the medians. Backends stay
registered, so the rounds beside them come last.

    python -m benchmarks.scheduling.many_nodes [--quick] [--json FILE]
"""

from __future__ import annotations

import statistics
import threading
import time
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from benchmarks.load import arguments, environment, print_environment, save

import headrace

if TYPE_CHECKING:
    from collections.abc import Callable


class Nothing(headrace.Backend):
    """``result = data``."""

    max = 8

    def forward(self, batch: list[dict[str, Any]]) -> None:
        """Copy."""
        for request in batch:
            request["result"] = request["data"]


def one(pipe: headrace.Pipeline) -> None:
    """Call with one request."""
    pipe({"data": 1})


def future(pipe: headrace.Pipeline) -> None:
    """Submit one request and wait."""
    pipe.submit({"data": 1}).result()


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


CASES: dict[str, tuple[dict[str, Any], Callable[[headrace.Pipeline], None]]] = {
    "call": ({"backend": "Nothing"}, one),
    "submit": ({"backend": "Nothing"}, future),
    "queue": ({"backend": "Nothing", "timeout_ms": 60000}, one),
}


def measure(nodes: int, times: int) -> dict[str, float]:
    """Return the microseconds per request of each case while so many nodes exist."""
    with ExitStack() as stack:
        for _ in range(nodes - 1):
            stack.enter_context(headrace.pipe({"backend": "Nothing"}))
        found = {}
        for name, (config, call) in CASES.items():
            with headrace.pipe(config) as pipe:
                in_thread(lambda: timed(call, pipe, max(1, times // 10)))  # noqa: B023
                found[name] = in_thread(lambda: timed(call, pipe, times))  # noqa: B023
        return found


def main() -> None:
    """Measure and print."""
    args = arguments(__doc__).parse_args()
    many, times, rounds = (20, 20, 1) if args.quick else (1000, 3000, 5)
    about = environment(["headrace"])
    headrace.register("Nothing", Nothing, replace=True)
    print_environment(about)
    begun = time.perf_counter()
    runs = [(measure(1, times), measure(many, times)) for _ in range(rounds)]
    for number in range(many):
        headrace.register(
            f"Nothing{number}", type(f"Nothing{number}", (Nothing,), {}), replace=True
        )
    registered = [measure(1, times) for _ in range(rounds)]
    columns = f"{f'{many} nodes':>12} {'ratio':>6} {f'{many} backends':>14} {'ratio':>6}"
    print(f"{'case':10} {'1 node':>8} {columns}")
    figures = {}
    for name in CASES:
        few_us, many_us = (statistics.median(run[k][name] for run in runs) for k in (0, 1))
        registered_us = statistics.median(run[name] for run in registered)
        figures[name] = {"one_us": few_us, "many_us": many_us, "registered_us": registered_us}
        print(
            f"{name:10} {few_us:8.1f} {many_us:12.1f} {many_us / few_us:6.2f} "
            f"{registered_us:14.1f} {registered_us / few_us:6.2f}"
        )
    print(f"{rounds} rounds, {time.perf_counter() - begun:.0f} s")
    save(args.json, about, {"cases": figures})


if __name__ == "__main__":
    main()
