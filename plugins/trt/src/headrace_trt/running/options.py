"""The options of `TensorrtInferTensor`, which says how an engine is run."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from headrace_tensors import RowSizes, UnbatchedOptions

__all__ = ["InferOptions"]


class InferOptions(UnbatchedOptions):
    """Options of `TensorrtInferTensor`.

    Attributes:
        output_device: Where results are: numpy arrays, or arrays on the device that DLPack takes.
        cuda_graph: Whether runs are recorded as CUDA graphs, one per shape.
        cuda_graph_limit: Most graphs that are kept, of the shapes that were used last.
        context_memory: Scratch memory of an instance: for every profile, for its own, or one for all instances of the
            node, which then run one at a time.
    """

    output_device: Literal["cpu", "device"] = "cpu"
    row_sizes: RowSizes = ()
    cuda_graph: bool = False
    cuda_graph_limit: int = Field(16, ge=1)
    context_memory: Literal["static", "on_profile_change", "shared"] = "static"

    @model_validator(mode="after")
    def _one_memory(self) -> InferOptions:
        if self.cuda_graph and self.context_memory == "on_profile_change":
            raise ValueError(
                "cuda_graph gives the contexts of an instance one scratch memory for every profile, which"
                " context_memory = 'on_profile_change' would not be: leave one of them out"
            )
        return self
