"""The cost of waiting requests: per request when many wait, and while nothing happens.

Two parts, each a table:

- ``many``: N requests are submitted while the instance is blocked, then it is let go; the time per
  request from the first submit to the last answer with N = 100 000, beside the same number of
  requests in lots of 100. Also the two halves of it (``enter``: all submits; ``answer``: from
  letting go to the last answer), and ``cancel``: one request taken back at a random place among N,
  beside futures of the standard library that belong to nothing (objects that no processor cache
  holds any more cost more to touch, whoever they belong to). The cases differ in
  how the requests wait: plainly, in batches, with priorities, weights, deadlines, or as one list.
  A lot of 100 also bears one wake-up of the thread that runs the batches.
- ``still``: processor time of the process, in per cent of one processor, while requests wait and
  no backend is due: for company (``batching_timeout``), behind a blocked or sleeping backend, for
  their deadline, for room in the queue; and while there are no requests at all.

The clock of a request in ``many`` covers `Pipeline.submit` (or `Pipeline.__call__` for lists), the
queue, a backend that does ``result = data``, and looking at its future; its dict is made before.
Processor time is that of the process. The interpreter's garbage collector runs as ever, and what it
costs to have 100 000 requests alive is part of the figures; the column ``gc`` says how much it is:
the more requests live, the more it goes through, and its cost per request is a step, not a slope.

    python -m benchmarks.scheduling.waiting [--part many still] [--waiting 100000] [--json FILE]
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import random
import statistics
import threading
import time
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, NamedTuple

from benchmarks.load import arguments, environment, print_environment, save

import headrace

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Options = Callable[[int], dict[str, Any]]

FEW = 100
WANTED_RATIO = 1.5
WANTED_PER_CENT = 1.0


class Gate:
    """Copies ``data`` to ``result``, but waits in the batch while it is shut.

    All instances of this process share one gate.
    """

    open = threading.Event()
    entered = threading.Semaphore(0)
    remaining = 0
    answered = threading.Event()

    def forward(self, batch: list[dict[str, Any]]) -> None:
        """Answer a batch."""
        if not Gate.open.is_set():
            Gate.entered.release()
            Gate.open.wait()
        for request in batch:
            request["result"] = request["data"]
        Gate.remaining -= len(batch)
        if Gate.remaining == 0:
            Gate.answered.set()


class Sleep100ms:
    """Copies ``data`` to ``result`` and sleeps 100 ms a batch."""

    def forward(self, batch: list[dict[str, Any]]) -> None:
        """Answer a batch."""
        time.sleep(0.1)
        for request in batch:
            request["result"] = request["data"]


# The part ``many``.


class Cost(NamedTuple):
    """Microseconds per request: wall time in two parts, processor time, and the collector's part."""

    enter: float
    answer: float
    cpu: float
    gc: float

    @property
    def total(self) -> float:
        """Return the wall time from the first submit to the last answer, per request."""
        return self.enter + self.answer


class Collector:
    """Adds up the processor time that garbage collections take, in seconds."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._began = 0.0

    def __call__(self, phase: str, _: dict[str, int]) -> None:
        """Note the begin or the end of a collection; it is called by the interpreter."""
        if phase == "start":
            self._began = time.thread_time()
        else:
            self.seconds += time.thread_time() - self._began


COLLECTOR = Collector()


class Case(NamedTuple):
    """One way for requests to wait: keys of the node, arguments of submit, keys of the request."""

    name: str
    keys: dict[str, Any]
    submit: Options
    request: Options


def nothing(_: int) -> dict[str, Any]:
    return {}


CASES = (
    Case("max=1", {"max": 1}, nothing, nothing),
    Case("max=8", {"max": 8}, nothing, nothing),
    Case("max=8, priorities", {"max": 8}, lambda k: {"priority": k * 7919 % 10}, nothing),
    Case("max=8, weights", {"max": 8}, nothing, lambda k: {"request_size": 1 + k % 4}),
    Case("max=8, deadlines", {"max": 8}, lambda k: {"timeout": 600.0 + k * 7919 % 60}, nothing),
)


def requests_of(case: Case, count: int) -> list[dict[str, Any]]:
    return [{"data": k, **case.request(k)} for k in range(count)]


def shut(pipe: headrace.Pipeline) -> Any:
    """Let one request take the instance and keep it; give its future."""
    Gate.open.clear()
    Gate.answered.clear()
    plug = pipe.submit({"data": None})
    Gate.entered.acquire()
    return plug


def lot(pipe: headrace.Pipeline, case: Case, count: int) -> Cost:
    """Let ``count`` requests wait, then answer them."""
    requests = requests_of(case, count)
    options = [case.submit(k) for k in range(count)]
    plug = shut(pipe)
    Gate.remaining = count + 1
    collected = COLLECTOR.seconds
    submit, cpu, began = pipe.submit, time.process_time(), time.perf_counter()
    futures = [submit(request, **extra) for request, extra in zip(requests, options, strict=True)]
    entered = time.perf_counter()
    Gate.open.set()
    Gate.answered.wait()
    for future in futures:
        future.result()
    ended, cpu_ended = time.perf_counter(), time.process_time()
    collected = COLLECTOR.seconds - collected
    plug.result()
    if any(request["result"] != k for k, request in enumerate(requests)):
        raise RuntimeError("another request's answer")
    return Cost(
        1e6 * (entered - began) / count,
        1e6 * (ended - entered) / count,
        1e6 * (cpu_ended - cpu) / count,
        1e6 * collected / count,
    )


def one_list(pipe: headrace.Pipeline, case: Case, count: int) -> Cost:
    """Send ``count`` requests as one list; nothing is blocked: what is not run waits."""
    requests = requests_of(case, count)
    Gate.open.set()
    collected = COLLECTOR.seconds
    cpu, began = time.process_time(), time.perf_counter()
    pipe(requests)
    ended, cpu_ended = time.perf_counter(), time.process_time()
    collected = COLLECTOR.seconds - collected
    if any(request["result"] != k for k, request in enumerate(requests)):
        raise RuntimeError("another request's answer")
    return Cost(0.0, *(1e6 * x / count for x in (ended - began, cpu_ended - cpu, collected)))


def cancels(pipe: headrace.Pipeline, case: Case, count: int, least: int) -> Cost:
    """Take requests back at random places among ``count``, a tenth of them at most."""
    taken, spent, cpu = 0, 0.0, 0.0
    while taken < least:
        requests = requests_of(case, count)
        plug = shut(pipe)
        futures = [pipe.submit(request, **case.submit(k)) for k, request in enumerate(requests)]
        chosen = random.Random(taken).sample(futures, min(least, max(1, count // 10)))
        Gate.remaining = count + 1 - len(chosen)
        cpu_began, began = time.process_time(), time.perf_counter()
        kept = [future for future in chosen if not future.cancel()]
        spent += time.perf_counter() - began
        cpu += time.process_time() - cpu_began
        if kept:
            raise RuntimeError("a waiting request could not be cancelled")
        taken += len(chosen)
        Gate.open.set()
        Gate.answered.wait()
        plug.result()
        for future in futures:
            if not future.cancelled():
                future.result()
    return Cost(0.0, 1e6 * spent / taken, 1e6 * cpu / taken, 0.0)


def bare_cancels(count: int, least: int) -> Cost:
    """Do the same as `cancels` with futures of the standard library that belong to no queue."""
    taken, spent, cpu = 0, 0.0, 0.0
    while taken < least:
        futures: list[Future[None]] = [Future() for _ in range(count)]
        chosen = random.Random(taken).sample(futures, min(least, max(1, count // 10)))
        cpu_began, began = time.process_time(), time.perf_counter()
        for future in chosen:
            future.cancel()
        spent += time.perf_counter() - began
        cpu += time.process_time() - cpu_began
        taken += len(chosen)
    return Cost(0.0, 1e6 * spent / taken, 1e6 * cpu / taken, 0.0)


def mean(costs: list[Cost]) -> Cost:
    return Cost(*(statistics.fmean(of) for of in zip(*costs, strict=True)))


def in_lots(measure: Callable[[int], Cost], count: int) -> Cost:
    """Measure lots of `FEW`, together ``count`` requests."""
    return mean([measure(FEW) for _ in range(max(1, count // FEW))])


def compare(
    name: str, few: Callable[[], Cost], many: Callable[[], Cost], rounds: int
) -> dict[str, Any]:
    """Measure both in turn; print a line and give the figures."""
    pairs = []
    few()
    for _ in range(rounds):
        gc.collect()
        one = few()
        gc.collect()
        pairs.append((one, many()))
    ratios = {
        "total": statistics.median(b.total / a.total for a, b in pairs),
        "cpu": statistics.median(b.cpu / a.cpu for a, b in pairs),
        "cpu_without_gc": statistics.median((b.cpu - b.gc) / (a.cpu - a.gc) for a, b in pairs),
    }
    a, b = sorted(pairs, key=lambda pair: pair[1].total)[(rounds - 1) // 2]
    columns = ((a.total, b.total), (a.enter, b.enter), (a.answer, b.answer), (a.cpu, b.cpu))
    cells = "  ".join(f"{x:7.2f}{y:8.2f}" for x, y in (*columns, (a.gc, b.gc)))
    shares = "".join(f"{value:7.2f}x" for value in ratios.values())
    print(f"{name:24}{cells}  {shares}", flush=True)
    rows = [{"few": x._asdict(), "many": y._asdict()} for x, y in pairs]
    return {"case": name, "ratios": ratios, "rounds": rows}


def many(waiting: int, rounds: int) -> list[dict[str, Any]]:
    """Compare ``waiting`` requests with lots of `FEW`, in all cases."""
    both, heads = f"{FEW:>7}{waiting:>8}", ("total", "enter", "answer", "CPU", "gc")
    print(
        f"us per request, with so many waiting; ratios: total, CPU, CPU without gc\n{'':24}", end=""
    )
    print("  ".join([both] * len(heads)))
    print(f"{'':24}" + "  ".join(f"{head:>15}" for head in heads))
    figures = []
    for case in CASES:
        keys = {"backend": "Gate", "queue_size": waiting + 1, **case.keys}
        with headrace.pipe(keys) as pipe:

            def measure(count: int, pipe: Any = pipe, case: Case = case) -> Cost:
                return lot(pipe, case, count)

            def few(measure: Callable[[int], Cost] = measure) -> Cost:
                return in_lots(measure, waiting)

            def lots(measure: Callable[[int], Cost] = measure) -> Cost:
                return measure(waiting)

            figures.append(compare(case.name, few, lots, rounds))
    plain = CASES[1]
    with headrace.pipe({"backend": "Gate", "queue_size": waiting + 1, **plain.keys}) as pipe:
        figures.append(
            compare(
                "max=8, one list",
                lambda: in_lots(lambda count: one_list(pipe, plain, count), waiting),
                lambda: one_list(pipe, plain, waiting),
                rounds,
            )
        )
    worst, worst_cpu = (max(of["ratios"][key] for of in figures) for key in ("total", "cpu"))
    with headrace.pipe({"backend": "Gate", "queue_size": waiting + 1, **plain.keys}) as pipe:
        least = max(10, waiting // 100)
        figures.append(
            compare(
                "cancel one",
                lambda: cancels(pipe, plain, FEW, least),
                lambda: cancels(pipe, plain, waiting, least),
                rounds,
            )
        )
    figures.append(
        compare(
            "cancel a bare Future",
            lambda: bare_cancels(FEW, least),
            lambda: bare_cancels(waiting, least),
            rounds,
        )
    )
    print(
        f"  greatest ratio of waiting {worst:.2f}x, of processor time {worst_cpu:.2f}x;"
        f" wanted: {WANTED_RATIO}x\n",
        flush=True,
    )
    return figures


# The part ``still``.


@contextlib.contextmanager
def blocked(**keys: Any) -> Iterator[headrace.Pipeline]:
    """Build a pipeline one instance of which is blocked; at the end everything is answered."""
    with headrace.pipe({"backend": "Gate", "max": 8, "queue_size": 10_000, **keys}) as pipe:
        shut(pipe)
        try:
            yield pipe
        finally:
            Gate.open.set()


@contextlib.contextmanager
def calling(pipe: headrace.Pipeline, count: int, **options: Any) -> Iterator[None]:
    """Let threads wait in calls of the pipeline."""
    threads = [
        threading.Thread(target=pipe, args=({"data": k},), kwargs=options) for k in range(count)
    ]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        Gate.open.set()
        for thread in threads:
            thread.join()


@contextlib.contextmanager
def awaiting(pipe: headrace.Pipeline, count: int) -> Iterator[None]:
    """Let coroutines wait, in an event loop in a thread of its own."""

    async def all_of() -> None:
        await asyncio.gather(*(pipe.call_async({"data": k}) for k in range(count)))

    thread = threading.Thread(target=lambda: asyncio.run(all_of()))
    thread.start()
    try:
        yield
    finally:
        Gate.open.set()
        thread.join()


@contextlib.contextmanager
def idle(backend: str) -> Iterator[headrace.Pipeline]:
    """Have a pipeline that has worked and has nothing to do."""
    Gate.open.set()
    with headrace.pipe({"backend": backend, "max": 8, "instance_num": 2}) as pipe:
        for k in range(100):
            pipe({"data": k})
        pipe.submit({"data": 0}).result()
        yield pipe


@contextlib.contextmanager
def submitted(count: int, keys: dict[str, Any], **options: Any) -> Iterator[headrace.Pipeline]:
    """Have submitted requests wait behind a blocked instance."""
    with blocked(**keys) as pipe:
        for k in range(count):
            pipe.submit({"data": k}, **options)
        yield pipe


@contextlib.contextmanager
def called(count: int, keys: dict[str, Any], **options: Any) -> Iterator[headrace.Pipeline]:
    """Have threads wait in calls behind a blocked instance."""
    with blocked(**keys) as pipe, calling(pipe, count, **options):
        yield pipe


@contextlib.contextmanager
def awaited(count: int) -> Iterator[headrace.Pipeline]:
    """Have coroutines wait behind a blocked instance."""
    with blocked() as pipe, awaiting(pipe, count):
        yield pipe


@contextlib.contextmanager
def behind_sleep(count: int) -> Iterator[headrace.Pipeline]:
    """Have requests wait behind a backend that sleeps; at the end they fail."""
    pipe = headrace.pipe({"backend": "Sleep100ms", "max": 8, "queue_size": count})
    for k in range(count):
        pipe.submit({"data": k})
    yield pipe
    pipe.close(drain=False)


State = tuple[contextlib.AbstractContextManager[headrace.Pipeline], "int | None"]
"""The function that builds a state, and how many requests then wait; None: their number falls."""


def states() -> dict[str, State]:
    """Return the states that are measured, by name; none of them is built yet."""
    company = {"instance_num": 2, "batching_timeout": 60_000}
    thread = {"backend": "BackgroundThread[Gate]"}
    return {
        "idle": (idle("Gate"), 0),
        "idle, BackgroundThread": (idle("BackgroundThread[Gate]"), 0),
        "1 request waits for company": (submitted(1, company), 1),
        "1 caller waits for company": (called(1, company), 1),
        "1000 requests wait, backend blocked": (submitted(1000, {}), 1000),
        "1000 requests with deadlines": (submitted(1000, {}, timeout=600.0), 1000),
        "1000 requests, timeout_ms": (submitted(1000, {"timeout_ms": 600_000}), 1000),
        "40 callers wait": (called(40, {}), 40),
        "40 callers with deadlines": (called(40, {}, timeout=600.0), 40),
        "40 callers, 4 have room": (called(40, {"queue_size": 4}), 40),
        "1000 coroutines wait": (awaited(1000), 1000),
        "1000 requests, BackgroundThread": (submitted(1000, thread), 1000),
        "5000 requests, 100 ms a batch of 8": (behind_sleep(5000), None),
    }


def settle(pipe: headrace.Pipeline, expected: int | None) -> int:
    """Wait until so many requests wait, and a little more; give their number."""
    until = time.perf_counter() + 300
    while (waiting := waiting_in(pipe)) != expected and expected is not None:
        if time.perf_counter() > until:
            raise RuntimeError(f"{waiting} requests wait, not {expected}")
        time.sleep(0.02)
    time.sleep(0.3)
    return waiting


def waiting_in(pipe: headrace.Pipeline) -> int:
    return sum(node["waiting"] for node in pipe.stats()["nodes"].values())


def still(seconds: float) -> list[dict[str, Any]]:
    """Measure the processor time of the process in each state."""
    print(f"processor time of the process over {seconds:g} s, of one processor\n{'':38}  queued")
    figures = []
    for name, (state, expected) in states().items():
        with state as pipe:
            waiting = settle(pipe, expected)
            began, cpu = time.perf_counter(), time.process_time()
            time.sleep(seconds)
            used = time.process_time() - cpu
            share = 100 * used / (time.perf_counter() - began)
        print(f"{name:38}{waiting:8}{share:9.3f} %", flush=True)
        figures.append({"state": name, "queued": waiting, "per_cent": share, "seconds": seconds})
    worst = max(figure["per_cent"] for figure in figures)
    print(f"  greatest {worst:.3f} %; wanted: below {WANTED_PER_CENT:g} %\n", flush=True)
    return figures


PARTS = ("many", "still")


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--part", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--waiting", type=int, default=100_000, help="how many are many")
    parser.add_argument("--seconds", type=float, default=3.0, help="length of a window of still")
    parser.add_argument("--rounds", type=int, default=5)
    asked = parser.parse_args()
    waiting, rounds, seconds = asked.waiting, asked.rounds, asked.seconds
    if asked.quick:
        waiting, rounds, seconds = 2000, 1, 0.2
    about = environment(["headrace"])
    print_environment(about)
    headrace.register("Gate", Gate)
    headrace.register("Sleep100ms", Sleep100ms)
    figures: dict[str, Any] = {}
    if "many" in asked.part:
        gc.callbacks.append(COLLECTOR)
        figures["many"] = {"waiting": waiting, "cells": many(waiting, rounds)}
        gc.callbacks.remove(COLLECTOR)
    if "still" in asked.part:
        figures["still"] = still(seconds)
    save(asked.json, about, figures)


if __name__ == "__main__":
    main()
