"""Eight live sources of 25 frames a second through a network that can do more, and through one that can do half of it.

The network stands for one on another device: a batch of 8 takes its time, and no processor. At a load of 60 % nothing is to be
dropped; at 200 % all of the capacity is to be delivered, in equal shares, and no frame is to be older than three batches.

Printed are, for each load: frames read, delivered and dropped; what was delivered, as a part of the capacity; the
difference between the largest and the smallest share of a source, as a part of the largest; the median and the greatest age
of a frame when the loop gets it, in batch times; and processor microseconds a frame that was read. Capacity and batch times
are those of the median of the full batches, as long as they did take.

    python -m benchmarks.vision.live [--quick] [--json FILE]
"""

from __future__ import annotations

import statistics
import threading
import time
from typing import TYPE_CHECKING, Any

import numpy as np
from benchmarks.load import arguments, environment, print_environment, save

import headrace
from headrace_vision import VideoRunner

if TYPE_CHECKING:
    from collections.abc import Iterator

PACKAGES = ("headrace", "headrace-vision", "numpy")
SOURCES, FPS, BATCH = 8, 25, 8


TOOK_S: list[float] = []
"""How long each full batch has taken: where the machine is busy, longer than it should."""


class Device(headrace.Backend):
    """A network elsewhere: a fixed time a batch and a time for each of its frames, as long as a batch of 8 is to take."""

    class Options(headrace.Options):
        """How long a full batch takes."""

        batch_ms: float = 24.0

    def init(self, options: Options, context: headrace.InitContext) -> None:
        """Keep the time."""
        self.batch_s = options.batch_ms / 1000
        TOOK_S.clear()

    def forward(self, batch: list[Any]) -> None:
        """Wait for as long as the batch takes."""
        began = time.perf_counter()
        time.sleep(self.batch_s * (1 + len(batch)) / (1 + BATCH))
        if len(batch) == BATCH:
            TOOK_S.append(time.perf_counter() - began)
        for request in batch:
            request["result"] = None


def camera(
    name: str, number: int, seconds: float, born: dict[tuple[str, int], float]
) -> Iterator[Any]:
    """Yield a picture every 40 ms, and note when."""
    image = np.zeros((360, 640, 3), np.uint8)
    begin = time.perf_counter() + number / FPS / SOURCES
    over = threading.Event()
    for frame in range(int(seconds * FPS)):
        over.wait(max(begin + frame / FPS - time.perf_counter(), 0.0))
        born[name, frame] = time.perf_counter()
        yield image


def measure(load: float, seconds: float) -> dict[str, float]:
    """Run the sources at a load (1.0 is the capacity), and return what came of it."""
    batch_s = BATCH / (SOURCES * FPS) * load
    born: dict[tuple[str, int], float] = {}
    ages = []
    cpu = time.process_time()
    config = {"backend": "Device", "max": BATCH, "batch_ms": 1000 * batch_s}
    names = [f"s{number}" for number in range(SOURCES)]
    with VideoRunner(config, frames="latest") as runner:
        sources = {name: camera(name, n, seconds, born) for n, name in enumerate(names)}
        for frame in runner.run(sources):
            ages.append(time.perf_counter() - born[frame.source, frame.frame])  # noqa: PERF401
        found = runner.status()["sources"]
    cpu = time.process_time() - cpu
    batch_s = statistics.median(TOOK_S) if TOOK_S else batch_s
    shares = [found[name]["delivered"] for name in names]
    read = sum(one["read"] for one in found.values())
    return {
        "load": load,
        "read": read,
        "delivered": sum(shares),
        "dropped": sum(one["dropped"] for one in found.values()),
        "of_capacity": sum(shares) / (BATCH / batch_s * seconds),
        "share_spread": (max(shares) - min(shares)) / max(shares),
        "age_p50_batches": statistics.median(ages) / batch_s,
        "age_max_batches": max(ages) / batch_s,
        "cpu_us": 1e6 * cpu / read,
    }


def main() -> None:
    """Measure and print."""
    args = arguments(__doc__).parse_args()
    seconds = 2.0 if args.quick else 20.0
    headrace.register("Device", Device, replace=True)
    about = environment(PACKAGES)
    print_environment(about)
    measure(1.0, 0.5)  # threads, imports
    rows = [measure(load, seconds) for load in (0.6, 2.0)]
    print(f"{SOURCES} sources of {FPS} frames a second, batches of {BATCH}, {seconds:g} s each")
    print("  load   read  delivered  dropped  of capacity  spread  age p50   max  us CPU")
    for row in rows:
        print(
            f"{row['load']:6.0%} {row['read']:6} {row['delivered']:10} {row['dropped']:8} {row['of_capacity']:12.3f}"
            f" {row['share_spread']:7.3f} {row['age_p50_batches']:8.2f} {row['age_max_batches']:5.2f} {row['cpu_us']:7.1f}"
        )
    save(args.json, about, {"loads": rows})


if __name__ == "__main__":
    main()
