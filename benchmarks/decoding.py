"""Decoding pictures before a GPU: the ways that the benchmarks of two nodes compare, and decoding alone."""

from __future__ import annotations

import multiprocessing
import re
import time
from dataclasses import dataclass
from typing import Any

from benchmarks.load import usable_cpus

__all__ = ["Decoding", "by_processes", "picture_of"]

_TEXT = re.compile(r"(p?)(\d+)(?:x(\d+))?(?:@(\d+)(s?))?")


@dataclass(frozen=True)
class Decoding:
    """One way to decode, written as ``[p]INSTANCES[xMAX][@CPUS[s]]``: ``40``, ``p16x8``, ``p16x8@4``.

    Attributes:
        text: How it was written.
        instances: Instances of the node that decodes.
        most: Pictures that one instance takes at a time (``xMAX``).
        processes: Whether each instance is a process of its own (``p``).
        front_cpus: How many processors the threads of this process use meanwhile; None for all (``@CPUS``).
        separate: Whether the processes use the other processors alone (``s``).
    """

    text: str
    instances: int
    most: int = 1
    processes: bool = False
    front_cpus: int | None = None
    separate: bool = False

    @classmethod
    def read(cls, text: str) -> Decoding:
        """Read how it is written.

        Raises:
            ValueError: It is written otherwise.
        """
        found = _TEXT.fullmatch(text)
        if found is None:
            raise ValueError(f"{text!r} is not [p]INSTANCES[xMAX][@CPUS[s]]")
        process, instances, most, cpus, separate = found.groups()
        front = int(cpus) if cpus else None
        return cls(text, int(instances), int(most or 1), bool(process), front, bool(separate))

    @classmethod
    def usual(cls) -> Decoding:
        """Give an instance per processor, in threads."""
        return cls.read(str(usable_cpus()))

    def node(self, size: int) -> dict[str, Any]:
        """Give the keys of the node; pictures become ``uint8 [size, size, 3]``."""
        words = f"DecodeMat,ResizeMat({size},{size})"
        if self.most > 1:
            # The words take one picture at a time, so a node of them alone has batches of one. Identity
            # takes any number: with it in front, the node forms batches of up to `max`.
            words = f"Identity,{words}"
        backend = f"Process[S[{words}]]" if self.processes else f"S[{words}]"
        if self.separate:
            backend = backend.replace(
                "Process", f"Process(cpus={self.front_cpus}-{usable_cpus() - 1})"
            )
        return {"backend": backend, "instance_num": self.instances, "max": self.most}


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
