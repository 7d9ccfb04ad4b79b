"""What the live page costs while a browser looks: requests per second of a pipeline with and without it, in turn.

python -m benchmarks.serve.live_page [--quick]

The browser is a client that asks for the state once a second, as the page does. Sixteen threads call the pipeline that the
server serves, without HTTP in between: what they reach is the most that a probe can take from.
"""

from __future__ import annotations

import argparse
import statistics
import threading
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor

import cv2
import numpy as np

import headrace
from headrace_serve import Server

SECONDS = 3.0


def rate(pipe: headrace.Pipeline, data: object) -> float:
    """Return how many requests a second sixteen threads have answered."""
    ends = time.perf_counter() + SECONDS

    def calls(_: int) -> int:
        count = 0
        while time.perf_counter() < ends:
            pipe({"data": data})
            count += 1
        return count

    with ThreadPoolExecutor(16) as threads:
        return sum(threads.map(calls, range(16))) / SECONDS


def looking(url: str, over: threading.Event) -> None:
    """Ask for the state once a second, for what is new, as the page does."""
    while not over.wait(1.0):
        with urllib.request.urlopen(f"{url}/ui/state.json?batches.m:1=0") as answer:
            answer.read()


def main() -> None:
    """Measure two pipelines."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true")
    rounds = 1 if parser.parse_args().quick else 7
    picture = cv2.imencode(".jpg", np.zeros((480, 640, 3), np.uint8))[1].tobytes()
    pictures = "S[DecodeMat,ResizeMat(224,224),CvtColorMat(rgb),Mat2Tensor]"
    for name, expression, data in (
        ("pictures", pictures, picture),
        ("nothing to compute", "Identity", 1),
    ):
        with (
            headrace.pipe({"backend": expression, "max": 8, "instance_num": 2}) as pipe,
            Server({"m": pipe}, port=0, ui=True) as server,
        ):
            ratios = []
            for _ in range(rounds):
                without = rate(pipe, data)
                over = threading.Event()
                browser = threading.Thread(target=looking, args=(server.url, over))
                with urllib.request.urlopen(f"{server.url}/ui/state.json") as answer:
                    answer.read()  # from now on it is watched
                browser.start()
                ratios.append(rate(pipe, data) / without)
                over.set()
                browser.join()
                server_forgets(pipe)
            print(
                f"{name}: {without:.0f} requests a second without a browser; with one "
                f"{statistics.median(ratios):.3f} times as many ({min(ratios):.3f} to {max(ratios):.3f})"
            )


def server_forgets(pipe: headrace.Pipeline) -> None:
    """Wait until the server has noticed that no browser asks."""
    while "probes" in pipe.stats():
        time.sleep(0.1)


if __name__ == "__main__":
    main()
