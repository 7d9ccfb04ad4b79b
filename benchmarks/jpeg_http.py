"""JPEG to class: headrace in process beside LitServe and mosec, which do the same over HTTP.

The work is that of `benchmarks.jpeg_onnx` with its light network (about 60 million multiply-adds):
the bytes of a JPEG picture (640 x 480), decode, resize to 224 x 224, planar float tensor, ONNX
Runtime with one thread per call. All sides use the same functions and must give the same classes.

The clock of a request covers different spans, and this difference is the point of the comparison:

- ``headrace``: from the call with the bytes to the class, in the process that has the bytes.
- ``litserve``, ``mosec``: from sending the HTTP request to having read the class from its answer,
  over loopback, on a connection that stays open. The body is the file, not base64 in JSON. The
  client is a bare socket that sends each request in one piece: about the cheapest there is.

Clients are threads of this process, closed loop; nothing else runs in it for the two servers, so
its processor time is that of their clients and is shown apart. Processor time is that of the whole
tree: this process and all processes of the server. Clients, servers and networks share the machine.

``bare`` is the work alone: every client thread calls the functions itself, without batching, limits
or outcomes. No side can be much faster while the processors are the limit, so a server that takes
P ms of processor time per picture where the bare work takes B can be beaten by about P / B; that
bound is printed with each ratio.

Each side first runs once with each of its settings, and the best one is measured further: for
the servers the best for each number of clients, for headrace one for all. Then all sides run in
turn; servers whose turn it is not are suspended, because an idle LitServe may poll.

    python -m benchmarks.jpeg_http [--clients 1 10 40] [--peer litserve mosec] [--json FILE]

Needs what `benchmarks.jpeg_onnx` needs, and for the servers ``benchmarks/requirements.txt``; a
server that is not installed is left out, and a line says so.
"""

from __future__ import annotations

import contextlib
import tempfile
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import cv2
from benchmarks.jpeg_sides import (
    MAXIMA,
    WIDTHS,
    alone,
    make_network,
    pipeline,
    through,
)
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
from benchmarks.servers.process import Server

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    Setting = Mapping[str, Any]
    Side = Callable[[bytes], int]

WANTED = 1.8
BARE = "bare"

SETTINGS: dict[str, list[dict[str, Any]]] = {
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
}


class Measure:
    """How a side is run: always the same pictures, every answer compared."""

    def __init__(self, model: Path, seconds: float) -> None:
        self.model, self.seconds = model, seconds
        self.files = make_pictures()
        side = alone(model)
        self.classes = [side(file) for file in self.files]

    def load(self, side: Side, clients: int, others: Callable[[], float] = float) -> Load:
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


def words(setting: Setting) -> str:
    return " ".join(f"{key}={value}" for key, value in setting.items())


def heat_ours(measure: Measure, clients: list[int], maxima: tuple[int, ...]) -> dict[str, Any]:
    """Run each `max` once; give the one that loses least against the best of each cell."""
    rps: dict[int, dict[int, float]] = {}
    for most in maxima:
        with pipeline(measure.model, most, usable_cpus()) as pipe:
            loads = {c: measure.load(through(pipe), c) for c in clients}
        print_heat("headrace", {"instance_num": usable_cpus(), "max": most}, loads)
        rps[most] = {c: load.rps for c, load in loads.items()}
    best = {c: max(of[c] for of in rps.values()) for c in clients}
    most = max(maxima, key=lambda most: min(rps[most][c] / best[c] for c in clients))
    return {"instance_num": usable_cpus(), "max": most}


def heat(
    peer: str, measure: Measure, clients: list[int], settings: list[dict[str, Any]]
) -> dict[int, dict[str, Any]]:
    """Run each setting once; give the best one for each number of clients."""
    rps: list[dict[int, float]] = []
    for setting in settings:
        server = Server(peer, setting, measure.model, measure.files[0])
        try:
            loads = {c: measure.served(server, c) for c in clients}
        finally:
            server.stop()
        print_heat(peer, setting, loads)
        rps.append({c: load.rps for c, load in loads.items()})
    return {c: settings[max(range(len(rps)), key=lambda k: rps[k][c])] for c in clients}


def print_heat(side: str, setting: Setting, loads: dict[int, Load]) -> None:
    cells = "".join(f"{load.rps:8.0f}{load.cpu_us / 1e3:6.2f}" for load in loads.values())
    print(f"  {side:9}{words(setting):58}{cells}", flush=True)


def rounds_of(
    measure: Measure,
    ours: Setting,
    chosen: dict[str, dict[int, dict[str, Any]]],
    clients: list[int],
    rounds: int,
) -> dict[int, dict[str, list[Load]]]:
    """Run all sides in turn with the settings that were chosen."""
    cells: dict[int, dict[str, list[Load]]] = {}
    with contextlib.ExitStack() as stack:
        pipe = stack.enter_context(pipeline(measure.model, ours["max"], ours["instance_num"]))
        bare = alone(measure.model)
        servers: dict[str, Server] = {}
        for peer, by_clients in chosen.items():
            for setting in by_clients.values():
                key = f"{peer} {words(setting)}"
                if key not in servers:
                    server = Server(peer, setting, measure.model, measure.files[0])
                    stack.callback(server.stop)
                    server.pause()
                    servers[key] = server
        for c in clients:
            sides: dict[str, Callable[[], Load]] = {
                BARE: partial(measure.load, bare, c),
                "headrace": partial(measure.load, through(pipe), c),
            }
            for peer, by_clients in chosen.items():
                server = servers[f"{peer} {words(by_clients[c])}"]
                sides[peer] = partial(measure.served, server, c)
            cells[c] = in_turn(sides, rounds)
    return cells


def report(
    cells: dict[int, dict[str, list[Load]]],
    ours: Setting,
    chosen: dict[str, dict[int, dict[str, Any]]],
) -> dict[str, Any]:
    """Print the loads and the ratios; give them by number of clients."""
    print(
        f"\n{'':10}{'clients':>8}{'img/s':>8}{'p50 ms':>8}{'p99 ms':>8}{'CPU ms/img':>11}"
        f"{'(clients':>9}{'servers)':>9}{'cores':>7}  setting"
    )
    figures: dict[str, Any] = {}
    for c, loads in cells.items():
        for side, of in loads.items():
            m = middle(of)
            own, others = m.cpu_us - m.others_us, m.others_us
            shares = f"{own / 1e3:9.3f}{others / 1e3:9.3f}" if side in chosen else f"{'':18}"
            setting = chosen[side][c] if side in chosen else ours if side == "headrace" else {}
            print(
                f"{side:10}{c:8}{m.rps:8.0f}{m.p50_us / 1e3:8.2f}{m.p99_us / 1e3:8.2f}"
                f"{m.cpu_us / 1e3:11.3f}{shares}{m.cores:7.2f}  {words(setting)}"
            )
        ratios = {
            peer: {what: ratio(loads["headrace"], loads[peer], what) for what in RATIOS}
            | {"bound": ratio(loads[peer], loads[BARE], "cpu_us")}
            for peer in (BARE, *chosen)
        }
        figures[str(c)] = {
            "settings": {"headrace": ours, **{peer: of[c] for peer, of in chosen.items()}},
            "ratios": ratios,
            "loads": loads,
        }
    print("\nheadrace over each: requests per second, p99, processor time per request")
    for c, of in figures.items():
        for peer, r in of["ratios"].items():
            bound = f"; bound by processor time {r['bound']:.2f}x" if peer in chosen else ""
            print(
                f"  {c:>3} clients: {r['rps']:.2f}x {peer},"
                f" p99 {r['p99_us']:.2f}x, CPU {r['cpu_us']:.2f}x{bound}"
            )
    if chosen:
        least = min(of["ratios"][peer]["rps"] for of in figures.values() for peer in chosen)
        print(f"  least over a server {least:.2f}x; wanted: {WANTED}x in every cell")
    return figures


RATIOS = ("rps", "p50_us", "p99_us", "cpu_us")


def usable(peers: list[str], versions: Mapping[str, str | None]) -> list[str]:
    """Return the peers that can run here; print a line for each that is left out."""
    found = []
    for peer in peers:
        missing = [name for name in (peer, "psutil") if versions[name] is None]
        if missing:
            print(
                f"{peer} is left out: {' and '.join(missing)} not installed"
                " (pip install -r benchmarks/requirements.txt)"
            )
        else:
            found.append(peer)
    return found


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--peer", nargs="*", choices=SETTINGS, default=list(SETTINGS))
    parser.add_argument("--clients", nargs="+", type=int, default=[1, 10, 40])
    parser.add_argument("--seconds", type=float, default=1.5, help="length of one window")
    parser.add_argument("--rounds", type=int, default=5)
    asked = parser.parse_args()
    seconds, rounds = (0.05, 1) if asked.quick else (asked.seconds, asked.rounds)
    count = 1 if asked.quick else None
    cv2.setNumThreads(1)
    about = environment(
        [
            *("headrace", "headrace-cv", "headrace-ort", "litserve", "mosec"),
            *("onnxruntime", "opencv-python-headless", "numpy", "psutil"),
        ]
    )
    print_environment(about)
    peers = usable(asked.peer, about["packages"])
    print(
        "clock of a request: headrace from call to class, in process;"
        " the others from HTTP request to class, loopback, connection kept open"
    )
    with tempfile.TemporaryDirectory() as folder:
        model = Path(folder) / "light.onnx"
        macs = make_network(model, WIDTHS["light"])
        measure = Measure(model, seconds)
        print(f"network of {macs:.0f} million multiply-adds, {usable_cpus()} processors\n")
        heads = "".join(f"{c:8}{'CPU':>6}" for c in asked.clients)
        print(f"  {'settings, one window each; img/s and CPU ms/img with clients':67}{heads}")
        ours = heat_ours(measure, asked.clients, MAXIMA[:count])
        chosen = {
            peer: heat(peer, measure, asked.clients, SETTINGS[peer][:count]) for peer in peers
        }
        cells = rounds_of(measure, ours, chosen, asked.clients, rounds)
    save(asked.json, about, {"cells": report(cells, ours, chosen)})


if __name__ == "__main__":
    main()
