"""`Iterate` beside a hand-written continuous loop, and beside batches that begin and end together.

    python -m benchmarks.iterate [--clients 1 10 40] [--network] [--quick]

A step works on the tokens and states of all requests in flight, at most 16. It stands for a decoder on a device: it takes
4 ms whatever the number of rows, and the thread sleeps meanwhile. With ``--network`` it is a run of the recurrent network of
examples/decoder on the CPU, of greater width and with random weights; there the time of a step grows with its rows, so full
steps gain little. How many steps a request takes is drawn from a geometric distribution. Clients send one
request after the other. Sides, in turn:

- ``loop``: one thread that keeps the states of those in flight in one array, lets newcomers in before each step and copies the
  array only where somebody comes or leaves: the best that we could write for just this;
- ``Iterate``: the word around a backend that stacks the states of the requests, runs the same step, and takes them apart;
- ``together``: ``Loop`` around the same backend, as in a batch that begins and ends together.

Compared are rows per second (one row is one step of one request), the processor time of a row, and the occupancy.
"""

from __future__ import annotations

import importlib.util
import queue
import random
import statistics
import tempfile
import threading
import time
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from benchmarks.figures import compare, measure
from benchmarks.load import arguments, environment, print_environment, save, usable_cpus

import headrace
from headrace_ort import make_session

if TYPE_CHECKING:
    from collections.abc import Callable

MOST, LETTERS = 16, 96
TRAIN = Path(__file__).parents[1] / "examples" / "decoder" / "train.py"


class Device:
    """A step that takes as long whatever the number of rows; counts its runs and their rows."""

    def __init__(self, step_s: float) -> None:
        self.step_s = step_s
        self.runs = self.rows = 0

    def step(self, token: Any, state: Any) -> tuple[Any, Any]:
        """Return the next tokens and states; token int64 [n], state float32 [n, width]."""
        self.runs += 1
        self.rows += len(token)
        time.sleep(self.step_s)
        return token, state


class Network(Device):
    """A step of the network, on the CPU."""

    def __init__(self, path: Path) -> None:
        super().__init__(0.0)
        self.session = make_session(str(path), intra_op_threads=usable_cpus(), spinning=False)

    def step(self, token: Any, state: Any) -> tuple[Any, Any]:
        """Return the likeliest next tokens and states."""
        self.runs += 1
        self.rows += len(token)
        logits, state = self.session.run(["logits", "stateN"], {"token": token, "state": state})
        return logits.argmax(1), state


class Step(headrace.Backend):
    """A step for the requests of a batch: `token`, `state` and `left` are what they remember."""

    max = MOST
    reads = ("data", "token", "state", "left")
    writes = ("result", "token", "state", "left", "end")
    model: Device

    def forward(self, batch: list[dict[str, Any]]) -> None:
        """Run the step, and take its results apart."""
        token = np.array([request["token"] for request in batch])
        token, state = self.model.step(token, np.stack([request["state"] for request in batch]))
        for request, one, own in zip(batch, token, state, strict=True):
            request["token"], request["state"], request["result"] = one, own, one
            request["left"] -= 1
            if not request["left"]:
                request["end"] = True


def continuous(model: Device, width: int, sent: queue.SimpleQueue[Any]) -> None:
    """Serve requests until None is sent: a step at a time, for at most `MOST`."""
    token, state = np.zeros(0, np.int64), np.zeros((0, width), np.float32)
    flight: list[list[Any]] = []  # how many steps are left, and the future
    while True:
        new = []
        while len(flight) + len(new) < MOST:
            try:
                one = sent.get(block=not flight and not new)
            except queue.Empty:
                break
            if one is None:
                return
            new.append(one)
        if new:
            flight += [[left, future] for _, _, left, future in new]
            token = np.concatenate([token, [one[0] for one in new]])
            state = np.concatenate([state, [one[1] for one in new]])
        token, state = model.step(token, state)
        stays = []
        for place, one in enumerate(flight):
            one[0] -= 1
            if one[0]:
                stays.append(place)
            else:
                one[1].set_result(token[place])
        if len(stays) < len(flight):
            flight, token, state = [flight[k] for k in stays], token[stays], state[stays]


def drive(
    call: Callable[[int], object], model: Device, clients: int, seconds: float, mean: float
) -> dict[str, float]:
    """Let clients send; return the rows per second, their processor time and the occupancy of a window."""
    running, errors = [True], []

    def client(index: int) -> None:
        lengths = random.Random(index)
        try:
            while running:
                call(1 + int(lengths.expovariate(1 / mean)))
        except BaseException as error:  # noqa: BLE001 - reported by the driving thread
            errors.append(error)

    threads = [threading.Thread(target=client, args=(k,), daemon=True) for k in range(clients)]
    for thread in threads:
        thread.start()
    time.sleep(min(0.5, seconds))
    began, cpu, runs, rows = time.perf_counter(), time.process_time(), model.runs, model.rows
    time.sleep(seconds)
    took, cpu = time.perf_counter() - began, time.process_time() - cpu
    runs, rows = model.runs - runs, model.rows - rows
    running.clear()
    for thread in threads:
        thread.join()
    if errors:
        raise RuntimeError("a client failed") from errors[0]
    return {"rows_s": rows / took, "cpu_us": 1e6 * cpu / rows, "occupancy": rows / runs / MOST}


def by_hand(model: Device, width: int, **how: Any) -> dict[str, float]:
    """Measure the loop."""
    sent: queue.SimpleQueue[Any] = queue.SimpleQueue()
    thread = threading.Thread(target=continuous, args=(model, width, sent), daemon=True)
    thread.start()

    def call(steps: int) -> None:
        future: Future[Any] = Future()
        sent.put((0, np.zeros(width, np.float32), steps, future))
        future.result()

    found = drive(call, model, **how)
    sent.put(None)
    thread.join()
    return found


def piped(text: str, model: Device, width: int, **how: Any) -> dict[str, float]:
    """Measure a pipeline."""
    with headrace.pipe({"backend": text}) as pipe:

        def call(steps: int) -> None:
            state = np.zeros(width, np.float32)
            pipe({"data": None, "token": 0, "state": state, "left": steps})

        return drive(call, model, **how)


def make_model(path: Path, width: int) -> None:
    """Write the network of the example with random weights."""
    spec = importlib.util.spec_from_file_location("train", TRAIN)
    assert spec is not None
    assert spec.loader is not None
    train = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(train)
    weights = train.start(LETTERS, width, np.random.default_rng(0))
    path.write_bytes(train.as_onnx(weights).SerializeToString())


def main() -> None:
    """Measure all sides in turn, and print the medians of their ratios to the loop."""
    parser = arguments(__doc__)
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 10, 40])
    parser.add_argument("--network", action="store_true", help="run a network on the CPU")
    parser.add_argument("--width", type=int, default=1024, help="of the state")
    parser.add_argument("--step-ms", type=float, default=4.0, help="of the device")
    parser.add_argument("--steps", type=float, default=32.0, help="mean steps of a request")
    parser.add_argument("--rounds", type=int, default=5, help="of all sides, in turn")
    chosen = parser.parse_args()
    rounds, seconds, width = chosen.rounds, 3.0, chosen.width
    if chosen.quick:
        rounds, seconds, width = 1, 0.05, 32
    about = environment(["headrace", "headrace-flow", "headrace-ort", "onnxruntime", "numpy"])
    print_environment(about)
    figures: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "decoder.onnx"
        make_model(path, width)
        model = Step.model = Network(path) if chosen.network else Device(chosen.step_ms / 1e3)
        headrace.register("Step", Step, replace=True)
        for clients in chosen.clients:
            how: Any = {"clients": clients, "seconds": seconds, "mean": chosen.steps}
            sides = {
                "loop": partial(by_hand, model, width, **how),
                "Iterate": partial(piped, "Iterate(until=end)[Step]", model, width, **how),
                "together": partial(piped, "Loop(until=end,limit=4096)[Step]", model, width, **how),
            }
            found: dict[str, list[dict[str, float]]] = {name: [] for name in sides}
            for _ in range(rounds):
                for name, side in sides.items():
                    found[name].append(side())
            figures[str(clients)] = {"loads": found, **compared(found)}
            show(clients, figures[str(clients)])
    kept = []
    for clients, cell in figures.items():
        loads = cell["loads"]
        ours, what = loads["Iterate"], f"{clients} clients"
        for name, side in {
            "a hand-written continuous loop": "loop",
            "batches that begin and end together": "together",
        }.items():
            rows = [[one["rows_s"] for one in each] for each in (ours, loads[side])]
            own = side == "together"
            kept.append(
                compare(f"{what}: rows a second", "1/s", "higher", rows[0], name, rows[1], own=own)
            )
        spent = [one["cpu_us"] for one in ours]
        kept.append(measure(f"{what}: processor time of a row", "µs", "lower", spent))
        shares = [one["occupancy"] for one in ours]
        kept.append(measure(f"{what}: share of the places in use", "", "higher", shares))
    save(chosen.json, about, figures, kept)


def compared(found: dict[str, list[dict[str, float]]]) -> dict[str, Any]:
    """Return the medians over the rounds of each side, and of its ratio to the loop."""
    ratios = {
        name: statistics.median(
            one["rows_s"] / other["rows_s"] for one, other in zip(loads, found["loop"], strict=True)
        )
        for name, loads in found.items()
    }
    keys = ("rows_s", "cpu_us", "occupancy")
    medians = {
        name: {key: statistics.median(one[key] for one in loads) for key in keys}
        for name, loads in found.items()
    }
    return {"ratio": ratios, "median": medians}


def show(clients: int, cell: dict[str, Any]) -> None:
    """Print the figures of a number of clients."""
    print(f"{clients} clients")
    for name, median in cell["median"].items():
        print(
            f"  {name:9} {median['rows_s']:8.0f} rows/s {median['cpu_us']:8.1f} us each  "
            f"occupancy {median['occupancy']:.2f}  {cell['ratio'][name]:.2f} of the loop"
        )


if __name__ == "__main__":
    main()
