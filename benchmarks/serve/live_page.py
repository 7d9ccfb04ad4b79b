"""What the live page costs while a browser looks: a pipeline with and without it, in turn.

python -m benchmarks.serve.live_page [--quick] [--json FILE]

The browser is a process that asks for the state once a second, for what is new, as the page does. Sixteen threads call the pipeline
that the server serves, without HTTP in between: what they reach is the most that a probe can take from. Requests per second
depend on what else the machine does; processor time per request, of the process that serves, does so less.
"""

from __future__ import annotations

import argparse
import contextlib
import subprocess
import sys
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import cv2
import numpy as np
from benchmarks.figures import Figure, compare
from benchmarks.load import environment, print_environment, save

import headrace
from headrace_serve import Server

if TYPE_CHECKING:
    from collections.abc import Iterator

CALLERS = 16
LOOKS = """
import json, sys, time, urllib.request
batches = failures = 0
while True:
    with urllib.request.urlopen(f"{sys.argv[1]}/ui/state.json?batches.m:1={batches}&failures={failures}") as answer:
        (model,) = json.load(answer)["models"]
    batches = max([batches, *(one[0] for one in model["batches"])])
    print("looked", flush=True)
    time.sleep(1.0)
"""


def rates(pipe: headrace.Pipeline, data: object, seconds: float) -> tuple[float, float]:
    """Return how many requests a second the threads have answered, and the processor time of each in microseconds."""
    began, worked = time.perf_counter(), time.process_time()

    def calls(_: int) -> int:
        count = 0
        while time.perf_counter() < began + seconds:
            pipe({"data": data})
            count += 1
        return count

    with ThreadPoolExecutor(CALLERS) as threads:
        count = sum(threads.map(calls, range(CALLERS)))
    passed = time.perf_counter() - began
    return count / passed, (time.process_time() - worked) / count * 1e6


@contextlib.contextmanager
def looking(url: str, pipe: headrace.Pipeline) -> Iterator[None]:
    """Have a browser look at the page in this block; afterwards wait until the server has noticed that none does."""
    command = [sys.executable, "-c", LOOKS, url]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as browser:
        assert browser.stdout is not None
        browser.stdout.readline()
        try:
            yield
        finally:
            browser.kill()
    with contextlib.suppress(OSError), urllib.request.urlopen(f"{url}/v2/health/live") as answer:
        answer.read()
    while "probes" in pipe.stats():
        time.sleep(0.1)


def measured(
    name: str, config: dict[str, object], data: object, seconds: float, rounds: int
) -> list[Figure]:
    """Return the figures of one pipeline; each round has both sides, and every second begins with the other one."""
    sides: dict[bool, list[tuple[float, float]]] = {False: [], True: []}
    with headrace.pipe(config) as pipe, Server({"m": pipe}, port=0, ui=True) as server:
        rates(pipe, data, seconds / 3)
        for number in range(rounds):
            for looks in (number % 2 == 0, number % 2 == 1):
                with looking(server.url, pipe) if looks else contextlib.nullcontext():
                    sides[looks].append(rates(pipe, data, seconds))
    with_page, without = (list(zip(*sides[looks], strict=True)) for looks in (True, False))
    beside = "no browser looks"
    return [
        compare(
            f"{name}: throughput while a browser looks at the live page",
            "requests/s", "higher", with_page[0], beside, without[0], own=True,
        ),
        compare(
            f"{name}: processor time of a request while a browser looks at the live page",
            "us", "lower", with_page[1], beside, without[1], own=True,
        ),
    ]  # fmt: skip


def main() -> None:
    """Measure two pipelines."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    seconds, rounds = (0.2, 1) if options.quick else (2.5, 15)
    about = environment(["headrace", "headrace-serve", "uvicorn"])
    print_environment(about)
    picture = cv2.imencode(".jpg", np.zeros((480, 640, 3), np.uint8))[1].tobytes()
    work = {"backend": "S[DecodeMat,ResizeMat(224,224),CvtColorMat(rgb),Mat2Tensor]"}
    figures = []
    for name, backend, data in (
        ("pictures", work, picture),
        ("nothing to compute", {"backend": "Identity"}, 1),
    ):
        config: dict[str, object] = {**backend, "max": 8, "instance_num": 2}
        for one in measured(name, config, data, seconds, rounds):
            figures.append(one)
            low, high = one.spread or (0.0, 0.0)
            print(
                f"{one.what}: {one.value:.1f} {one.unit}, else {one.other:.1f}: ratio {one.ratio:.3f} ({low:.3f} to {high:.3f})"
            )
    save(options.json, about, {}, figures)


if __name__ == "__main__":
    main()
