"""One commit of core beside another: requests a second and processor time, cell by cell, in turn.

Each round runs every cell once with either core, each in a process of its own that stays alive and waits while the
other one measures. What is compared is the ratio of the two within a round, and the median of these ratios.

    git worktree add /tmp/before COMMIT
    taskset -c 0,1 python -m benchmarks.scheduling.commits --before /tmp/before [--rounds 7] [--seconds 0.4] [--only diamond]

Cells, each with 1, 10 and 40 client threads: ``identity``, one node; ``chain``, four backends in one node; ``line``, three nodes;
``diamond``, four; ``thread``, a backend in a thread of its own; ``sleep``, two instances that sleep 0.2 or 2 ms for a
batch of up to 8; ``native``, 0.3 ms without the interpreter lock, of 2 instances and of 20. Besides, ``main``: the
main thread alone, with no work and with 1 ms; ``submit``: 100 futures at a time; ``asyncio``: 10 tasks.
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

Cell = Callable[[float, int], "tuple[float, float]"]


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

        def forward(self, batch: Any) -> None:
            """Hash, and copy."""
            hashlib.sha256(block).digest()
            super().forward(batch)

    for backend in (Copy, Sleep, Nap, Work, Native):
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

    def threads(config: Any, clients: int) -> Cell:
        def cell(seconds: float, _: int) -> tuple[float, float]:
            with headrace.pipe(config) as pipe:
                load = drive(lambda i: pipe({"data": i}), clients, seconds, seconds / 2)
            return load.rps, load.cpu_us

        return cell

    def counted(config: Any, run: Callable[[Any, Callable[[], bool]], int]) -> Cell:
        def cell(seconds: float, _: int) -> tuple[float, float]:
            with headrace.pipe(config) as pipe:
                for length in (seconds / 4, seconds):
                    until, cpu, begun = (
                        time.perf_counter() + length,
                        time.process_time(),
                        time.perf_counter(),
                    )
                    done = run(pipe, lambda until=until: time.perf_counter() < until)  # type: ignore[misc]
                    took, used = time.perf_counter() - begun, time.process_time() - cpu
            return done / took, used / done * 1e6

        return cell

    def alone(pipe: Any, goes_on: Callable[[], bool]) -> int:
        done = 0
        while goes_on():
            for _ in range(20):
                pipe({"data": 1})
            done += 20
        return done

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
    found["main, idle"] = counted(copy, alone)
    found["main, 1 ms"] = counted({"backend": "Work"}, alone)
    found["main, line"] = counted(line, alone)
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

    def measure(self, cell: str, seconds: float) -> tuple[float, float]:
        """Return requests a second and microseconds of processor time per request."""
        self.process.stdin.write(json.dumps([cell, seconds]) + "\n")
        self.process.stdin.flush()
        rps, cpu = json.loads(self.process.stdout.readline())
        return rps, cpu


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
    ratios: dict[str, list[tuple[float, float, float]]] = {name: [] for name in names}
    for k in range(given.rounds):
        for name in names:
            pair = [
                one.measure(name, given.seconds)
                for one in ((before, after), (after, before))[k % 2]
            ]
            (old, old_cpu), (new, new_cpu) = pair if k % 2 == 0 else pair[::-1]
            ratios[name].append((new / old, new_cpu / old_cpu, new))
    print(
        f"{os.cpu_count()} processors, Python {sys.version.split()[0]}, {given.rounds} rounds of {given.seconds} s"
    )
    print(f"{'cell':28}{'speed':>8}{'least':>8}{'most':>8}{'cpu':>8}{'per s':>10}")
    speeds, used = [], []
    for name, found in ratios.items():
        speed = [one[0] for one in found]
        speeds.append(statistics.median(speed))
        used.append(statistics.median([one[1] for one in found]))
        rps = statistics.median([one[2] for one in found])
        print(
            f"{name:28}{speeds[-1]:8.2f}{min(speed):8.2f}{max(speed):8.2f}{used[-1]:8.2f}{rps:10.0f}"
        )
    mean = [math.exp(statistics.fmean(map(math.log, found))) for found in (speeds, used)]
    print(f"{'geometric mean':28}{mean[0]:8.3f}{'':16}{mean[1]:8.3f}")


if __name__ == "__main__":
    main()
