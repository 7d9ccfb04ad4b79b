"""Full load for a long time, with everything that can go wrong: does each request get one outcome?

Clients of all kinds (blocking calls, lists, deadlines, futures, asyncio) drive several pipelines: one
node whose queue waits, one that rejects, one whose instances own their threads, and a
graph. Backends fail at random, item by item and whole batches; requests expire and are cancelled;
another pipeline takes the place of each all the time, and some cannot be built; small pipelines come and go.

What must hold:

- every request has one outcome, and it is the right one: its result and its own ``data``, or an
  error and no ``result``;
- what the clients have counted is what ``stats()`` shows, code by code;
- nobody waits in the end, and no thread is left when all is closed;
- threads do not grow: of the last ten seconds, the median is not above the most there were in the first
  minute; and when the load is over, no pipeline has more than one runner per instance, and the thread
  of each instance that owns one;
- the memory at the end is within 2 per cent of that after the first minute. It is what the process
  has in RAM (RSS), read each second after a garbage collection, as the median of ten seconds. A run
  shorter than three minutes is too short to tell: the figure after the first third is shown and not
  judged.

What the memory allocator of glibc keeps for later is not counted, since it says nothing of who asked
for it: each thread keeps up to seven freed pieces of each of 64 sizes, and has one of up to eight arenas
per core. With some fifty threads these fill up for ten minutes, by some per cent in all. So the run starts
itself again with both turned off (`GLIBC_TUNABLES`), and what is free is given back before each
reading (`malloc_trim`). ``--keep-allocator`` leaves the allocator as it is; the memory is then shown
and not judged. The allocator of Python stays as it is.

The exit status is 1 when something does not hold.

    python -m benchmarks.scheduling.soak [--seconds 30 | --requests 20000] [--seed N] [--json]
"""

from __future__ import annotations

import argparse
import asyncio
import concurrent.futures
import contextlib
import ctypes
import gc
import json
import os
import random
import sys
import threading
import time
from array import array
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import headrace
from headrace.errors import ClosedError, HeadraceError, RequestsFailed, SetupError, code_of

if TYPE_CHECKING:
    from collections.abc import Callable

CLIENTS = 24
JUDGED_S = 180.0
"""A run of at least this length is judged by its memory."""
LATE_S = 300.0
"""A client that has no answer this many seconds after the end of the load counts as hanging."""
GROWTH = 0.02

SHARED = {"headrace-timer": 1, "headrace-helper": 2}
"""Threads of the process, not of a pipeline, and how many of each it keeps."""

ALLOCATOR = "glibc.malloc.tcache_count=0:glibc.malloc.arena_max=1"
"""Value of `GLIBC_TUNABLES` that lets glibc keep no freed memory per thread; other allocators ignore it."""


class Trouble(headrace.Backend):
    """Adds one; fails, and takes time without the interpreter lock, at random."""

    max = None

    class Options(headrace.Options):
        """Options of Trouble."""

        share: float = 0.02
        pause_us: int = 200
        breaks: bool = False

    def init(self, options: Any, context: Any) -> None:
        """Fail in the last instance if the option ``breaks`` is set."""
        if options.breaks and context.instance_index == context.instance_num - 1:
            raise OSError("told to break")
        self.share, self.pause_s = options.share, options.pause_us * 1e-6
        self.random = random.Random(context.instance_index)

    def forward(self, batch: Any) -> list[Exception | None]:
        """Add one to each, or fail."""
        if self.random.random() < 0.3:
            time.sleep(self.pause_s * self.random.random())
        if self.random.random() < self.share / 4:
            raise LookupError("the whole batch")
        outcomes: list[Exception | None] = []
        for request in batch:
            if self.random.random() < self.share:
                outcomes.append(ValueError("this one"))
            else:
                request["result"] = request["data"] + 1
                outcomes.append(None)
        return outcomes


class MendingTrouble(Trouble):
    """The same as `Trouble`; requests of a batch that failed as a whole are run again one by one."""

    rerun = True


class OwnTrouble(Trouble):
    """The same as `Trouble`, in a thread of its own."""

    owns_thread = True


CONFIGS: dict[str, dict[str, Any]] = {
    "waits": {"backend": "MendingTrouble", "max": 8, "instance_num": 2, "queue_size": 32},
    "rejects": {
        "backend": "S[Identity,Trouble]",
        "max": 4,
        "instance_num": 2,
        "queue_size": 8,
        "queue_full": "reject",
        "timeout_ms": 50,
        "batching_timeout": 0.5,
    },
    "owns": {
        "backend": "OwnTrouble",
        "max": 4,
        "instance_num": 2,
        "queue_size": 8,
        "queue_full": "reject",
    },
    "graph": {
        "head": {"backend": "Trouble", "max": 8, "next": "left,right", "queue_size": 64},
        "left": {"backend": "MendingTrouble", "max": 4, "next": "join"},
        "right": {"backend": "OwnTrouble", "max": 4, "next": "join"},
        "join": {
            "backend": "Trouble",
            "max": 4,
            "map": {"left": {"result": "data"}, "right": {"result": "other"}},
        },
    },
}
DEPTH = {"graph": 3}
"""How many nodes add one on the way of a request, per pipeline; 1 for pipelines not listed."""


class Service:
    """A pipeline whose place others take. A request that is refused because its pipeline is closed goes to the next.

    Attributes:
        config: The configuration of the pipeline in service.
        pipe: The pipeline in service.
        past: What the closed pipelines have counted, by node.
        wrong: What was wrong with a closed pipeline.
    """

    def __init__(self, config: dict[str, Any]) -> None:
        self.config, self.pipe = config, headrace.pipe(config)
        self.past: dict[str, Counter[str]] = {}
        self.wrong: list[str] = []

    def __call__(self, requests: Any, **limits: Any) -> Any:
        """Call with a request or a list."""
        return self._ask(lambda pipe: pipe(requests, **limits))

    def submit(self, requests: Any, **limits: Any) -> Any:
        """Submit a list."""
        return self._ask(lambda pipe: pipe.submit(requests, **limits))

    async def call_async(self, request: Any, **limits: Any) -> Any:
        """Await one request."""
        while True:
            pipe = self.pipe
            try:
                return await pipe.call_async(request, **limits)
            except ClosedError as error:
                if error.begun or pipe is self.pipe:
                    raise

    def _ask(self, ask: Callable[[Any], Any]) -> Any:
        while True:
            pipe = self.pipe
            try:
                return ask(pipe)
            except ClosedError as error:
                if error.begun or pipe is self.pipe:
                    raise

    def swap(self, changes: dict[str, Any], node: str) -> None:
        """Build another pipeline, let it take the place of this one, and close the old one after its last request.

        Raises:
            SetupError: It could not be built, and the old one serves on.
        """
        config = dict(self.config)
        table = config if "backend" in config else config.setdefault(node, {})
        changed = {key: one for key, one in {**table, **changes}.items() if one is not None}
        config = changed if table is config else {**config, node: changed}
        old, self.pipe, self.config = self.pipe, headrace.pipe(config), config
        old.close(drain=True, timeout=LATE_S)
        for name, one in old.stats()["nodes"].items():
            counted = counts_of(one)
            if (
                one["waiting"]
                or counted["submitted"] != sum(counted.values()) - counted["submitted"]
            ):
                self.wrong.append(f"{name}: {one} does not add up after its close")
            self.past.setdefault(name, Counter()).update(counted)

    def counts(self) -> dict[str, Counter[str]]:
        """Return what all pipelines have counted, by node: ``submitted``, and the outcomes by code."""
        nodes = self.pipe.stats()["nodes"].items()
        return {name: self.past.get(name, Counter()) + counts_of(one) for name, one in nodes}


def counts_of(node: dict[str, Any]) -> Counter[str]:
    """Return the requests of one node of ``stats()``: ``submitted``, ``ok`` and the failed ones by code."""
    return Counter({"submitted": node["submitted"], "ok": node["ok"], **node["failed"]})


class Tally:
    """What the clients of one pipeline have counted.

    Attributes:
        outcomes: How many requests ended, by ``ok`` or the code of the error.
        unknown: How many requests may have succeeded or not, since their caller was cancelled.
        wrong: Descriptions of outcomes that should not have occurred.
    """

    def __init__(self, name: str) -> None:
        self.add = DEPTH.get(name, 1)
        self.outcomes: Counter[str] = Counter()
        self.unknown = 0
        self.wrong: list[str] = []
        self._lock = threading.Lock()

    def take(self, request: Any, sent: Any, error: BaseException | None) -> None:
        """Count one outcome and check it."""
        wrong = None
        cancelled = isinstance(error, (concurrent.futures.CancelledError, asyncio.CancelledError))
        if not isinstance(request, dict) or "data" not in request:
            wrong = None if code_of(error) == "input" else f"{request!r} gave {error!r}"
        elif error is None:
            if request.get("result") != sent + self.add or request["data"] != sent:
                wrong = f"{sent} gave {request!r}"
        elif not cancelled and not isinstance(error, HeadraceError):
            wrong = f"{sent} raised {error!r}"
        elif not getattr(error, "abandoned", False) and (
            request["data"] != sent or ("result" in request and not cancelled)
        ):
            wrong = f"{sent} failed and left {request!r}"
        code = "ok" if error is None else "cancelled" if cancelled else code_of(error)
        if isinstance(error, asyncio.CancelledError):
            # The request may have succeeded before its task was cancelled.
            free = not getattr(error, "abandoned", False)
            code = "ok" if free and "result" in request else "unknown"
        with self._lock:
            if code == "unknown":
                self.unknown += 1
            else:
                self.outcomes[code] += 1
            if wrong is not None:
                self.wrong.append(wrong)

    @property
    def total(self) -> int:
        """How many requests ended."""
        return self.outcomes.total() + self.unknown


class Client:
    """Sends requests of all kinds until it is told to stop."""

    def __init__(self, soak: Soak, seed: int) -> None:
        self.soak = soak
        self.random = random.Random(seed)
        self.counts: list[Counter[int]] = []

    def run(self) -> None:
        """Send requests; an exception that no check expects is noted as wrong and raised again."""
        ways = (self.call, self.call, self.list, self.futures, self.future, self.coroutines)
        while not self.soak.over():
            name = self.random.choice(tuple(self.soak.pipes))
            try:
                self.random.choice(ways)(self.soak.pipes[name], self.soak.tallies[name], name)
            except BaseException as error:
                self.soak.tallies[name].wrong.append(f"a client ended with {error!r}")
                raise

    def request(self) -> dict[str, Any]:
        """Make a request, sometimes with a result of an earlier one."""
        request: dict[str, Any] = {"data": self.random.randrange(1 << 40)}
        if self.random.random() < 0.1:
            request["result"] = "stale"
        return request

    def limits(self) -> dict[str, Any]:
        """Draw a timeout and a priority."""
        timeout = self.random.choice((None, None, None, 10.0, 0.002, 0.0005, 0))
        return {"timeout": timeout, "priority": self.random.choice((0, 0, 0, 1, -1))}

    def call(self, pipe: Any, tally: Tally, name: str) -> None:
        """Call with one request and wait, a few times."""
        for _ in range(8):
            request = self.request()
            sent = request["data"]
            limits = self.limits() if self.random.random() < 0.4 else {}
            try:
                pipe(request, **limits)
            except HeadraceError as error:
                tally.take(request, sent, error)
            else:
                tally.take(request, sent, None)

    def list(self, pipe: Any, tally: Tally, name: str) -> None:
        """Call with a list and wait, sometimes with an item in the list that is no request."""
        requests: list[Any] = [self.request() for _ in range(self.random.randrange(20))]
        sent = [request["data"] for request in requests]
        if name != "graph" and self.random.random() < 0.2:
            requests.append(self.random.choice(({}, 5)))
            sent.append(None)
        errors: Any = [None] * len(requests)
        try:
            pipe(requests, **self.limits())
        except RequestsFailed as failed:
            errors = failed.errors
        for request, data, error in zip(requests, sent, errors, strict=True):
            tally.take(request, data, error)

    def future(self, pipe: Any, tally: Tally, name: str) -> None:
        """Submit one request."""
        self._submit(pipe, tally, 1)

    def futures(self, pipe: Any, tally: Tally, name: str) -> None:
        """Submit many, and cancel some."""
        self._submit(pipe, tally, self.random.randrange(1, 24))

    def _submit(self, pipe: Any, tally: Tally, count: int) -> None:
        requests = [self.request() for _ in range(count)]
        sent = [request["data"] for request in requests]
        futures = pipe.submit(requests, **self.limits())
        called: Counter[int] = Counter()
        for index, future in enumerate(futures):
            future.add_done_callback(lambda _, index=index: called.update([index]))
        for index, (request, data, future) in enumerate(zip(requests, sent, futures, strict=True)):
            if self.random.random() < 0.2:
                future.cancel()
            try:
                error = future.exception(LATE_S)
            except (concurrent.futures.CancelledError, concurrent.futures.TimeoutError) as raised:
                error = raised
            tally.take(request, data, error)
            if called[index] > 1:
                tally.wrong.append(f"a callback was called {called[index]} times")

    def coroutines(self, pipe: Any, tally: Tally, name: str) -> None:
        """Run many tasks in a loop, and cancel some."""
        asyncio.run(self._tasks(pipe, tally))

    async def _tasks(self, pipe: Any, tally: Tally) -> None:
        async def one(request: dict[str, Any], sent: int, limits: dict[str, Any]) -> None:
            error: BaseException | None = None
            try:
                await pipe.call_async(request, **limits)
            except (HeadraceError, asyncio.CancelledError) as raised:
                error = raised
            tally.take(request, sent, error)

        tasks = []
        for _ in range(self.random.randrange(1, 24)):
            request = self.request()
            tasks.append(asyncio.ensure_future(one(request, request["data"], self.limits())))
        await asyncio.sleep(0)  # lets each task begin before some are cancelled
        for task in tasks:
            if self.random.random() < 0.2:
                task.cancel()
            if self.random.random() < 0.5:
                await asyncio.sleep(0)
        await asyncio.gather(*tasks)


class Soak:
    """One run.

    Attributes:
        pipes: The pipelines, each with those whose place it took.
        tallies: What their clients have counted.
        swaps: How many swaps there were, by outcome.
    """

    def __init__(
        self, seconds: float | None, requests: int | None, seed: int, *, judges_memory: bool = True
    ) -> None:
        for cls in (Trouble, MendingTrouble, OwnTrouble):
            headrace.register(cls.__name__, cls, replace=True)
        self.pipes = {name: Service(config) for name, config in CONFIGS.items()}
        self.tallies = {name: Tally(name) for name in CONFIGS}
        self.swaps: Counter[str] = Counter()
        self._read = array("d")  # packed, so that the samples add next to nothing to the memory
        self.wrong: list[str] = []
        self._seconds, self._requests, self._seed = seconds, requests, seed
        self._judges_memory = judges_memory
        self._random = random.Random(seed)
        self._stop = threading.Event()
        self._begun = time.monotonic()

    def over(self) -> bool:
        """Tell whether the clients are to stop."""
        if self._requests is not None and self.total() >= self._requests:
            self._stop.set()
        return self._stop.is_set()

    def total(self) -> int:
        """How many requests have ended."""
        return sum(tally.total for tally in self.tallies.values())

    def run(self) -> dict[str, Any]:
        """Run the clients and the swaps until the end, judge them, and give the report."""
        clients = [Client(self, self._seed * 1000 + index) for index in range(CLIENTS)]
        threads = [threading.Thread(target=c.run, daemon=True) for c in clients]
        threads.append(threading.Thread(target=self._swap, daemon=True))
        self._sample()
        for thread in threads:
            thread.start()
        while not self.over():
            self._stop.wait(1.0)
            self._sample()
            if self._seconds is not None and time.monotonic() - self._begun >= self._seconds:
                self._stop.set()
        took_s = time.monotonic() - self._begun
        until = time.monotonic() + LATE_S
        for thread in threads:
            thread.join(max(0.0, until - time.monotonic()))
        self._let_branches_end()
        if any(thread.is_alive() for thread in threads):
            self.wrong.append(f"{sum(t.is_alive() for t in threads)} clients got no answer")
        report = self._report(took_s)
        report["threads"]["at_rest"] = self._check_rest()
        for service in self.pipes.values():
            service.pipe.close()
            self.wrong.extend(service.wrong)
        self._check_threads()
        report["wrong"] = [*self.wrong, *(w for t in self.tallies.values() for w in t.wrong)]
        return report

    def _let_branches_end(self) -> None:
        """Wait for the branches of failed requests that still run: a branch is counted when it ends."""
        until = time.monotonic() + LATE_S
        while time.monotonic() < until:
            every = [one for pipe in self.pipes.values() for one in pipe.counts().values()]
            if all(2 * one["submitted"] == one.total() for one in every):
                break
            time.sleep(0.01)

    def _swap(self) -> None:
        while not self._stop.wait(0.02 + 0.08 * self._random.random()):
            name = self._random.choice(tuple(self.pipes))
            service = self.pipes[name]
            node = self._random.choice(service.pipe.config.nodes)
            changes = {
                "instance_num": self._random.randint(1, 3),
                "max": self._random.choice((1, 4, 8)),
                "batching_timeout": self._random.choice((None, 0.2, 1)),
                "pause_us": self._random.choice((50, 500, 2000)),
                "breaks": True if self._random.random() < 0.2 else None,
            }
            try:
                service.swap(changes, node)
            except SetupError:
                self.swaps["failed"] += 1
                if changes["breaks"] is None:
                    self.wrong.append("a swap failed that should not have")
            else:
                self.swaps["ok"] += 1
                if changes["breaks"]:
                    self.wrong.append("a pipeline was built with a backend that broke")
            if self._random.random() < 0.1:
                with headrace.pipe(CONFIGS["waits"]) as short:
                    futures = short.submit([{"data": n} for n in range(32)])
                if not all(future.done() for future in futures):
                    self.wrong.append("close came back before all had their outcome")

    # The measurements, and the conditions that must hold.

    def _sample(self) -> None:
        _trim()
        now_s = time.monotonic() - self._begun
        blocks = sys.getallocatedblocks()
        self._read.extend((now_s, rss_bytes(), threading.active_count(), blocks))

    @property
    def samples(self) -> list[tuple[float, int, int, int]]:
        """Per second the time in s, the memory in bytes, the threads, the blocks of Python's allocator."""
        read = iter(self._read)
        return [
            (s, int(b), int(t), int(n)) for s, b, t, n in zip(read, read, read, read, strict=True)
        ]

    def _report(self, took_s: float) -> dict[str, Any]:
        counts: dict[str, Any] = {}
        for name, tally in self.tallies.items():
            counts[name] = {"sent": tally.total, "unknown": tally.unknown, **tally.outcomes}
            self._compare(name, tally, self.pipes[name])
        mark = 60.0 if took_s >= JUDGED_S else took_s / 3
        samples = self.samples
        first = [s for s in samples if abs(s[0] - mark) <= 5] or samples[:1]
        last = [s for s in samples if s[0] >= took_s - 10] or samples[-1:]
        marks = (("first", first), ("last", last))
        before, after = (sorted(s[1] for s in part)[len(part) // 2] for part in (first, last))
        growth = after / before - 1 if before else 0.0
        judged = took_s >= JUDGED_S and before > 0 and self._judges_memory
        if judged and growth > GROWTH:
            self.wrong.append(f"memory grew by {growth:.1%}, from {before} to {after} bytes")
        early = max(s[2] for s in samples if s[0] <= max(mark, 1.0))
        late = sorted(s[2] for s in last)[len(last) // 2]
        if took_s >= JUDGED_S and late > early:
            self.wrong.append(f"{late} threads at the end, {early} at most in the beginning")
        return {
            "seconds": round(took_s, 1),
            "requests": self.total(),
            "requests_per_s": round(self.total() / took_s),
            "outcomes": counts,
            "swaps": dict(self.swaps),
            "memory_bytes": {
                "first": before,
                "last": after,
                "growth": round(growth, 4),
                "by_minute": self._by_minute(1),
            },
            "blocks": {
                **{name: sorted(s[3] for s in part)[len(part) // 2] for name, part in marks},
                "by_minute": self._by_minute(3),
            },
            "threads": {"first": early, "last": late},
            "judged": judged,
        }

    def _by_minute(self, column: int) -> list[int]:
        """Give the median of one column of the samples per minute."""
        minutes: dict[int, list[int]] = {}
        for sample in self.samples:
            minutes.setdefault(int(sample[0] // 60), []).append(sample[column])
        return [sorted(values)[len(values) // 2] for values in minutes.values()]

    def _compare(self, name: str, tally: Tally, service: Service) -> None:
        """Compare what the clients have counted with what the pipelines have."""
        stats, counts = service.pipe.stats(), service.counts()
        entry = counts[next(iter(counts))]
        if stats["state"] != "ready":
            self.wrong.append(f"{name} is {stats['state']}")
        if entry["submitted"] != tally.total:
            self.wrong.append(f"{name}: {tally.total} were sent, {entry['submitted']} counted")
        for node, one in counts.items():
            if waiting := stats["nodes"][node]["waiting"]:
                self.wrong.append(f"{name}.{node}: {waiting} still wait")
            if 2 * one["submitted"] != one.total():
                self.wrong.append(f"{name}.{node}: {one} does not add up")
        if len(counts) > 1:
            return  # in a graph one request may fail at several nodes: counts per node do not add up
        counted = Counter({code: count for code, count in entry.items() if code != "submitted"})
        left = counted.copy()
        left.subtract(tally.outcomes)
        if min(left.values(), default=0) < 0 or left.total() != tally.unknown:
            self.wrong.append(
                f"{name}: clients counted {dict(tally.outcomes)} and {tally.unknown} unknown, "
                f"the pipeline {dict(counted)}"
            )

    def _check_rest(self) -> int:
        """Check the threads when nobody asks for anything any more; give their number."""
        allowed = Counter(SHARED)
        for service in self.pipes.values():
            for node, one in service.pipe.stats()["nodes"].items():
                allowed[f"headrace-{node}"] += len(one["instances"])
                allowed.update(f"headrace-{node}-{i['index']}" for i in one["instances"])
        until = time.monotonic() + LATE_S
        while True:
            names = [thread.name for thread in threading.enumerate()]
            found = Counter(name for name in names if name.startswith("headrace-"))
            more = found - allowed
            if not more or time.monotonic() > until:
                break
            time.sleep(0.05)
        if more:
            self.wrong.append(f"threads that nothing needs are left after the load: {dict(more)}")
        return found.total()

    def _check_threads(self) -> None:
        for thread in threading.enumerate():
            if thread.name.startswith("headrace-") and thread.name not in SHARED:
                thread.join(LATE_S)
                if thread.is_alive():
                    self.wrong.append(f"thread {thread.name} is left after all was closed")


def _trim() -> None:
    """Collect garbage, and let the allocator of glibc give back what it keeps."""
    gc.collect()
    with contextlib.suppress(OSError, AttributeError, TypeError):
        ctypes.CDLL(None).malloc_trim(0)


def rss_bytes() -> int:
    """Return the memory of this process; 0 where it is not known."""
    try:
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    except (OSError, ValueError, IndexError):
        return 0
    return pages * 4096


def _without_caches() -> None:
    """Start again with an allocator that keeps no freed memory per thread, where there is one."""
    if sys.platform == "linux" and ALLOCATOR not in os.environ.get("GLIBC_TUNABLES", ""):
        tunables = os.environ.get("GLIBC_TUNABLES")
        os.environ["GLIBC_TUNABLES"] = f"{tunables}:{ALLOCATOR}" if tunables else ALLOCATOR
        os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])


def main() -> int:
    """Run it; give the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seconds", type=float, help="how long; default 30")
    parser.add_argument("--requests", type=int, help="stop after so many requests instead")
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 16))
    parser.add_argument("--json", action="store_true", help="print the report as JSON")
    parser.add_argument(
        "--keep-allocator",
        action="store_true",
        help="leave the caches of glibc's allocator, which fill for minutes: memory is not judged",
    )
    chosen = parser.parse_args()
    if not chosen.keep_allocator:
        _without_caches()
    seconds = chosen.seconds or (None if chosen.requests else 30.0)
    judges_memory = not chosen.keep_allocator
    report = Soak(seconds, chosen.requests, chosen.seed, judges_memory=judges_memory).run()
    report["seed"] = chosen.seed
    if chosen.json:
        print(json.dumps(report, indent=2))
    else:
        _print_table(report)
    return 1 if report["wrong"] else 0


def _print_table(report: dict[str, Any]) -> None:
    print(f"{report['requests']} requests in {report['seconds']} s, seed {report['seed']}")
    for name, counts in report["outcomes"].items():
        print(f"  {name:8}", "  ".join(f"{code} {count}" for code, count in counts.items()))
    print("  swaps   ", "  ".join(f"{code} {count}" for code, count in report["swaps"].items()))
    memory, threads = report["memory_bytes"], report["threads"]
    print(
        f"  memory   {memory['first'] / 1e6:.1f} MB, at the end {memory['last'] / 1e6:.1f} MB "
        f"({memory['growth']:+.2%}{'' if report['judged'] else ', not judged'})"
    )
    blocks = report["blocks"]
    print(f"  blocks   {blocks['first']} of Python's allocator, at the end {blocks['last']}")
    minutes = "  ".join(f"{size / 1e6:.1f}" for size in memory["by_minute"])
    print(f"           by minute: {minutes}")
    print(
        f"  threads  at most {threads['first']} in the beginning, {threads['last']} at the end, "
        f"{threads['at_rest']} of Headrace when nobody asks for anything"
    )
    for wrong in report["wrong"][:20]:
        print("WRONG", wrong)
    if len(report["wrong"]) > 20:
        print(f"WRONG and {len(report['wrong']) - 20} more")
    if not report["wrong"]:
        print("every request had one outcome")


if __name__ == "__main__":
    sys.exit(main())
