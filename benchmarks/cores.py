"""Threads, processes, and what a request costs between them, on all cores of this machine.

    python -m benchmarks.cores [--clients 128] [--max 1 4 8] [--networks light heavy] [--quick]

1. JPEG to class on the CPU, an instance per core and batches of one and more. The sides: threads alone; `Process`
   around the whole expression; one independent process per core, which does the work by hand without any queue;
   a `ProcessPoolExecutor`; LitServe over HTTP with one worker per core, if installed (``benchmarks/requirements.txt``).
2. A backend of 2 ms of pure Python in `Process`: an instance per core, beside one instance.
3. The round trip of `Process[Identity]`, beside the same bytes through two bare pipes between two processes.
4. Time under the interpreter lock of this process per request, of 60 kB to another process and 600 kB back and of
   a call in this process: the progress that a thread that counts in Python loses while requests run. Then the
   same time of the JPEG request with its native calls replaced by recorded answers, and the number of these
   calls, each of which releases the lock once: see `benchmarks.recorded`.

All sides take turns; a ratio is the median of those within a round.
"""

from __future__ import annotations

import multiprocessing
import os
import struct
import tempfile
import threading
import time
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from benchmarks.jpeg_sides import WIDTHS, make_network, make_pictures, session_of, tensor_of
from benchmarks.load import (
    Load,
    arguments,
    drive,
    environment,
    in_turn,
    middle,
    print_environment,
    ratio,
    save,
    usable_cpus,
)
from benchmarks.recorded import lock_per_request
from benchmarks.servers.process import Server

import headrace

if TYPE_CHECKING:
    from collections.abc import Callable

CPUS = usable_cpus()
WORK = "S[DecodeMat,ResizeMat,CvtColorMat,Mat2Tensor,OnnxTensor]"
SIDES = {"threads": WORK, "Process": f"Process[{WORK}]"}
MOST = (1, 4, 8)
"""Values of the node's ``max``: with 8 clients per instance, a full batch goes to the other process at once."""
LENGTH = struct.Struct("<Q")
SMALL_BYTES, LARGE_BYTES = 60_000, 600_000

_session: Any = None


# Functions that run in other processes.


def open_session(model: str) -> None:
    """Load the model once in a process of a pool."""
    global _session
    _session = session_of(Path(model))


def classify(file: bytes) -> int:
    """Do the whole work for one picture."""
    (scores,) = _session.run(None, {"image": tensor_of(file)})
    return int(scores.argmax())


def alone(model: str, seconds: float, pictures: list[bytes], start: Any, done: Any) -> None:
    """Classify pictures in this process, and put the pictures per second into ``done``."""
    open_session(model)
    classify(pictures[0])
    start.wait()
    count, begun = 0, time.perf_counter()
    while (spent := time.perf_counter() - begun) < seconds:
        classify(pictures[count % len(pictures)])
        count += 1
    done.put(count / spent)


def python_for_2_ms(data: int) -> int:
    """Hold the interpreter lock for 2 ms of processor time."""
    until = time.thread_time() + 0.002
    while time.thread_time() < until:
        data += 1
    return data


def ten_times(data: bytes) -> bytes:
    """Give 600 kB for 60 kB."""
    return data * 10


def echo(source: int, sink: int) -> None:
    """Send back each message that comes through a bare pipe."""
    while (content := read(source)) is not None:
        write(sink, content)


def read(source: int) -> bytes | None:
    """Read one message from a pipe."""
    head = os.read(source, LENGTH.size)
    if not head:
        return None
    content = bytearray(LENGTH.unpack(head)[0])
    left = memoryview(content)
    while left.nbytes:
        left = left[os.readv(source, [left]) :]
    return bytes(content)


def write(sink: int, content: bytes) -> None:
    """Write one message to a pipe."""
    os.write(sink, LENGTH.pack(len(content)))
    left = memoryview(content)
    while left.nbytes:
        left = left[os.write(sink, left) :]


# The sides that are compared.


def piped(config: dict[str, Any], data: list[Any], clients: int, seconds: float) -> Load:
    """Let clients call a pipeline."""
    with headrace.pipe(config) as pipe:
        return drive(lambda i: pipe({"data": data[i % len(data)]}), clients, seconds)


def independent(model: str, seconds: float, pictures: list[bytes]) -> Load:
    """Let one process per core work, each for itself; give their pictures per second."""
    context = multiprocessing.get_context("spawn")
    start, done = context.Event(), context.Queue()
    args = (model, seconds, pictures, start, done)
    processes = [context.Process(target=alone, args=args) for _ in range(CPUS)]
    for process in processes:
        process.start()
    time.sleep(1.0)  # time for every process to load the model
    start.set()
    rps = sum(done.get() for _ in processes)
    for process in processes:
        process.join()
    return Load(CPUS, seconds, rps, 0.0, 0.0, 0.0, 0.0, 0.0)


def pooled(model: str, pictures: list[bytes], clients: int, seconds: float) -> Load:
    """Let clients call a `ProcessPoolExecutor`."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(
        CPUS, mp_context=context, initializer=open_session, initargs=(model,)
    ) as pool:
        list(pool.map(classify, pictures * 2))
        return drive(
            lambda i: pool.submit(classify, pictures[i % len(pictures)]).result(), clients, seconds
        )


def served(model: str, pictures: list[bytes], clients: int, seconds: float) -> Load:
    """Let clients call LitServe over HTTP."""
    server = Server("litserve", {"workers": CPUS}, Path(model), pictures[0])
    try:
        return drive(lambda i: server.client(pictures[i % len(pictures)]), clients, seconds)
    finally:
        server.stop()


def bare_pipe(content: bytes, seconds: float) -> Load:
    """Send bytes to another process and back, with nothing else around them."""
    there, back = os.pipe(), os.pipe()
    code = "import sys; sys.path[:] = {!r}; from benchmarks.cores import echo; echo({}, {})"
    import subprocess
    import sys

    command = [sys.executable, "-c", code.format(sys.path, there[0], back[1])]
    with subprocess.Popen(command, pass_fds=(there[0], back[1])):
        os.close(there[0])
        os.close(back[1])

        def call(_: int) -> None:
            write(there[1], content)
            read(back[0])

        load = drive(call, 1, seconds)
        os.close(there[1])
    os.close(back[0])
    return load


class Counter:
    """A thread that counts in Python as fast as it gets the interpreter lock."""

    def __init__(self) -> None:
        self._counting = True
        self._count = 0
        self._begun = time.perf_counter()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while self._counting:
            self._count += 1

    def rate(self) -> float:
        """Stop the thread, and give how far it counted per second."""
        self._counting = False
        self._thread.join()
        return self._count / (time.perf_counter() - self._begun)


def lock_us(config: dict[str, Any], content: bytes, seconds: float) -> float:
    """Give the microseconds under the interpreter lock that a request costs this process."""
    with headrace.pipe(config) as pipe:
        pipe({"data": content})
        counter = Counter()
        time.sleep(seconds)
        free = counter.rate()
        counter = Counter()
        requests, until = 0, time.perf_counter() + seconds
        begun = time.perf_counter()
        while time.perf_counter() < until:
            pipe({"data": content})
            requests += 1
        spent = time.perf_counter() - begun
        return max(0.0, 1 - counter.rate() / free) * spent / requests * 1e6


def show(loads: dict[str, list[Load]], base: str) -> None:
    """Print the requests per second of all sides, and their ratios to one of them."""
    for name, found in loads.items():
        load = middle(found)
        print(f"  {name:28} {load.rps:9.0f} requests/s {ratio(found, loads[base]):6.2f}")


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--clients", type=int, default=8 * CPUS, help="threads that send requests")
    parser.add_argument("--rounds", type=int, default=5, help="of all sides, in turn")
    parser.add_argument("--instances", type=int, default=CPUS, help="of threads and of Process")
    parser.add_argument("--max", type=int, nargs="+", default=MOST, help="batches of up to so many")
    parser.add_argument("--networks", nargs="+", choices=WIDTHS, default=list(WIDTHS))
    chosen = parser.parse_args()
    rounds, seconds = (1, 0.05) if chosen.quick else (chosen.rounds, 2.0)
    mosts = MOST[:1] if chosen.quick else chosen.max
    about = environment(["headrace", "headrace-cv", "headrace-ort", "onnxruntime", "litserve"])
    print_environment(about)
    figures: dict[str, Any] = {}
    sides: dict[str, Callable[[], Load]]
    with tempfile.TemporaryDirectory() as folder:
        pictures = make_pictures()
        for network in chosen.networks:
            model = str(Path(folder) / f"{network}.onnx")
            macs = make_network(Path(model), WIDTHS[network])
            keys = {"resize_h": 224, "resize_w": 224, "color": "rgb", "model": model}
            sides = {
                "independent processes": partial(independent, model, seconds, pictures),
                "ProcessPoolExecutor": partial(pooled, model, pictures, chosen.clients, seconds),
            }
            if find_spec("litserve") and find_spec("psutil"):
                sides["LitServe"] = partial(served, model, pictures, chosen.clients, seconds)
            else:
                print("LitServe is left out: it is not installed, or psutil")
            for name, backend in SIDES.items():
                config = {"backend": backend, "instance_num": chosen.instances}
                for most in mosts:
                    sides[f"{name}, max {most}"] = partial(
                        piped, {**config, "max": most, **keys}, pictures, chosen.clients, seconds
                    )
            figures[network] = in_turn(sides, rounds)
            print(f"JPEG to class, {macs:.0f} MMACs, {CPUS} cores, {chosen.clients} clients")
            show(figures[network], "independent processes")
            figures["recorded"] = lock_per_request(
                {"backend": WORK, **keys}, pictures[0], 50 if chosen.quick else 5000
            )
    busy = "Process[Call(benchmarks.cores:python_for_2_ms)]"
    sides = {
        f"{count} instances, max {most}": partial(
            piped,
            {"backend": busy, "instance_num": count, "max": most},
            [0],
            4 * count,
            seconds,
        )
        for most in mosts[:2]
        for count in dict.fromkeys((1, CPUS))
    }
    figures["2 ms of Python"] = in_turn(sides, rounds)
    print("2 ms of pure Python in Process")
    show(figures["2 ms of Python"], f"1 instances, max {mosts[0]}")
    content = os.urandom(SMALL_BYTES)
    for size in (SMALL_BYTES, LARGE_BYTES):
        large = (content * 10)[:size]
        array = np.frombuffer(large, np.uint8)  # it comes back, too: the same bytes would not
        sides = {
            "a bare pipe": partial(bare_pipe, large, seconds),
            "Process[Identity]": partial(
                piped, {"backend": "Process[Identity]"}, [array], 1, seconds
            ),
        }
        name = f"{size // 1000} kB there and back"
        figures[name] = in_turn(sides, rounds)
        print(f"round trip of {name}, in microseconds (p50)")
        for side, found in figures[name].items():
            print(f"  {side:28} {middle(found).p50_us:9.0f}")
    far = "Process[Call(benchmarks.cores:ten_times)]"
    figures["lock_us"] = {
        name: lock_us({"backend": backend}, content, seconds)
        for name, backend in (("here", "Identity"), ("Process, 60 kB in, 600 kB out", far))
    }
    print("time under the interpreter lock of this process, in microseconds per request")
    for name, taken in figures["lock_us"].items():
        print(f"  {name:36} {taken:7.0f}")
    taken, calls = figures["recorded"]["lock_us"], figures["recorded"]["releases"]
    print(f"  {'JPEG, native calls recorded':36} {taken:7.0f}, and {calls:.0f} native calls")
    save(chosen.json, about, figures)


if __name__ == "__main__":
    main()
