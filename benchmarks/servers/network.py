"""The network that a worker of every server runs; an environment variable tells the worker its path."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import cv2
import numpy as np
from benchmarks.jpeg_sides import session_of, tensor_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["MODEL", "REQUEST_SECONDS", "Network", "tensor_of"]

MODEL = "HEADRACE_BENCHMARK_MODEL"
"""The environment variable with the path of the network; workers inherit it."""

REQUEST_SECONDS = 60
"""How long a server lets a request wait: nothing may time out here."""


class Network:
    """A session with one thread, as in all other sides."""

    def __init__(self) -> None:
        cv2.setNumThreads(1)
        self.session = session_of(Path(os.environ[MODEL]))

    def classes(self, tensors: list[NDArray[np.float32]]) -> list[int]:
        """Run ``float32 [1, 3, 224, 224]`` tensors as one batch; give the number of each class."""
        whole = tensors[0] if len(tensors) == 1 else np.concatenate(tensors)
        (scores,) = self.session.run(None, {"image": whole})
        return [int(number) for number in scores.argmax(axis=1)]
