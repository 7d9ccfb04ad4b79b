"""JPEG to class over HTTP on many cores: one front with `Process`, and several whole processes.

    python -m benchmarks.serve.cores [--clients 128] [--client-processes 4] [--network light] [--json FILE]

Sides, in turn: as many independent processes as cores that do the work alone, without a server or a queue;
``Process`` around the whole expression in one server; the same with threads alone; ``headrace serve --workers``
with as many processes as cores. All is on the same cores, the clients too: threads of a few processes with a
bare socket each. Wanted: 0.7 of the independent processes for the better of ``Process`` and ``--workers``.

Where one front ends is shown by the cores that its process uses: beyond one, more than a core's worth of
Python is wanted of a process that can run one at a time.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import tempfile
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.cores import independent
from benchmarks.jpeg_sides import WIDTHS, make_network
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
from benchmarks.servers.process import Client, Server

if TYPE_CHECKING:
    from collections.abc import Callable

OURS = "headrace_serve"
WANTED = 0.7
CPUS = usable_cpus()
SETTINGS: dict[str, dict[str, Any]] = {
    "Process": {"most": 1, "instances": CPUS, "processes": True},
    "threads": {"most": 1, "instances": CPUS},
    "--workers": {"most": 1, "instances": 1, "workers": CPUS},
}
MORE: dict[str, dict[str, Any]] = {
    f"Process, max {most}": {"most": most, "instances": CPUS, "processes": True} for most in (4, 8)
} | {
    f"Process, max 8, front on {cpus}": {
        "most": 8,
        "instances": CPUS,
        "processes": True,
        "front_cpus": cpus,
        "switch_interval_ms": 1,
    }
    for cpus in (2, 4)
    if cpus < CPUS
}
"""Sides that a quick run leaves out: several requests go to another process at once, and the threads of the
process that serves are kept to a few processors."""


def clients_of_process(
    address: tuple[int, str],
    files: list[bytes],
    clients: int,
    seconds: float,
    start: Any,
    done: Any,
) -> None:
    """Send requests from this process, and put the figures into ``done``."""
    client = Client(*address)
    call = partial(send, client, files)
    for i in range(clients):
        call(i)
    start.wait()
    done.put(drive(call, clients, seconds, 0.4))


def send(client: Client, files: list[bytes], i: int) -> int:
    return client(files[i % len(files)])


def served(
    server: Server, files: list[bytes], clients: int, processes: int, seconds: float
) -> Load:
    """Let the clients of several processes send at a time; give the sum of their requests."""
    context = multiprocessing.get_context("spawn")
    start, done = context.Barrier(processes + 1), context.Queue()
    address = (server.client.port, server.client.path)
    args = (address, files, clients // processes, seconds, start, done)
    with server.running():
        started = [context.Process(target=clients_of_process, args=args) for _ in range(processes)]
        for process in started:
            process.start()
        start.wait()
        cpu = server.cpu_seconds()
        loads: list[Load] = [done.get() for _ in started]
        cpu = server.cpu_seconds() - cpu
        for process in started:
            process.join()
    rps = sum(load.rps for load in loads)
    return Load(
        clients=clients,
        seconds=seconds,
        rps=rps,
        p50_us=max(load.p50_us for load in loads),
        p99_us=max(load.p99_us for load in loads),
        cpu_us=cpu / (seconds + 0.4) / max(rps, 1e-9) * 1e6,
        cores=cpu / (seconds + 0.4),
        slowest=min(load.slowest for load in loads),
    )


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--clients", type=int, default=8 * CPUS)
    parser.add_argument("--client-processes", type=int, default=max(1, CPUS // 4))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--networks", nargs="+", choices=WIDTHS, default=["light"])
    options = parser.parse_args()
    seconds, rounds = (0.05, 1) if options.quick else (3.0, options.rounds)
    about = environment(["headrace-serve", "uvicorn", "onnxruntime", "opencv-python-headless"])
    print_environment(about)
    figures: dict[str, Any] = {}
    files = make_pictures()
    for network in options.networks:
        with contextlib.ExitStack() as stack:
            model = Path(stack.enter_context(tempfile.TemporaryDirectory())) / "network.onnx"
            macs = make_network(model, WIDTHS[network])
            sides: dict[str, Callable[[], Load]] = {
                "independent processes": partial(independent, str(model), seconds, files)
            }
            for name, setting in {**SETTINGS, **({} if options.quick else MORE)}.items():
                server = Server(OURS, setting, model, files[0])
                stack.callback(server.stop)
                server.pause()
                sides[name] = partial(
                    served, server, files, options.clients, options.client_processes, seconds
                )
            loads = in_turn(sides, rounds)
        print(f"{network}: {macs:.0f} MMACs, {CPUS} cores, {options.clients} clients")
        for name, found in loads.items():
            one, share = middle(found), ratio(found, loads["independent processes"])
            print(
                f"  {name:24}{one.rps:8.0f} requests/s {share:5.2f}  p50 {one.p50_us / 1e3:7.2f} ms"
                f"  p99 {one.p99_us / 1e3:7.2f} ms  server {one.cores:5.2f} cores,"
                f" {one.cpu_us / 1e3:5.2f} ms a request"
            )
        print(f"  wanted: {WANTED} of the independent processes\n", flush=True)
        figures[network] = loads
    save(options.json, about, {"networks": figures})


if __name__ == "__main__":
    main()
