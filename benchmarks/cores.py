"""Threads, processes, and what a request costs between them, on all cores of this machine.

    python -m benchmarks.cores [--part jpeg python pipe lock] [--clients 128] [--ways 16 p16 p16x4 p16x8 p26x2@3s]
                               [--networks light heavy] [--quick]

``--ways`` says how the expression runs, in turn: ``[p]INSTANCES[xMAX][@CPUS[s]]`` (`benchmarks.ways`). ``p`` puts
`Process` around it, ``xMAX`` hands an instance several requests at a time (with 8 clients per instance a full batch
goes to the other process at once), and ``@CPUS`` keeps the threads of this process to a few processors, where they
have fewer cold caches; the other processes use all, or with ``s`` the rest.

1. ``jpeg``: JPEG to class on the CPU. The sides: threads alone; `Process` around the whole expression; one independent
   process per core, which does the work by hand without any queue; a `ProcessPoolExecutor`; LitServe over HTTP with
   one worker per core, if installed (``benchmarks/requirements.txt``).
2. ``python``: a backend of 2 ms of pure Python in `Process`, in each way that has it, beside one instance.
3. ``pipe``: the round trip of `Process[Identity]`, beside the same bytes through two bare pipes between two processes.
4. ``lock``: time under the interpreter lock of this process per request, at most: the processor time of the calling
   thread, of 60 kB to another process and 600 kB back and of a call in this process. Then that of the JPEG
   request with its native calls replaced by recorded answers, and the number of these calls, each of which
   releases the lock once: see `benchmarks.recorded`.

All sides take turns; a ratio is the median of those within a round.
"""

from __future__ import annotations

import multiprocessing
import os
import struct
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from benchmarks.jpeg_sides import WIDTHS, make_network, session_of, tensor_of
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
from benchmarks.pictures import make_pictures
from benchmarks.recorded import lock_per_request
from benchmarks.servers.process import Server
from benchmarks.ways import WAYS, Way

import headrace

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable

CPUS = usable_cpus()
WORK = "S[DecodeMat,ResizeMat,CvtColorMat,Mat2Tensor,OnnxTensor]"
ONE = Way.read("1")
USUAL = (f"{CPUS}", f"p{CPUS}", "autox8", f"p{CPUS}x4", f"p{CPUS}x8")
LENGTH = struct.Struct("<Q")
PARTS = ("jpeg", "python", "pipe", "lock")
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
    """Return 600 kB for 60 kB."""
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


def piped(
    config: dict[str, Any],
    data: list[Any],
    clients: int,
    seconds: float,
    way: Way = ONE,
) -> Load:
    """Let clients call a pipeline, in one way."""
    with headrace.pipe({**config, **way.node(config["backend"])}) as pipe, way.front():
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


def lock_us(config: dict[str, Any], content: bytes, requests: int) -> float:
    """Return the processor time of the calling thread per request, in microseconds.

    The thread runs its request itself, so it holds the interpreter lock for at most that long; while it waits for
    another process it uses no processor. A second thread that counts what progress it loses would also count
    how long the system takes to wake it up, at each call that releases the lock.
    """
    with headrace.pipe(config) as pipe:
        for _ in range(requests // 10 + 1):
            pipe({"data": content})
        begun = time.thread_time()
        for _ in range(requests):
            pipe({"data": content})
        return (time.thread_time() - begun) / requests * 1e6


def show(loads: dict[str, list[Load]], base: str) -> None:
    """Print the requests per second of all sides, and their ratios to one of them."""
    for name, found in loads.items():
        load = middle(found)
        print(f"  {name:28} {load.rps:9.0f} requests/s {ratio(found, loads[base]):6.2f}")


def jpeg(chosen: argparse.Namespace, network: str, folder: str) -> dict[str, list[Load]]:
    """Compare the ways to classify JPEG pictures on all cores."""
    model, pictures = str(Path(folder) / f"{network}.onnx"), make_pictures()
    macs = make_network(Path(model), WIDTHS[network])
    keys = {"resize_h": 224, "resize_w": 224, "color": "rgb", "model": model}
    sides: dict[str, Callable[[], Load]] = {
        "independent processes": partial(independent, model, chosen.seconds, pictures),
        "ProcessPoolExecutor": partial(pooled, model, pictures, chosen.clients, chosen.seconds),
    }
    if find_spec("litserve") and find_spec("psutil"):
        sides["LitServe"] = partial(served, model, pictures, chosen.clients, chosen.seconds)
    else:
        print("LitServe is left out: it is not installed, or psutil")
    config = {"backend": WORK, **keys}
    for way in chosen.ways:
        name = f"{'Process' if way.processes else 'threads'}, {way.text}"
        sides[name] = partial(piped, config, pictures, chosen.clients, chosen.seconds, way)
    loads = in_turn(sides, chosen.rounds)
    print(f"JPEG to class, {macs:.0f} MMACs, {CPUS} cores, {chosen.clients} clients")
    show(loads, "independent processes")
    return loads


def python(chosen: argparse.Namespace) -> dict[str, list[Load]]:
    """Compare instances of a backend that holds the lock, each in a process."""
    config = {"backend": "Call(benchmarks.cores:python_for_2_ms)"}
    one = Way.read("p1")
    sides = {
        way.text: partial(piped, config, [0], 4 * way.instances, chosen.seconds, way)
        for way in (one, *chosen.ways)
        if way.processes
    }
    loads = in_turn(sides, chosen.rounds)
    print("2 ms of pure Python in Process")
    show(loads, one.text)
    return loads


def pipe(chosen: argparse.Namespace) -> dict[str, dict[str, list[Load]]]:
    """Compare a round trip with one through bare pipes."""
    figures = {}
    for size in (SMALL_BYTES, LARGE_BYTES):
        content = os.urandom(size)
        array = np.frombuffer(content, np.uint8)  # it comes back, too: the same bytes would not
        sides = {
            "a bare pipe": partial(bare_pipe, content, chosen.seconds),
            "Process[Identity]": partial(
                piped, {"backend": "Process[Identity]"}, [array], 1, chosen.seconds
            ),
        }
        name = f"{size // 1000} kB there and back"
        figures[name] = in_turn(sides, chosen.rounds)
        print(f"round trip of {name}, in microseconds (p50)")
        for side, found in figures[name].items():
            print(f"  {side:28} {middle(found).p50_us:9.0f}")
    return figures


def lock(chosen: argparse.Namespace, folder: str) -> dict[str, Any]:
    """Measure the time under the interpreter lock of this process."""
    far = "Process[Call(benchmarks.cores:ten_times)]"
    content = os.urandom(SMALL_BYTES)
    taken = {
        name: lock_us({"backend": backend}, content, 50 if chosen.quick else 5000)
        for name, backend in (("here", "Identity"), ("Process, 60 kB in, 600 kB out", far))
    }
    print("time under the interpreter lock of this process, at most, in microseconds per request")
    for name, one in taken.items():
        print(f"  {name:36} {one:7.0f}")
    model = Path(folder) / "recorded.onnx"
    make_network(model, WIDTHS["light"])
    keys = {"resize_h": 224, "resize_w": 224, "color": "rgb", "model": str(model)}
    recorded = lock_per_request(
        {"backend": WORK, **keys}, make_pictures()[0], 50 if chosen.quick else 5000
    )
    own, calls = recorded["lock_us"], recorded["releases"]
    print(f"  {'JPEG, native calls recorded':36} {own:7.0f}, and {calls:.0f} native calls")
    return {"lock_us": taken, "recorded": recorded}


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--part", nargs="+", choices=PARTS, default=PARTS, help="what to run")
    parser.add_argument("--clients", type=int, default=8 * CPUS, help="threads that send requests")
    parser.add_argument("--rounds", type=int, default=5, help="of all sides, in turn")
    usual = [Way.read(text) for text in USUAL]
    parser.add_argument("--ways", type=Way.read, nargs="+", default=usual, help=f"in turn: {WAYS}")
    parser.add_argument("--networks", nargs="+", choices=WIDTHS, default=list(WIDTHS))
    chosen = parser.parse_args()
    chosen.seconds = 0.02 if chosen.quick else 2.0
    if chosen.quick:
        chosen.rounds, chosen.ways = 1, chosen.ways[:2]
    about = environment(["headrace", "headrace-cv", "headrace-ort", "onnxruntime", "litserve"])
    print_environment(about)
    figures: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        if "jpeg" in chosen.part:
            figures |= {network: jpeg(chosen, network, folder) for network in chosen.networks}
        if "python" in chosen.part:
            figures["2 ms of Python"] = python(chosen)
        if "pipe" in chosen.part:
            figures |= pipe(chosen)
        if "lock" in chosen.part:
            figures |= lock(chosen, folder)
    save(chosen.json, about, figures)


if __name__ == "__main__":
    main()
