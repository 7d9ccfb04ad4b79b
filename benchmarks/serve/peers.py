"""JPEG to class over HTTP: headrace-serve beside other servers, at the best settings of each.

    python -m benchmarks.serve.peers [--clients 10 40] [--peer litserve mosec bentoml mlserver ray pytriton] [--settings N] [--folder DIRECTORY] [--json FILE]
        [--python PATH] [--server-cores 0,1 --client-cores 2-15]

The work is that of `benchmarks.jpeg_onnx` with its light network: the bytes of a JPEG picture, decode, resize,
ONNX Runtime with one thread per call, a class back. All servers get the same requests from the same clients, which are
threads of this process with a bare socket each. A peer runs in an environment of its own, made with pip under
``--folder`` (default: a temporary one) and used again if it is there; with ``--python`` the peers run in an
interpreter that has them already (``--python here``: in this one). Each side runs once with each of its
settings, and the best for each number of clients is measured further, in turn. The servers whose turn it is not
are suspended. ``bare`` is the work alone, without a server: every client thread does it itself.

The clients share the machine; their processor time is shown apart. ``--server-cores`` and ``--client-cores``
give both sides cores of their own; ``bare`` then runs on those of the servers. Then, open loop (arrivals of a Poisson
process, one seed for all sides): 70 % of the requests per second of the best peer, and 150 % of our own, where
what counts is how many are answered, and how soon the others are refused.
"""

from __future__ import annotations

import contextlib
import json
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import venv
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import cv2
from benchmarks.jpeg_sides import WIDTHS, alone, make_network
from benchmarks.load import (
    Load,
    arguments,
    drive,
    environment,
    in_turn,
    middle,
    on_cores,
    print_environment,
    ratio,
    save,
    usable_cpus,
)
from benchmarks.pictures import make_pictures
from benchmarks.servers.process import RefusedError, Server, read_cores

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

OURS = "headrace_serve"
SETTINGS: dict[str, list[dict[str, Any]]] = {
    OURS: [
        {"most": 1, "instances": 2},
        {"most": 2, "instances": 2},
        {"most": 4, "instances": 2},
        {"most": 8, "instances": 2},
        {"most": 8, "instances": 3},
        {"most": 8, "instances": 2, "switch_interval_ms": 1},
    ],
    "litserve": [
        {"workers": 2},
        {"workers": 2, "fast_queue": True},
        {"workers": 2, "api_servers": 1},
        {"workers": 1},
        {"workers": 2, "max_batch_size": 8, "batch_timeout_ms": 0},
        {"workers": 2, "max_batch_size": 8, "batch_timeout_ms": 2},
        {"workers": 1, "max_batch_size": 8, "batch_timeout_ms": 2},
    ],
    "mosec": [
        {"workers": 2},
        {"workers": 1},
        {"workers": 3},
        {"workers": 2, "max_batch_size": 8, "max_wait_time_ms": 1},
        {"workers": 2, "max_batch_size": 8, "max_wait_time_ms": 5},
        {"workers": 2, "max_batch_size": 8, "max_wait_time_ms": 2, "decoders": 2},
    ],
    "bentoml": [
        {"workers": 2},
        {"workers": 2, "threads": True},
        {"workers": 1, "threads": True},
        {"workers": 3},
    ],
    "mlserver": [{"workers": 2}, {"workers": 0}, {"workers": 1}],
    "ray": [
        {"replicas": 2},
        {"replicas": 2, "ongoing": 64},
        {"replicas": 1},
        {"replicas": 3},
    ],
    "pytriton": [
        {"workers": 2},
        {"workers": 3},
        {"workers": 2, "max_batch_size": 8},
        {"workers": 2, "max_batch_size": 8, "delay_us": 2000},
    ],
}
NEEDS = {
    "litserve": ["litserve==0.2.19"],
    "mosec": ["mosec==0.9.8"],
    "bentoml": ["bentoml==1.4.39"],
    "mlserver": [
        "mlserver==1.7.1",
        "uvloop<0.22",
    ],  # the workers of mlserver ask uvloop for an event loop that it made before
    "ray": ["ray[serve]==2.60.0"],
    "pytriton": ["nvidia-pytriton==0.7.0"],
}
DISTRIBUTIONS = {"pytriton": "nvidia-pytriton"}
COMMON = ["onnxruntime", "opencv-python-headless", "numpy", "pluggy", "packaging", "pydantic"]
_REASON = 1500
"""Most characters of the printed reason for which a peer is left out."""

SENDERS = 256
QUEUE = 64
"""Most requests that wait in the queue under overload; more are refused."""


class Measure:
    """How a side is run: always the same pictures, every answer compared."""

    def __init__(self, model: Path, seconds: float) -> None:
        self.model, self.seconds = model, seconds
        self.files = make_pictures()
        side = alone(model)
        self.classes = [side(file) for file in self.files]

    def load(
        self, side: Callable[[bytes], int], clients: int, others: Callable[[], float] = float
    ) -> Load:
        """Run one window."""
        files, classes = self.files, self.classes

        def call(i: int) -> None:
            k = i % len(files)
            if (answer := side(files[k])) != classes[k]:
                raise RuntimeError(f"class {answer} where {classes[k]} is right")

        return drive(call, clients, self.seconds, min(0.4, self.seconds), others)

    def served(self, server: Server, clients: int) -> Load:
        """Run one window with a server, which is suspended afterwards."""
        with server.running():
            return self.load(server.client, clients, server.cpu_seconds)


def words(setting: Mapping[str, Any]) -> str:
    return " ".join(f"{key}={value}" for key, value in setting.items())


def interpreter(folder: Path, peer: str, given: str | None) -> Path:
    """Return the interpreter of a peer: the one that was given, or that of an environment made for it."""
    if peer == OURS or given == "here":
        return Path(sys.executable)
    if given is not None:
        return Path(given)
    python = folder / peer / ("Scripts" if sys.platform == "win32" else "bin") / "python"
    if not python.exists():
        venv.create(folder / peer, with_pip=True)
        command = [python, "-m", "pip", "install", "-q", *NEEDS[peer], *COMMON]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            shutil.rmtree(folder / peer)
            raise SystemExit(f"pip cannot install {' '.join(NEEDS[peer])}:\n{done.stderr[-1000:]}")
    return python


def usable(
    peers: list[str], folder: Path, given: str | None, starts: Callable[[str, Path], None]
) -> tuple[dict[str, Path], dict[str, str]]:
    """Return the interpreters of the peers that install and answer here, and why the others are left out."""
    found: dict[str, Path] = {}
    left_out: dict[str, str] = {}
    for peer in peers:
        try:
            python = interpreter(folder, peer, given)
            version(python, peer)
            starts(peer, python)
        except (SystemExit, subprocess.CalledProcessError) as error:
            left_out[peer] = why = str(error)[-_REASON:]
            print(f"{peer} is left out: {why}\n", flush=True)
        else:
            found[peer] = python
    return found, left_out


def version(python: Path, peer: str) -> str:
    name = DISTRIBUTIONS.get(peer, peer.replace("_", "-"))
    code = f"import importlib.metadata as m; print(m.version({name!r}))"
    return subprocess.run(
        [python, "-c", code], capture_output=True, text=True, check=True
    ).stdout.strip()


def best_settings(
    peer: str,
    serve: Callable[..., Server],
    measure: Measure,
    clients: list[int],
    settings: list[dict[str, Any]],
) -> dict[int, dict[str, Any]]:
    """Run each setting once; give the best for each number of clients."""
    found: list[dict[int, float]] = []
    for setting in settings:
        server = serve(peer, setting)
        try:
            rps = {c: measure.served(server, c).rps for c in clients}
        finally:
            server.stop()
        cells = "  ".join(f"{c} clients {one:6.0f}" for c, one in rps.items())
        print(f"  {peer:15}{words(setting):45}{cells}", flush=True)
        found.append(rps)
    return {c: settings[max(range(len(found)), key=lambda k: found[k][c])] for c in clients}


def bare_load(
    measure: Measure, side: Callable[[bytes], int], clients: int, cores: list[int] | None
) -> Load:
    with on_cores(cores):
        return measure.load(side, clients)


def closed_loop(
    measure: Measure,
    servers: dict[str, dict[int, Server]],
    clients: list[int],
    rounds: int,
    cores: list[int] | None,
) -> dict[str, Any]:
    """Run all sides in turn; print and give loads and ratios by number of clients."""
    bare = alone(measure.model)
    figures: dict[str, Any] = {}
    for c in clients:
        sides: dict[str, Callable[[], Load]] = {"bare": partial(bare_load, measure, bare, c, cores)}
        for peer, of in servers.items():
            sides[peer] = partial(measure.served, of[c], c)
        loads = in_turn(sides, rounds)
        print(f"\n{c} clients")
        for side, of_side in loads.items():
            m = middle(of_side)
            print(
                f"  {side:15}{m.rps:7.0f} requests/s  p50 {m.p50_us / 1e3:7.2f} ms  p99 {m.p99_us / 1e3:7.2f} ms"
                f"  CPU {m.others_us / 1e3:6.3f} ms of the server, {(m.cpu_us - m.others_us) / 1e3:6.3f} of this process"
            )
        ratios = {
            side: {what: ratio(loads[OURS], loads[side], what) for what in ("rps", "p99_us", "others_us")}
            for side in loads if side not in (OURS, "bare")
        }  # fmt: skip
        ratios["bare"] = {
            "rps": ratio(loads[OURS], loads["bare"]),
            "cpu_us": ratio(loads[OURS], loads["bare"], "cpu_us"),
        }
        for side, of_ratio in ratios.items():
            text = ", ".join(f"{what} {value:.2f}" for what, value in of_ratio.items())
            print(f"  headrace-serve over {side}: {text}", flush=True)
        figures[str(c)] = {"loads": loads, "ratios": ratios}
    return figures


def open_loop(server: Server, files: list[bytes], rate: float, seconds: float) -> dict[str, Any]:
    """Send at random times, whether or not earlier requests are answered; give the figures.

    The clock of a request runs from the time at which the request was due.
    """
    made = random.Random(7)
    answered: list[float] = []
    refused: list[float] = []
    failed: list[str] = []

    def send(due: float, file: bytes) -> None:
        try:
            server.client(file)
        except RefusedError:
            refused.append(time.perf_counter() - due)
        except (OSError, RuntimeError) as error:
            failed.append(repr(error))
        else:
            answered.append(time.perf_counter() - due)

    with server.running(), ThreadPoolExecutor(SENDERS) as pool:
        due = began = time.perf_counter()
        pause = threading.Event()
        number = 0
        while due < began + seconds:
            due += made.expovariate(rate)
            if (left := due - time.perf_counter()) > 0:
                pause.wait(left)
            pool.submit(send, due, files[number % len(files)])
            number += 1
        pool.shutdown()
        took = time.perf_counter() - began
    answered.sort()
    refused.sort()
    return {
        "rate": rate,
        "sent": number,
        "goodput": len(answered) / took,
        "p50_ms": 1e3 * statistics.median(answered or [0.0]),
        "p99_ms": 1e3 * answered[len(answered) * 99 // 100] if answered else 0.0,
        "refused": len(refused),
        "refused_p50_ms": 1e3 * statistics.median(refused or [0.0]),
        "refused_p99_ms": 1e3 * refused[len(refused) * 99 // 100] if refused else 0.0,
        "failed": len(failed),
    }


def text_of(figures: dict[str, Any]) -> str:
    return "  ".join(
        f"{name} {value:.1f}" if isinstance(value, float) else f"{name} {value}"
        for name, value in figures.items()
    )


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--peer", nargs="*", choices=list(NEEDS), default=list(NEEDS))
    parser.add_argument("--clients", nargs="+", type=int, default=[10, 40])
    parser.add_argument("--seconds", type=float, default=1.5, help="length of one window")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument(
        "--settings", type=int, metavar="N", help="only the first N of each, the best known first"
    )
    parser.add_argument("--folder", type=Path, help="where the environments of the peers are kept")
    parser.add_argument(
        "--python", metavar="PATH", help="an interpreter that has the peers; here: this one"
    )
    parser.add_argument(
        "--server-cores", type=read_cores, metavar="0,1", help="of servers and bare work"
    )
    parser.add_argument("--client-cores", type=read_cores, metavar="2-15", help="of the clients")
    options = parser.parse_args()
    seconds, rounds = (0.05, 1) if options.quick else (options.seconds, options.rounds)
    count = 1 if options.quick else options.settings
    cv2.setNumThreads(1)
    about = environment(["headrace-serve", "uvicorn", "onnxruntime", "opencv-python-headless", "psutil"])  # fmt: skip
    with contextlib.ExitStack() as stack:
        folder = options.folder or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        stack.enter_context(on_cores(options.client_cores))
        model = Path(stack.enter_context(tempfile.TemporaryDirectory())) / "light.onnx"
        macs = make_network(model, WIDTHS["light"])
        cores = options.server_cores
        print(
            f"network of {macs:.0f} million multiply-adds,"
            f" {len(cores) if cores else usable_cpus()} processors for the servers,"
            f" {usable_cpus()} for the clients{'' if cores else ', the same'}\n"
        )
        measure = Measure(model, seconds)

        def starts(peer: str, python: Path) -> None:
            setting = SETTINGS[peer][0]
            Server(peer, setting, model, measure.files[0], python, cores).stop()

        pythons, left_out = usable([OURS, *options.peer], folder, options.python, starts)
        peers = [peer for peer in pythons if peer != OURS]
        about["packages"] |= {peer: version(pythons[peer], peer) for peer in peers}
        print_environment(about)

        def serve(peer: str, setting: dict[str, Any]) -> Server:
            return Server(peer, setting, model, measure.files[0], pythons[peer], cores)

        chosen = {
            peer: best_settings(peer, serve, measure, options.clients, SETTINGS[peer][:count])
            for peer in pythons
        }
        servers: dict[str, dict[int, Server]] = {}
        for peer, by_clients in chosen.items():
            made: dict[str, Server] = {}
            for c, setting in by_clients.items():
                key = json.dumps(setting)
                if key not in made:
                    made[key] = serve(peer, setting)
                    stack.callback(made[key].stop)
                    made[key].pause()
                servers.setdefault(peer, {})[c] = made[key]
        cells = closed_loop(measure, servers, options.clients, rounds, cores)
        most = max(options.clients)
        rps = {peer: middle(cells[str(most)]["loads"][peer]).rps for peer in pythons}
        print("\nopen loop")
        opened: dict[str, Any] = {}
        if peers:
            rate = 0.7 * max(rps[peer] for peer in peers)
            for peer in pythons:
                opened[peer] = open_loop(servers[peer][most], measure.files, rate, 4 * seconds)
                print(f"  70 % of the best peer, {peer:15}{text_of(opened[peer])}", flush=True)
        setting = {**chosen[OURS][most], "queue_size": QUEUE}
        server = serve(OURS, setting)
        stack.callback(server.stop)
        over = []
        for _ in range(rounds):  # the capacity of this moment: a shared machine changes its speed
            capacity = measure.served(server, most).rps
            found = open_loop(server, measure.files, 1.5 * capacity, 4 * seconds)
            over.append((found["goodput"] / capacity, found))
            print(f"  150 % of our own {text_of(found)}; goodput {over[-1][0]:.2f} of capacity")
    found = {"cells": cells, "settings": chosen, "open": opened, "over": over}
    save(options.json, about, {**found, "left_out": left_out})


if __name__ == "__main__":
    main()
