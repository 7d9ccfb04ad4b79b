"""Requests that must wait: a node of many instances, alone and before a node with threads of its own.

40 clients call a pipeline whose first node has 16 instances, so that nearly every request passes the
queue. Beside it runs the same work written by hand: threads on a `queue.SimpleQueue`, and one lock per
client (`two_stages.py` for two nodes). Two shapes:

- ``one``: the first node alone;
- ``two``: a second node follows, with 2 instances that own their threads, batches of at most 8 and a
  ``batching_timeout`` of 2 ms; its backend sleeps 1.4 ms a batch, as a model on a GPU does.

The work of the first node is a sleep of 1.8 ms, which needs no processor; with ``--jpeg`` it is to
decode a JPEG of 640 x 480 and resize it to 224 x 224 by OpenCV. The clock is that of `load.py`.
Beside it the voluntary switches of threads per request are printed, those of the warm-up included.

    python -m benchmarks.scheduling.queued [--jpeg] [--clients 40] [--instances 16] [--json FILE]
"""

from __future__ import annotations

import resource
import threading
import time
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

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
)
from benchmarks.two_stages import TwoStages

import headrace

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from typing_extensions import Self

FIRST_S, SECOND_S = 0.0018, 0.0014
MODELS, MOST, TIMEOUT_MS = 2, 8, 2


class Sleeps(headrace.Backend):
    """The first node: 1.8 ms per request."""

    def forward(self, batch: list[dict[str, Any]]) -> None:
        """Answer a batch."""
        for request in batch:
            time.sleep(FIRST_S)
            request["result"] = 1


class Model(headrace.Backend):
    """The second node: 1.4 ms per batch, in a thread of its own."""

    owns_thread = True

    def forward(self, batch: list[dict[str, Any]]) -> None:
        """Answer a batch."""
        time.sleep(SECOND_S)
        for request in batch:
            request["result"] = 1


class OneStage:
    """Threads on one queue, written by hand; each client waits on a lock of its own."""

    def __init__(self, work: Callable[[Any], Any], threads: int) -> None:
        self._queue: SimpleQueue[list[Any] | None] = SimpleQueue()
        self._own = threading.local()
        self._threads = [
            threading.Thread(target=self._run, args=(work,), daemon=True) for _ in range(threads)
        ]
        for thread in self._threads:
            thread.start()

    def _run(self, work: Callable[[Any], Any]) -> None:
        while (item := self._queue.get()) is not None:
            item[1] = work(item[1])
            item[0].release()

    def __call__(self, data: Any) -> Any:
        """Send one request and wait for its answer."""
        lock = getattr(self._own, "lock", None)
        if lock is None:
            lock = self._own.lock = threading.Lock()
            lock.acquire()
        item = [lock, data]
        self._queue.put(item)
        lock.acquire()
        return item[1]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for _ in self._threads:
            self._queue.put(None)
        for thread in self._threads:
            thread.join()


def slept(_: Any) -> int:
    time.sleep(FIRST_S)
    return 1


def model(pictures: list[Any]) -> list[int]:
    time.sleep(SECOND_S)
    return [1] * len(pictures)


def jpeg() -> tuple[Any, Callable[[Any], Any]]:
    """Return a JPEG and the function that decodes and resizes it."""
    import cv2
    import numpy as np

    noise = np.random.default_rng(7).integers(0, 255, (60, 80, 3), np.uint8)
    file = cv2.imencode(".jpg", cv2.resize(noise, (640, 480)))[1].tobytes()

    def decoded(data: bytes) -> Any:
        picture = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR)
        return cv2.resize(picture, (224, 224))

    return file, decoded


def sides(
    *, jpegs: bool, instances: int, run: Callable[[Callable[[int], object]], Load]
) -> dict[str, Callable[[], Load]]:
    """Return the sides that are compared: both shapes, by hand and with headrace."""
    data, work = jpeg() if jpegs else (1, slept)
    first = "S[DecodeMat,ResizeMat]" if jpegs else "Sleeps"
    node: dict[str, Any] = {"backend": first, "instance_num": instances}
    if jpegs:
        node |= {"resize_h": 224, "resize_w": 224}
    second = {"backend": "Model", "instance_num": MODELS, "max": MOST}
    second |= {"batching_timeout": TIMEOUT_MS}

    def by_hand(two: bool) -> Load:
        made = (
            TwoStages(work, [model] * MODELS, decoders=instances, batch=MOST, timeout_ms=TIMEOUT_MS)
            if two
            else OneStage(work, instances)
        )
        with made as call:
            return run(lambda _: call(data))

    def ours(two: bool) -> Load:
        config = {"first": {**node, "next": "second"}, "second": second} if two else {"first": node}
        with headrace.pipe(config) as pipe:
            return run(lambda _: pipe({"data": data}))

    return {
        "one, by hand": lambda: by_hand(False),
        "one, headrace": lambda: ours(False),
        "two, by hand": lambda: by_hand(True),
        "two, headrace": lambda: ours(True),
    }


def main() -> None:
    """Measure and print."""
    parser = arguments(__doc__)
    parser.add_argument("--jpeg", action="store_true", help="decode and resize by OpenCV")
    parser.add_argument("--clients", type=int, default=40)
    parser.add_argument("--instances", type=int, default=16)
    args = parser.parse_args()
    seconds, warm_up, rounds = (0.02, 0.02, 1) if args.quick else (2.0, 0.5, 5)
    headrace.register("Sleeps", Sleeps, replace=True)
    headrace.register("Model", Model, replace=True)
    switches: list[float] = []

    def run(call: Callable[[int], object]) -> Load:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_nvcsw
        load = drive(call, args.clients, seconds, warm_up)
        after = resource.getrusage(resource.RUSAGE_SELF).ru_nvcsw
        switches.append((after - before) / (load.rps * (load.seconds + warm_up)))
        return load

    about = environment(["headrace", "headrace-cv", "opencv-python-headless"])
    print_environment(about)
    found = in_turn(sides(jpegs=args.jpeg, instances=args.instances, run=run), rounds)
    print(
        f"{'side':14} {'req/s':>8} {'p99 ms':>7} {'CPU µs':>7} {'switches':>9} {'of by hand':>11}"
    )
    figures: dict[str, Any] = {"loads": found, "ratio": {}, "switches": {}}
    for place, (side, loads) in enumerate(found.items()):
        shape = side.split(",")[0]
        figures["ratio"][side] = ratio(loads, found[f"{shape}, by hand"])
        figures["switches"][side] = sorted(switches[place :: len(found)])[rounds // 2]
        load = middle(loads)
        print(
            f"{side:14} {load.rps:8.0f} {load.p99_us / 1e3:7.1f} {load.cpu_us:7.0f} "
            f"{figures['switches'][side]:9.1f} {figures['ratio'][side]:11.2f}",
            flush=True,
        )
    save(args.json, about, figures)


if __name__ == "__main__":
    main()
