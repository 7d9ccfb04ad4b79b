"""One commit of core beside another: requests a second and processor time, cell by cell, in turn.

Each round runs every cell once with either core, each in a process of its own that stays alive and waits while the
other one measures. What is compared is the ratio of the two within a round, and the median of these ratios.

    git worktree add /tmp/before COMMIT
    taskset -c 0,1 python -m benchmarks.scheduling.commits --before /tmp/before [--rounds 7] [--seconds 0.4] [--only diamond]

Cells, each with 1, 10 and 40 client threads: ``identity``, one node; ``chain``, four backends in one node; ``line``, three nodes;
``diamond``, four; ``thread``, a backend in a thread of its own; ``sleep``, two instances that sleep 0.2 or 2 ms for a
batch of up to 8; ``native``, 20, 60 and 300 us without the interpreter lock, of 2 instances and of 20. Besides, ``main``: the
main thread alone, with no work and with 1 ms; ``timeout``: calls with a deadline; ``result``: one future after the other;
``submit``: 100 futures at a time; ``list``: lists of four; ``each``: a node that runs for each of three elements; ``asyncio``: 10 tasks;
``second``: lists of eight through two nodes, where the last column is the mean batch of the second one.

``p99`` is the ratio of the latencies as a client sees them, where there are clients.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import json
import math
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

Cell = Callable[[float, int], "tuple[float, float, float]"]
"""Gives requests a second, microseconds of processor time per request, and p99 in microseconds (0 where none is measured)."""


def cells(block: bytes) -> dict[str, Cell]:
    """Return the cells; each runs for some seconds and gives requests a second and processor time per request."""
    from benchmarks.load import drive

    import headrace

    class Copy(headrace.Backend):
        """Do nothing."""

        def forward(self, batch: Any) -> None:
            """Copy data to result."""
            for request in batch:
                request["result"] = request["data"]

    class Sleep(Copy):
        """Sleep once a batch."""

        max = 8
        sleep_s = 0.002

        def forward(self, batch: Any) -> None:
            """Sleep, and copy."""
            time.sleep(self.sleep_s)
            super().forward(batch)

    class Nap(Sleep):
        """Sleep shortly."""

        sleep_s = 0.0002

    class Work(Sleep):
        """Sleep 1 ms."""

        sleep_s = 0.001

    class Native(Copy):
        """Work without the interpreter lock."""

        part = 1.0

        def forward(self, batch: Any) -> None:
            """Hash, and copy."""
            hashlib.sha256(block[: int(len(block) * self.part)]).digest()
            super().forward(batch)

    class Native60(Native):
        """A fifth of it."""

        part = 0.2

    class Native20(Native):
        """A fifteenth of it."""

        part = 1 / 15

    class Eights(Copy):
        """Takes batches."""

        max = 8

    for backend in (Copy, Sleep, Nap, Work, Native, Native60, Native20, Eights):
        headrace.register(backend.__name__, backend)
    copy = {"backend": "Copy"}
    line = {"a": {**copy, "next": "b"}, "b": {**copy, "next": "c"}, "c": copy}
    both = "y[result:data],z[result:other]"
    diamond = {
        "x": {**copy, "next": "y,z"},
        "y": {**copy, "next": "w"},
        "z": {**copy, "next": "w"},
        "w": {**copy, "map": both},
    }

    def single(pipe: Any, i: int) -> object:
        return pipe({"data": i})

    def threads(config: Any, clients: int, call: Callable[[Any, int], object] = single) -> Cell:
        def cell(seconds: float, _: int) -> tuple[float, float, float]:
            with headrace.pipe(config) as pipe:
                load = drive(lambda i: call(pipe, i), clients, seconds, seconds / 2)
            return load.rps, load.cpu_us, load.p99_us

        return cell

    def counted(config: Any, run: Callable[[Any, Callable[[], bool]], int]) -> Cell:
        def cell(seconds: float, _: int) -> tuple[float, float, float]:
            with headrace.pipe(config) as pipe:
                for length in (seconds / 4, seconds):
                    until, cpu, begun = (
                        time.perf_counter() + length,
                        time.process_time(),
                        time.perf_counter(),
                    )
                    done = run(pipe, lambda until=until: time.perf_counter() < until)  # type: ignore[misc]
                    took, used = time.perf_counter() - begun, time.process_time() - cpu
            return done / took, used / done * 1e6, 0.0

        return cell

    def late(pipe: Any, i: int) -> object:
        return pipe({"data": i}, timeout=60)

    def one_future(pipe: Any, i: int) -> object:
        return pipe.submit({"data": i}).result()

    def four(pipe: Any, i: int) -> object:
        return pipe([{"data": k} for k in range(i, i + 4)])

    def eight(pipe: Any, i: int) -> object:
        return pipe([{"data": k} for k in range(i, i + 8)])

    def three(pipe: Any, i: int) -> object:
        return pipe({"data": [i, i, i]})

    def again(call: Callable[[Any, int], object]) -> Callable[[Any, Callable[[], bool]], int]:
        def run(pipe: Any, goes_on: Callable[[], bool]) -> int:
            done = 0
            while goes_on():
                for _ in range(20):
                    call(pipe, 1)
                done += 20
            return done

        return run

    def batches(config: Any) -> Cell:
        def cell(seconds: float, _: int) -> tuple[float, float, float]:
            with headrace.pipe(config) as pipe:
                until = time.perf_counter() + seconds
                while time.perf_counter() < until:
                    eight(pipe, 1)
                mean = pipe.stats()["nodes"]["b"]["batch_size"]["mean"]
            return mean, 1.0, 0.0

        return cell

    def storm(pipe: Any, goes_on: Callable[[], bool]) -> int:
        done = 0
        while goes_on():
            for future in [pipe.submit({"data": k}) for k in range(100)]:
                future.result()
            done += 100
        return done

    def tasks(pipe: Any, goes_on: Callable[[], bool]) -> int:
        done = [0]

        async def task() -> None:
            while goes_on():
                await pipe.call_async({"data": 1})
                done[0] += 1

        async def together() -> None:
            await asyncio.gather(*(task() for _ in range(10)))

        asyncio.run(together())
        return done[0]

    configs: dict[str, Any] = {
        "identity": copy,
        "chain": {"backend": "S[Copy,Copy,Copy,Copy]"},
        "line": line,
        "diamond": diamond,
        "thread": {"backend": "BackgroundThread[Copy]"},
        "sleep 0.2 ms": {"backend": "Nap", "instance_num": 2},
        "sleep 2 ms": {"backend": "Sleep", "instance_num": 2},
        "native 20 us": {"backend": "Native20", "instance_num": 2},
        "native 60 us": {"backend": "Native60", "instance_num": 2},
        "native of 2": {"backend": "Native", "instance_num": 2},
        "native of 20": {"backend": "Native", "instance_num": 20},
    }
    found = {
        f"{name}, {n} clients": threads(config, n)
        for name, config in configs.items()
        for n in (1, 10, 40)
    }
    found |= {
        f"native of {of}, 20 clients": threads(configs[f"native of {of}"], 20) for of in (2, 20)
    }
    found["main, idle"] = counted(copy, again(single))
    found["main, 1 ms"] = counted({"backend": "Work"}, again(single))
    found["main, line"] = counted(line, again(single))
    for name, call in (("timeout", late), ("result", one_future)):
        found[f"{name}, main"] = counted(copy, again(call))
        found |= {f"{name}, {n} clients": threads(copy, n, call) for n in (1, 10)}
    lists = {**copy, "instance_num": 2}
    each = {"backend": "Copy", "each": "data", "instance_num": 2}
    found["list, main"] = counted(lists, again(four))
    found |= {f"list, {n} clients": threads(lists, n, four) for n in (1, 10)}
    found |= {f"each, {n} clients": threads(each, n, three) for n in (1, 10)}
    eights = {"a": {"backend": "Eights", "next": "b"}, "b": {"backend": "Eights"}}
    found["second"] = batches(eights)
    found["submit"] = counted(copy, storm)
    found["asyncio"] = counted(copy, tasks)
    return found


def serve() -> None:
    """Measure the cells that standard input names, one a line, and answer each with a line of JSON."""
    size = int(sys.argv[2])
    known = cells(b"x" * size)
    print(json.dumps(list(known)), flush=True)
    for line in sys.stdin:
        name, seconds = json.loads(line)
        print(json.dumps(known[name](seconds, 0)), flush=True)


def block_of(seconds: float) -> int:
    """Return the bytes whose hash takes so long."""
    block = b"x" * 100_000
    times = []
    for _ in range(50):
        begun = time.perf_counter()
        hashlib.sha256(block).digest()
        times.append(time.perf_counter() - begun)
    return int(len(block) * seconds / statistics.median(times))


class Side:
    """A process that measures with one core."""

    def __init__(self, tree: Path, size: int) -> None:
        here = Path(__file__).parents[2]
        more = os.environ.get("PYTHONPATH", "")
        path = os.pathsep.join([str(tree / "core" / "src"), str(here), *([more] if more else [])])
        command = [sys.executable, "-m", "benchmarks.scheduling.commits", "--serve", str(size)]
        env = {**os.environ, "PYTHONPATH": path}
        self.process: Any = subprocess.Popen(
            command, stdin=-1, stdout=-1, text=True, env=env, cwd=here
        )
        self.cells = json.loads(self.process.stdout.readline())

    def measure(self, cell: str, seconds: float) -> tuple[float, float, float]:
        """Return what a `Cell` gives."""
        self.process.stdin.write(json.dumps([cell, seconds]) + "\n")
        self.process.stdin.flush()
        rps, cpu, p99 = json.loads(self.process.stdout.readline())
        return rps, cpu, p99


def main() -> None:
    """Run both and print a table."""
    if sys.argv[1:2] == ["--serve"]:
        serve()
        return
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--before", type=Path, required=True, help="a checkout of the other commit")
    parser.add_argument(
        "--after",
        type=Path,
        default=Path(__file__).parents[2],
        help="a checkout; this one by default",
    )
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=0.4)
    parser.add_argument("--only", nargs="*", default=[""], help="beginnings of the names of cells")
    given = parser.parse_args()
    size = block_of(0.3e-3)
    before, after = Side(given.before, size), Side(given.after, size)
    names = [name for name in after.cells if name.startswith(tuple(given.only))]
    ratios: dict[str, list[tuple[float, float, float, float]]] = {name: [] for name in names}
    for k in range(given.rounds):
        for name in names:
            pair = [
                one.measure(name, given.seconds)
                for one in ((before, after), (after, before))[k % 2]
            ]
            (old, old_cpu, old_p99), (new, new_cpu, new_p99) = pair if k % 2 == 0 else pair[::-1]
            late = new_p99 / old_p99 if old_p99 else math.nan
            ratios[name].append((new / old, new_cpu / old_cpu, new, late))
    print(
        f"{os.cpu_count()} processors, Python {sys.version.split()[0]}, {given.rounds} rounds of {given.seconds} s"
    )
    print(f"{'cell':28}{'speed':>8}{'least':>8}{'most':>8}{'cpu':>8}{'p99':>8}{'per s':>10}")
    speeds, used = [], []
    for name, found in ratios.items():
        speed = [one[0] for one in found]
        speeds.append(statistics.median(speed))
        used.append(statistics.median([one[1] for one in found]))
        rps = statistics.median([one[2] for one in found])
        print(
            f"{name:28}{speeds[-1]:8.2f}{min(speed):8.2f}{max(speed):8.2f}{used[-1]:8.2f}{statistics.median([one[3] for one in found]):8.2f}{rps:10.1f}"
        )
    mean = [math.exp(statistics.fmean(map(math.log, found))) for found in (speeds, used)]
    print(f"{'geometric mean':28}{mean[0]:8.3f}{'':16}{mean[1]:8.3f}")


if __name__ == "__main__":
    main()
