"""The time of a request besides its backend: headrace beside omniback, in one process.

omniback is the C++ system that headrace re-thinks; without it (``pip install omniback==0.2.24``)
only headrace is measured. Parts, each a table:

- ``identity``: one node, ``result = data``, over ``instance_num``, ``max`` and
  ``batching_timeout``, with 1, 10 and 40 client threads. headrace runs a backend written in
  Python; omniback its own in C++ and the same one in Python.
- ``chain``: four of them in one node, ``S[...]``.
- ``graph``: three nodes in a line, a > b > c, and a diamond, x > (y, z) > w, whose map brings both
  results to w. One instance per node, and two.
- ``long``: headrace alone, one client: a line of three beside a single node, and a line of 200
  beside that of three.
- ``thread``: the same backend in a thread of its own, ``BackgroundThread[...]``, also beside the
  plainest scheduler: a thread per instance that takes what waits in a queue, with a lock per request
  and no guarantee. No scheduler in Python has less to do.
- ``sleep``: 2 ms a batch of up to 8, two instances: how full the batches get, and what waiting
  costs. Beside it two threads that call the bare function back to back with full batches, and the
  plainest scheduler.
- ``fair``: 200 microseconds a batch without the interpreter lock, 40 clients: the slowest client
  over the mean.
- ``held``: 50 microseconds a batch with the interpreter lock held, 40 clients, beside the plainest
  scheduler.

The clock of a request runs from making its dict to having checked its result. Processor time is
that of the whole process: clients, schedulers, backends.

    python -m benchmarks.scheduling.overhead [--part identity chain ...] [--json FILE] [--quick]
"""

from __future__ import annotations

import contextlib
import itertools
import os
import statistics
import sys
import threading
import time
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any

from benchmarks.load import (
    Load,
    arguments,
    beside,
    drive,
    environment,
    in_turn,
    middle,
    print_environment,
    ratio,
    save,
)

import headrace

try:
    import omniback
except ImportError:
    omniback = None

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from benchmarks.figures import Figure

    Call = Callable[[int], None]

CLIENTS = (1, 10, 40)
OURS, CPP, PYTHON = "headrace", "omniback C++", "omniback Python"
PLAIN = "plain threads"
BOTH = "omniback"
"""The sleeping backend, which both systems run in Python."""

THEIR_SIDES = {
    CPP: "omniback, its own backend in C++",
    PYTHON: "omniback, the same backend in Python",
    BOTH: "omniback, the same backend in Python",
}
"""What the figures that are kept call the forms of omniback."""

# Backends. Each class serves both systems: `forward` is the same, and omniback asks for max().


class Copy:
    """``result = data``: the cheapest backend one can write."""

    def forward(self, batch: list[dict[str, Any]]) -> None:
        """Answer a batch."""
        for request in batch:
            request["result"] = request["data"]


class Spending(Copy):
    """Takes a time per batch, whatever its size."""

    def spend(self) -> None:
        """Let the time of one batch pass."""

    def forward(self, batch: list[dict[str, Any]]) -> None:
        """Answer a batch."""
        self.spend()
        super().forward(batch)


class Sleep2ms(Spending):
    """Sleeps 2 ms a batch."""

    def spend(self) -> None:
        """Sleep."""
        time.sleep(0.002)


class Sleep200us(Spending):
    """Sleeps 200 microseconds a batch."""

    def spend(self) -> None:
        """Sleep."""
        time.sleep(0.0002)


class Spin50us(Spending):
    """Computes for 50 microseconds a batch, in Python."""

    def spend(self) -> None:
        """Look at the clock until the time is over."""
        until = time.perf_counter() + 50e-6
        while time.perf_counter() < until:
            pass


BACKENDS = (Copy, Sleep2ms, Sleep200us, Spin50us)
_serial = itertools.count()


def register() -> None:
    """Make the backends known to both systems."""
    for kind in BACKENDS:
        headrace.register(kind.__name__, kind)
        if omniback is None:
            continue
        for most in (1, 8):
            theirs = type(f"{kind.__name__}{most}", (kind,), {"max": lambda _, n=most: n})
            omniback.register(theirs.__name__, theirs)


# Ways to call.


def ours(expression: str, **keys: Any) -> tuple[Call, headrace.Pipeline]:
    """Build a pipeline of one node; give a function that calls it, and the pipeline."""
    pipe = headrace.pipe({"backend": expression, **keys})
    return calls_of(pipe), pipe


def calls_of(pipe: headrace.Pipeline) -> Call:
    """Return a function that calls a pipeline of copying nodes and checks the result."""

    def call(i: int) -> None:
        request = {"data": i}
        pipe(request)
        if request["result"] is not i:
            raise RuntimeError("another request's answer")

    return call


@contextlib.contextmanager
def silence() -> Iterator[None]:
    """Discard the output that native code writes to standard output."""
    sys.stdout.flush()
    kept, nowhere = os.dup(1), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    try:
        yield
    finally:
        os.dup2(kept, 1)
        os.close(kept)
        os.close(nowhere)


def theirs(expression: str, **keys: Any) -> Call:
    """Build the same with omniback, where a node's name can be used once in a process."""
    return their_calls({f"node{next(_serial)}": {"backend": expression, **keys}})


def their_calls(nodes: dict[str, dict[str, Any]]) -> Call:
    """Build nodes with omniback; give a function that calls them."""
    with silence():
        pipe = omniback.pipe(nodes)

    def call(i: int) -> None:
        request = {"data": i}
        pipe(request)
        if request["result"] != i:
            raise RuntimeError("another request's answer")

    return call


class Plain:
    """The plainest scheduler: a thread per instance that takes what waits, up to ``most``."""

    def __init__(self, backend: Any, instances: int, most: int) -> None:
        self.inbox: SimpleQueue[tuple[dict[str, Any], Any] | None] = SimpleQueue()
        self.backend, self.most = backend, most
        self.threads = [threading.Thread(target=self.work, daemon=True) for _ in range(instances)]
        for thread in self.threads:
            thread.start()

    def __call__(self, i: int) -> None:
        """Send one request and wait."""
        request: dict[str, Any] = {"data": i}
        done = threading.Lock()
        done.acquire()
        self.inbox.put((request, done))
        done.acquire()
        if request["result"] is not i:
            raise RuntimeError("another request's answer")

    def work(self) -> None:
        """Answer batches until closed."""
        while (first := self.inbox.get()) is not None:
            batch = [first]
            while len(batch) < self.most:
                try:
                    more = self.inbox.get_nowait()
                except Empty:
                    break
                if more is None:
                    self.inbox.put(None)
                    break
                batch.append(more)
            self.backend.forward([request for request, _ in batch])
            for _, done in batch:
                done.release()

    def close(self) -> None:
        """End the threads."""
        for _ in self.threads:
            self.inbox.put(None)


# Cells.


class Table:
    """Measures cells and prints a line for each."""

    def __init__(self, seconds: float, rounds: int) -> None:
        self.seconds, self.rounds = seconds, rounds
        self.cells: list[dict[str, Any]] = []
        self.kept: list[Figure] = []

    def keep(self, name: str, clients: int, loads: dict[str, list[Load]]) -> None:
        """Keep how headrace compares with each form of omniback that ran in a cell."""
        for side, said in THEIR_SIDES.items():
            if loads.get(side):
                for measured in ("rps", "cpu_us"):
                    what = f"{name}, {clients} client{'s' * (clients > 1)}"
                    self.kept.append(beside(what, loads[OURS], said, loads[side], measured))

    def cell(
        self,
        name: str,
        clients: int,
        sides: dict[str, Call],
        *,
        warm_up: float = 0.15,
        seconds: float | None = None,
    ) -> dict[str, list[Load]]:
        """Run all sides of a cell in turn, and print how the first compares with each other."""
        length = min(seconds or 0.0, 2 * self.seconds) or self.seconds

        def run(call: Call) -> Callable[[], Load]:
            return lambda: drive(call, clients, length, warm_up)

        loads = in_turn({side: run(call) for side, call in sides.items()}, self.rounds)
        first, *others = sides
        m = middle(loads[first])
        line = (
            f"{name:36}{clients:4}{m.rps:11,.0f}/s  p50 {m.p50_us:8.1f}  p99 {m.p99_us:9.1f}"
            f"  CPU {m.cpu_us:7.2f} us  cores {m.cores:.2f}"
        )
        ratios = {}
        for other in others:
            of = {
                what: ratio(loads[first], loads[other], what)
                for what in ("rps", "p99_us", "cpu_us")
            }
            ratios[other] = of
            line += (
                f" | {other}: {of['rps']:.2f}x, p99 {of['p99_us']:.2f}x, CPU {of['cpu_us']:.2f}x"
            )
        print(line, flush=True)
        self.cells.append({"cell": name, "clients": clients, "ratios": ratios, "loads": loads})
        self.keep(name, clients, loads)
        return loads


def against_omniback(
    table: Table, name: str, own: str, cpp: str, python: str, *more: tuple[str, Call], **keys: Any
) -> None:
    """Measure one configuration with all numbers of clients, beside ``more`` sides."""
    call, pipe = ours(own, **keys)
    sides = {OURS: call, **dict(more)}
    if omniback is not None:
        sides[CPP] = theirs(cpp, **keys)
        sides[PYTHON] = theirs(python, **keys)
    for clients in CLIENTS:
        table.cell(name, clients, sides)
    pipe.close()


def summary(table: Table, start: int, need: str) -> None:
    """Print the least and the median ratios of the cells since ``start``."""
    cells = table.cells[start:]
    for other in (CPP, PYTHON, PLAIN):
        values = [cell["ratios"][other]["rps"] for cell in cells if other in cell["ratios"]]
        if values:
            print(
                f"  over {other}: least {min(values):.2f}x, median {statistics.median(values):.2f}x"
            )
    print(f"  wanted: {need}\n", flush=True)


def identity(table: Table, *, quick: bool) -> None:
    start = len(table.cells)
    for instances, most, linger in itertools.product((1, 2), (1, 8), (0, 2)):
        if quick and (instances, linger) != (2, 0):
            continue
        name = f"identity inst={instances} max={most} timeout={linger}"
        keys = {"instance_num": instances, "max": most, "batching_timeout": linger}
        cpp = "Identity" if most == 1 else "Identities"  # omniback's Identity ignores max
        against_omniback(table, name, "Copy", cpp, f"Copy{most}", **keys)
    summary(table, start, "10x C++ and 40x Python in every cell, 20x C++ in the median")


def chain(table: Table, *, quick: bool) -> None:
    start = len(table.cells)
    keys = {"instance_num": 2, "max": 1, "batching_timeout": 0}
    four = "S[" + ",".join(["{}"] * 4) + "]"
    own, cpp, python = (four.replace("{}", b) for b in ("Copy", "Identity", "Copy1"))
    against_omniback(table, "chain of four", own, cpp, python, **keys)
    summary(table, start, "10x C++ and 40x Python in every cell")


def thread(table: Table, *, quick: bool) -> None:
    start = len(table.cells)
    keys = {"instance_num": 1, "max": 8, "batching_timeout": 0}
    plain = Plain(Copy(), 1, 8)
    expressions = ("BackgroundThread[Copy]", "Identities", "Copy8")
    against_omniback(table, "BackgroundThread, max=8", *expressions, (PLAIN, plain), **keys)
    plain.close()
    loads = [cell["loads"] for cell in table.cells[start:]]
    floor = [f"{ratio(one[PLAIN], one[CPP]):.2f}x" for one in loads if CPP in one]
    if floor:
        print(f"  {PLAIN} over {CPP}: {', '.join(floor)}")
    summary(table, start, "1x Python at 1 client; 2.5x / 6x C++ at 10 / 40")


def line_of(names: list[str], backend: str, **keys: Any) -> dict[str, dict[str, Any]]:
    """Return the nodes of a line."""
    nodes = {name: {"backend": backend, **keys} for name in names}
    for name, following in itertools.pairwise(names):
        nodes[name]["next"] = following
    return nodes


def diamond_of(names: list[str], backend: str, **keys: Any) -> dict[str, dict[str, Any]]:
    """Return the nodes of x > (y, z) > w."""
    x, y, z, w = names
    nodes = {name: {"backend": backend, **keys} for name in names}
    nodes[x]["next"] = f"{y},{z}"
    nodes[y]["next"] = nodes[z]["next"] = w
    nodes[w]["map"] = f"{y}[result:data],{z}[result:other]"
    return nodes


def graph(table: Table, *, quick: bool) -> None:
    start = len(table.cells)
    shapes = {"line a>b>c": (line_of, "abc"), "diamond x>(y,z)>w": (diamond_of, "xyzw")}
    for (shape, (nodes_of, letters)), instances in itertools.product(shapes.items(), (1, 2)):
        if quick and instances == 1:
            continue
        keys = {"instance_num": instances, "max": 1, "batching_timeout": 0}
        pipe = headrace.pipe(nodes_of(list(letters), "Copy", **keys))
        sides = {OURS: calls_of(pipe)}
        if omniback is not None:
            for side, backend in ((CPP, "Identity"), (PYTHON, "Copy1")):
                names = [f"{letter}{next(_serial)}" for letter in letters]
                sides[side] = their_calls(nodes_of(names, backend, **keys))
        for clients in CLIENTS:
            table.cell(f"{shape} inst={instances}", clients, sides)
        pipe.close()
    summary(table, start, "10x C++ and 40x Python in every cell")


def long(table: Table, *, quick: bool) -> None:
    keys = {"instance_num": 2, "max": 1, "batching_timeout": 0}
    pipes = {
        f"{count} nodes": headrace.pipe(line_of([f"n{i}" for i in range(count)], "Copy", **keys))
        for count in (3, 1, 200)
    }
    sides = {name: calls_of(pipe) for name, pipe in pipes.items()}
    loads = table.cell("lines of nodes", 1, sides, seconds=2 * table.seconds)
    one = 1 / ratio(loads["3 nodes"], loads["1 nodes"])
    many = ratio(loads["3 nodes"], loads["200 nodes"]) * 3 / 200
    print(f"  a line of three costs {one:.2f}x one node (wanted: at most 3.5x)")
    print(f"  a line of 200 costs {many:.2f}x as much per node as one of three (wanted: 1.5x)\n")
    table.cells[-1]["per_node"] = {"three_over_one": one, "long_over_three": many}
    for pipe in pipes.values():
        pipe.close()


def back_to_back(kind: type[Spending], seconds: float) -> float:
    """Return the requests per second of two threads that call with batches of 8, nothing between."""
    done = [0, 0]
    until = time.perf_counter() + seconds

    def work(index: int) -> None:
        backend = kind()
        while time.perf_counter() < until:
            backend.forward([{"data": k} for k in range(8)])
            done[index] += 8

    threads = [threading.Thread(target=work, args=(k,)) for k in range(2)]
    began = time.perf_counter()
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    return sum(done) / (time.perf_counter() - began)


def batches_of(pipe: headrace.Pipeline) -> tuple[int, float]:
    """Return how many batches the pipeline has run, and how many requests in them."""
    (node,) = pipe.stats()["nodes"].values()
    sizes = node["batch_size"]["histogram"]
    return sum(sizes.values()), sum(int(size) * count for size, count in sizes.items())


def sleep(table: Table, *, quick: bool) -> None:
    seconds, warm_up = (0.5, 0.3) if quick else (1.5, 1.0)
    keys = {"instance_num": 2, "max": 8, "batching_timeout": 0}
    call, pipe = ours("Sleep2ms", **keys)
    plain = Plain(Sleep2ms(), 2, 8)
    peer = None
    if omniback is not None:
        # Without a timeout omniback would run every request as a batch of one.
        peer = theirs("Sleep2ms8", **{**keys, "batching_timeout": 2})
    for clients in CLIENTS:
        shares, sizes, loads, plains, others = [], [], [], [], []
        for _ in range(table.rounds):
            batches, items = batches_of(pipe)
            loads.append(drive(call, clients, seconds, warm_up))
            more_batches, more_items = batches_of(pipe)
            sizes.append((more_items - items) / (more_batches - batches))
            shares.append(loads[-1].rps / back_to_back(Sleep2ms, seconds))
            plains.append(drive(plain, clients, seconds, warm_up))
            if peer is not None:
                others.append(drive(peer, clients, seconds, warm_up))
        m = middle(loads)
        share, size = statistics.median(shares), statistics.median(sizes)
        line = (
            f"{'sleep 2 ms inst=2 max=8':36}{clients:4}{m.rps:11,.0f}/s  p50 {m.p50_us:8.1f}"
            f"  p99 {m.p99_us:9.1f}  CPU {m.cpu_us:7.2f} us  cores {m.cores:.2f}"
            f" | of two bare threads: {100 * share:.1f} %, mean batch {size:.2f}"
        )
        rps, cpu = ratio(loads, plains), ratio(loads, plains, "cpu_us")
        line += f" | {PLAIN}: {rps:.2f}x, CPU {cpu:.2f}x, cores {middle(plains).cores:.2f}"
        if others:
            rps, cpu = ratio(loads, others), ratio(loads, others, "cpu_us")
            line += f" | omniback: {rps:.2f}x, CPU {cpu:.2f}x"
        print(line, flush=True)
        table.cells.append(
            {"cell": "sleep", "clients": clients, "share": share, "mean_batch": size}
            | {"loads": {OURS: loads, PLAIN: plains, BOTH: others}}
        )
        table.keep("sleep 2 ms inst=2 max=8", clients, {OURS: loads, BOTH: others})
    pipe.close()
    plain.close()
    print(
        "  wanted: 97 % of two bare threads, mean batch 7.9, 0.2 core at 40 clients;"
        " 1.15x omniback with a tenth of its processor time at 10\n",
        flush=True,
    )


def fair(table: Table, *, quick: bool) -> None:
    seconds = 0.1 if quick else 2.0
    for most in (1, 8):
        call, pipe = ours("Sleep200us", instance_num=2, max=most)
        plain = Plain(Sleep200us(), 2, most)
        loads = table.cell(
            f"sleep 200 us inst=2 max={most}",
            40,
            {OURS: call, PLAIN: plain},
            seconds=seconds,
        )
        shares = {
            side: statistics.median(x.slowest for x in rounds) for side, rounds in loads.items()
        }
        print("  slowest client / mean: " + ", ".join(f"{s} {v:.2f}" for s, v in shares.items()))
        table.cells[-1]["slowest"] = shares
        pipe.close()
        plain.close()
    print("  wanted: 0.8\n", flush=True)


def held(table: Table, *, quick: bool) -> None:
    call, pipe = ours("Spin50us", instance_num=2, max=8)
    plain = Plain(Spin50us(), 2, 8)
    table.cell("hold the lock 50 us inst=2 max=8", 40, {OURS: call, PLAIN: plain})
    pipe.close()
    plain.close()
    print("  wanted: p99 not above plain threads\n", flush=True)


PARTS = {
    "identity": identity,
    "chain": chain,
    "graph": graph,
    "long": long,
    "thread": thread,
    "sleep": sleep,
    "fair": fair,
    "held": held,
}


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--part", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--seconds", type=float, default=0.5, help="length of one window")
    parser.add_argument("--rounds", type=int, default=3)
    chosen = parser.parse_args()
    seconds, rounds = (0.02, 1) if chosen.quick else (chosen.seconds, chosen.rounds)
    about = environment(["headrace", "omniback"])
    print_environment(about)
    register()
    table = Table(seconds, rounds)
    print("ratios are headrace / the other: requests per second, p99, processor time per request")
    for part in chosen.part:
        PARTS[part](table, quick=chosen.quick)
    save(chosen.json, about, {"cells": table.cells}, table.kept)


if __name__ == "__main__":
    main()
