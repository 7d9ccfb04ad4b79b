"""How the requests of an instance are run, and the scratch memory that instances may share."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING

from headrace_trt.execution import ContextMemory

if TYPE_CHECKING:
    from collections.abc import Mapping

    from headrace_trt.cuda import Cuda
    from headrace_trt.engine import Engine

__all__ = ["RunSettings", "SharedScratch"]


@dataclass(frozen=True)
class RunSettings:
    """How requests are run; the fields have the meaning of the options of ``TensorrtInferTensor``."""

    ragged: str = "refuse"
    pad_value: float | Mapping[str, float] = 0.0
    pad_multiple: int = 1
    crop: Mapping[str, str] | None = None
    output_device: str = "cpu"
    cuda_graph: bool = False
    cuda_graph_limit: int = 16
    context_memory: str = "static"


class SharedScratch:
    """Scratch memory that all instances of a node share; one of them runs at a time."""

    def __init__(self, engine: Engine, cuda: Cuda) -> None:
        self.memory = ContextMemory.for_engine(engine, cuda)
        # Reentrant, because a thread may use two runners in one batch; both queue their work on the same stream.
        self.lock = threading.RLock()

    def close(self) -> None:
        """Give the memory back."""
        self.memory.close()
