"""Decoding pictures before a GPU: the node that decodes, and decoding alone."""

from __future__ import annotations

import multiprocessing
import time
from typing import TYPE_CHECKING, Any

from benchmarks.load import usable_cpus

if TYPE_CHECKING:
    from benchmarks.ways import Way

__all__ = ["by_processes", "decoding_node", "picture_of"]


def decoding_node(way: Way, size: int) -> dict[str, Any]:
    """Give the keys of a node that decodes in one way; pictures become ``uint8 [size, size, 3]``."""
    words = f"DecodeMat,ResizeMat({size},{size})"
    # The words take one picture at a time, so a node of them alone has batches of one. Identity takes any
    # number: with it in front, the node forms batches of up to `max`.
    return way.node(f"S[Identity,{words}]" if way.most > 1 else f"S[{words}]")


def picture_of(file: bytes, size: int) -> Any:
    """Decode and resize by hand, with the functions that headrace-cv calls; ``uint8 [size, size, 3]``."""
    import cv2
    import numpy as np

    return cv2.resize(cv2.imdecode(np.frombuffer(file, np.uint8), cv2.IMREAD_COLOR), (size, size))


def by_processes(files: list[bytes], size: int, seconds: float) -> float:
    """Give the pictures a second of one independent process per processor: decoding alone."""
    context = multiprocessing.get_context("spawn")
    start, done = context.Barrier(usable_cpus()), context.Queue()
    args = (files, size, seconds, start, done)
    processes = [context.Process(target=_decode, args=args) for _ in range(usable_cpus())]
    for process in processes:
        process.start()
    rate: float = sum(done.get() for _ in processes)
    for process in processes:
        process.join()
    return rate


def _decode(files: list[bytes], size: int, seconds: float, start: Any, done: Any) -> None:
    import cv2

    cv2.setNumThreads(1)
    picture_of(files[0], size)
    start.wait()
    count, begun = 0, time.perf_counter()
    while (spent := time.perf_counter() - begun) < seconds:
        picture_of(files[count % len(files)], size)
        count += 1
    done.put(count / spent)
