"""JPEG to class on the CPU: headrace beside the best code one would write by hand.

One request is the bytes of a JPEG picture (640 x 480): decode, resize to 224 x 224, to a planar
float tensor, through a convolutional network with ONNX Runtime. The same libraries, the same
functions of OpenCV, one thread inside each call; the sides differ only in who runs what:

- ``alone``: every client does all of it in its own thread, with one shared session.
- ``batcher``: a hand-written batcher, in four forms; the better one counts. Either the clients
  make the tensors and two threads gather them (up to 8, or 1 at a time) and run the network, or
  two threads do all of it (up to 8, or 1 at a time).
- ``headrace``: the backends of headrace-cv and headrace-ort in one node with ``instance_num = "auto"``, with
  ``max`` 1, 4 and 8. One of these is chosen for all numbers of clients; the others are shown.

A second part, ``lists``: one client that has 64 pictures at a time and wants all their classes.
headrace gets ``pipe([...])`` of 64 requests in two instances; by hand, the same 64 go one after the
other through the client's thread (``alone``), in halves through two threads that do all of it
(``halves``), and all at once into each form of the batcher.

The clock of a request runs from the call with the bytes to the class in the client's hands, that of
a list from the call with 64 files to the 64 classes. Processor time is that of the process:
clients, threads, network.

    python -m benchmarks.jpeg_onnx [--network light heavy] [--part clients lists]
                                   [--clients 1 10 40] [--json FILE]

The networks (about 60 and 550 million multiply-adds, random weights) are made at run time. Needs
headrace, headrace-cv, headrace-ort and onnx.
"""

from __future__ import annotations

import statistics
import tempfile
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import cv2
from benchmarks.figures import compare
from benchmarks.jpeg_sides import WIDTHS, list_sides_of, make_network, sides_of
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
from benchmarks.pictures import make_pictures

if TYPE_CHECKING:
    from collections.abc import Callable

    from benchmarks.figures import Figure
    from benchmarks.jpeg_sides import ListSide, Side

PARTS = ("clients", "lists")
LIST = 64
WANTED_LISTS = 0.95


def check(answers: dict[str, list[int]]) -> None:
    """See to it that all sides give the same classes."""
    wrong = [name for name in answers if answers[name] != answers["alone"]]
    if wrong:
        raise SystemExit(f"these sides answer otherwise: {', '.join(wrong)}")


def report(cells: dict[int, dict[str, list[Load]]]) -> dict[str, Any]:
    """Print the loads of one network by number of clients, and the ratios."""
    print(
        f"{'':32}{'clients':>8}{'img/s':>8}{'p50 ms':>8}{'p99 ms':>8}{'CPU ms/img':>11}{'cores':>7}"
    )
    for clients, loads in cells.items():
        for name, rounds in loads.items():
            m = middle(rounds)
            print(
                f"{name:32}{clients:8}{m.rps:8.0f}{m.p50_us / 1e3:8.2f}{m.p99_us / 1e3:8.2f}"
                f"{m.cpu_us / 1e3:11.3f}{m.cores:7.2f}"
            )
        print()
    by_hand = {
        clients: max(
            (name for name in loads if not name.startswith("headrace")),
            key=lambda name: middle(loads[name]).rps,
        )
        for clients, loads in cells.items()
    }
    ratios = {
        name: {c: ratio(loads[name], loads[by_hand[c]]) for c, loads in cells.items()}
        for name in next(iter(cells.values()))
        if name.startswith("headrace")
    }
    best = max(ratios, key=lambda name: min(ratios[name].values()))
    print("throughput of headrace over the better of all that is written by hand")
    figures = {}
    for clients, loads in cells.items():
        others = ", ".join(
            f"{name.removeprefix('headrace, ')} {values[clients]:.3f}"
            for name, values in ratios.items()
        )
        tail = ratio(loads[best], loads["alone"], "p99_us")
        cpu = ratio(loads[best], loads[by_hand[clients]], "cpu_us")
        print(
            f"  {clients:3} clients: {ratios[best][clients]:.3f} x {by_hand[clients]!r} with {best!r}"
            f" ({others}); processor time {cpu:.3f} x; p99 {tail:.2f} x that of 'alone'"
        )
        figures[clients] = {
            "by_hand": by_hand[clients],
            "chosen": best,
            "ratio": {name: values[clients] for name, values in ratios.items()},
            "cpu_over_by_hand": cpu,
            "p99_over_alone": tail,
            "loads": loads,
        }
    print(flush=True)
    return figures


def report_lists(loads: dict[str, list[Load]], size: int) -> dict[str, Any]:
    """Print the loads of lists of one network, and the ratios."""
    print(
        f"one client, lists of {size}{'':14}{'img/s':>8}{'ms/list':>9}{'CPU ms/img':>11}{'cores':>7}"
    )
    # The speed comes from the median time of a list: a window holds so few lists that their number
    # would be too coarse a measure.
    times_us = {name: statistics.median(x.p50_us for x in of) for name, of in loads.items()}
    for name, rounds in loads.items():
        m = middle(rounds)
        print(
            f"{name:32}{1e6 * size / times_us[name]:8.0f}{times_us[name] / 1e3:9.1f}"
            f"{m.cpu_us / 1e3 / size:11.3f}{m.cores:7.2f}"
        )
    by_hand = min(
        (name for name in loads if not name.startswith("headrace")),
        key=lambda name: times_us[name],
    )
    ratios = {
        name: 1 / ratio(rounds, loads[by_hand], "p50_us")
        for name, rounds in loads.items()
        if name.startswith("headrace")
    }
    best = max(ratios, key=lambda name: ratios[name])
    cpu = ratio(loads[best], loads[by_hand], "cpu_us")
    others = ", ".join(f"{name.removeprefix('headrace, ')} {r:.3f}" for name, r in ratios.items())
    print(
        f"  {ratios[best]:.3f} x {by_hand!r} with {best!r} ({others}); processor time {cpu:.3f} x;"
        f" wanted: {WANTED_LISTS} x\n",
        flush=True,
    )
    return {
        "size": size,
        "by_hand": by_hand,
        "chosen": best,
        "ratio": ratios,
        "cpu_over_by_hand": cpu,
        "loads": loads,
    }


Run = tuple[float, float, int]
"""How long a window is and what runs before it, in seconds, and how many rounds there are."""


def measure_clients(
    model: Path, files: list[bytes], numbers: list[int], run: Run
) -> dict[str, Any]:
    """Run all sides with each number of clients that send one picture after the other."""
    seconds, warm_up, rounds = run
    sides, closing = sides_of(model)
    check({name: [side(file) for file in files] for name, side in sides.items()})
    cells = {}
    for clients in numbers:
        runs: dict[str, Callable[[], Load]] = {}
        for name, side in sides.items():

            def call(i: int, side: Side = side) -> None:
                side(files[i % len(files)])

            runs[name] = partial(drive, call, clients, seconds, warm_up)
        cells[clients] = in_turn(runs, rounds)
    for close in closing:
        close()
    return report(cells)


def measure_lists(model: Path, files: list[bytes], size: int, run: Run) -> dict[str, Any]:
    """Run all sides with one client that sends lists."""
    seconds, warm_up, rounds = run
    sides, closing = list_sides_of(model)
    pictures = [files[k % len(files)] for k in range(size)]
    check({name: side(pictures) for name, side in sides.items()})
    runs: dict[str, Callable[[], Load]] = {}
    for name, side in sides.items():

        def call(_: int, side: ListSide = side) -> None:
            side(pictures)

        runs[name] = partial(drive, call, 1, seconds, warm_up)
    loads = in_turn(runs, rounds)
    for close in closing:
        close()
    return report_lists(loads, size)


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--network", nargs="+", choices=WIDTHS, default=list(WIDTHS))
    parser.add_argument("--part", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--clients", nargs="+", type=int, default=[1, 10, 40])
    parser.add_argument("--list", type=int, default=LIST, help="pictures in a list")
    parser.add_argument("--seconds", type=float, default=1.0, help="length of one window")
    parser.add_argument("--rounds", type=int, default=7)
    chosen = parser.parse_args()
    seconds, rounds = (0.02, 1) if chosen.quick else (chosen.seconds, chosen.rounds)
    run = (seconds, min(0.4, seconds), rounds)
    # A list takes a fifth of a second or more, so the window is longer, to hold several lists.
    list_run = (max(3 * seconds, 0.05 if chosen.quick else 1.0), min(0.4, seconds), rounds)
    cv2.setNumThreads(1)
    about = environment(
        [
            "headrace",
            "headrace-cv",
            "headrace-ort",
            "onnxruntime",
            "opencv-python-headless",
            "numpy",
        ]
    )
    print_environment(about)
    files = make_pictures()
    figures: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        for network in chosen.network:
            model = Path(folder) / f"{network}.onnx"
            macs = make_network(model, WIDTHS[network])
            size = sum(map(len, files)) / len(files) / 1024
            print(f"{network}: {macs:.0f} million multiply-adds, pictures of {size:.0f} KiB")
            figures[network] = {}
            if "clients" in chosen.part:
                figures[network].update(measure_clients(model, files, chosen.clients, run))
            if "lists" in chosen.part:
                figures[network]["lists"] = measure_lists(model, files, chosen.list, list_run)
    save(chosen.json, about, figures, kept_of(figures))


def kept_of(figures: dict[str, Any]) -> list[Figure]:
    """Return the figures of the side of Headrace that was chosen, beside the best that is written by hand."""
    kept = []
    for network, cells in figures.items():
        for clients, cell in cells.items():
            loads = cell["loads"]
            ours, hand = loads[cell["chosen"]], cell["by_hand"]
            if clients == "lists":
                what = f"{network} network, one client, {cell['chosen']}: lists of {cell['size']} a second"
                rps = [[load.rps for load in each] for each in (ours, loads[hand])]
                best = f"the best by hand ({hand})"
                kept.append(compare(what, "1/s", "higher", rps[0], best, rps[1]))
                continue
            what = f"{network} network, {clients} clients, {cell['chosen']}"
            best = f"the best by hand ({hand})"
            kept.append(beside(what, ours, best, loads[hand]))
            kept.append(beside(what, ours, best, loads[hand], "cpu_us"))
            alone = "every client does it all itself"
            kept.append(beside(what, ours, alone, loads["alone"], "p99_us"))
    return kept


if __name__ == "__main__":
    main()
