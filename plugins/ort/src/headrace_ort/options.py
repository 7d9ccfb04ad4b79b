"""The options of `OnnxTensor`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import Field, ValidationInfo, field_validator, model_validator

import headrace  # noqa: TC001 - pydantic reads the annotations
from headrace_tensors import BatchAxisOptions, RowSizes

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["ON_CUDA", "OnnxOptions"]

ON_CUDA = (
    "CUDAExecutionProvider",
    "TensorrtExecutionProvider",
    "NvTensorRTRTXExecutionProvider",
)
"""Providers whose option ``device_id`` means the number in ``cuda:N``, that of CUDA first."""


class OnnxOptions(BatchAxisOptions):
    """Options of `OnnxTensor`.

    Attributes:
        model: The ONNX (or .ort) file.
        providers: Execution providers in order, with or without the ending ExecutionProvider, in any case; default: of
            the node's `device`: unset or cpu → cpu, cuda:N → cuda.
        provider_options: Options of the providers, by provider name, as ONNX Runtime names them; where unset,
            `cudnn_conv_algo_search` of the CUDA provider is HEURISTIC.
        output_device: Where results lie: cpu gives numpy arrays, device leaves them on the GPU of a CUDA or TensorRT
            provider (with __dlpack__ and __cuda_array_interface__).
        row_sizes: The only numbers of rows with which the model runs: a run of fewer is filled up to the next with
            copies of its last row, whose results are dropped; more than the largest run as they are; [] lets all be.
            Default: 1, 2, 4, ... `max` for a network that the CUDA provider plans anew for another number, else []. Not
            beside `batch_sizes`.
        cuda_graph: On the CUDA provider, run captured graphs: one per size of `row_sizes` or `batch_sizes`, else of 1,
            2, 4, ... `max`.
        intra_op_threads: Threads of one run, including the caller's; default: this instance's share of the pipeline's
            `threads`.
        spin: Whether idle threads of the pool keep their core busy, so that a run starts a little sooner and takes
            cores from everything else (true or false).
        arena: Whether ONNX Runtime keeps freed memory of the CPU in an arena, and plans a run's as one block; false
            gives it back after each run, which is slower.
        share_weights: Whether the node's instances run one session, with one copy of the weights; default: on the CPU
            with one thread each.
        graph_optimization: Level of ONNX Runtime's graph optimisation.
        session_config: Further entries of ONNX Runtime's session configuration; they win.
        custom_ops: Libraries (.so files) with your own operators; refused where `import` is.
        log_level: What ONNX Runtime itself prints to stderr; default: fatal on the CPU, where every error is raised,
            else error.
    """

    positional: ClassVar[tuple[str, ...]] = ("model",)

    model: headrace.FilePath
    providers: Annotated[tuple[str, ...], Field(min_length=1)] | None = None
    provider_options: dict[str, dict[str, str | int | float | bool]] = Field({})
    output_device: Literal["cpu", "device"] = "cpu"
    row_sizes: RowSizes | None = None
    cuda_graph: bool = False
    intra_op_threads: int | None = Field(None, ge=1, le=4096)
    spin: bool = False
    arena: bool = True
    share_weights: bool | None = None
    graph_optimization: Literal["disabled", "basic", "extended", "all"] = "all"
    session_config: dict[str, str] = Field({})
    custom_ops: tuple[headrace.FilePath, ...] = ()
    log_level: Literal["verbose", "info", "warning", "error", "fatal"] | None = None

    @field_validator("custom_ops", mode="before")
    @classmethod
    def _may_import(cls, value: Any, info: ValidationInfo) -> Any:
        if value and (info.context or {}).get("allow_import") is False:
            raise ValueError("they bring in code, and imports are refused here: leave them out")
        return value

    @model_validator(mode="after")
    def _fit(self) -> Self:
        named = [_short(name) for name in self.providers or ()]
        if len(set(named)) < len(named):
            raise ValueError(f"providers has one twice: {', '.join(self.providers or ())}")
        if len({_short(name) for name in self.provider_options}) < len(self.provider_options):
            raise ValueError(f"provider_options has one twice: {', '.join(self.provider_options)}")
        for name in self.provider_options if named else ():
            if _short(name) not in named:
                raise ValueError(f"provider_options for {name!r}, which `providers` does not name")
        return self

    def on_cpu(self, device: str | None) -> bool:
        """Return whether the model runs on the CPU provider alone."""
        if self.providers is None:
            return (device or "cpu").lower() == "cpu"
        return [_short(name) for name in self.providers] == ["cpu"]

    def on_cuda(self, device: str | None) -> bool:
        """Return whether the first provider, by default that of ``device``, computes on a CUDA device."""
        if self.providers is None:
            return (device or "").lower().startswith("cuda")
        return _short(self.providers[0]) in map(_short, ON_CUDA)


def _short(provider: str) -> str:
    """Return the form of a provider's name that is compared: without its ending, in lower case."""
    return provider.strip().lower().removesuffix("executionprovider")
