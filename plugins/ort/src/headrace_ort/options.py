"""The options of `OnnxTensor`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import Field, ValidationInfo, field_validator, model_validator

import headrace

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["OnnxOptions"]


class OnnxOptions(headrace.Options):
    """Options of `OnnxTensor`."""

    positional: ClassVar[tuple[str, ...]] = ("model",)

    model: headrace.FilePath = Field(description="The ONNX (or .ort) file.")
    providers: Annotated[tuple[str, ...], Field(min_length=1)] | None = Field(
        None,
        description="Execution providers in order, with or without the ending ExecutionProvider, "
        "in any case; default: of the node's `device`: unset or cpu → cpu, cuda:N → cuda.",
    )
    provider_options: dict[str, dict[str, str | int | float | bool]] = Field(
        {},
        description="Options of the providers, by provider name, as ONNX Runtime names them; where "
        "unset, `cudnn_conv_algo_search` of the CUDA provider is HEURISTIC.",
    )
    provider_libraries: dict[str, headrace.FilePath] = Field(
        {},
        description="Libraries of plugin execution providers, by a name of one's own that `providers` "
        "may use.",
    )
    output_device: Literal["cpu", "device"] = Field(
        "cpu",
        description="Where results lie: cpu gives numpy arrays, device leaves them on the GPU of a "
        "CUDA or TensorRT provider (with __dlpack__ and __cuda_array_interface__).",
    )
    cuda_graph: bool = Field(
        False,
        description="On the CUDA provider, run captured graphs: one per size of `batch_sizes`, else "
        "of 1, 2, 4, ... `max`.",
    )
    inputs: dict[str, Annotated[str, Field(min_length=1)]] = Field(
        {},
        description="Key of the request per input name; default: `data` for the only input, else "
        "the input's name.",
    )
    outputs: Annotated[tuple[str, ...], Field(min_length=1)] | None = Field(
        None, description="Names of the outputs to give; default: all."
    )
    unbatched: tuple[str, ...] = Field(
        (),
        description="Names of inputs and outputs whose first axis is not the batch axis; requests "
        "are then run one at a time.",
    )
    batch_axis: dict[str, Annotated[int, Field(ge=0)]] = Field(
        {},
        description="Which axis is the batch axis, counted from 0, per input or output where it is "
        "not the first (the state of a recurrent model).",
    )
    ragged: Literal["refuse", "pad", "group"] = Field(
        "refuse",
        description="Samples of different shapes in one batch: refuse those unlike the first, pad "
        "all to the largest, or run those of one shape together.",
    )
    pad_value: float = Field(
        0.0, description="What ragged = pad fills with, at the end of axes (in units of the data)."
    )
    pad_multiple: int = Field(
        1,
        ge=1,
        description="With ragged = pad: lengths of dynamic axes are rounded up to a multiple of "
        "this number of elements.",
    )
    intra_op_threads: int | None = Field(
        None,
        ge=1,
        le=4096,
        description="Threads of one run, including the caller's; default: this instance's share "
        "of the pipeline's `threads`.",
    )
    spinning: bool | None = Field(
        None,
        description="Whether idle threads of the pool keep their core busy; default: only where "
        "the node has one instance.",
    )
    share_session: bool | None = Field(
        None,
        description="Whether the node's instances run one session, with one copy of the weights; "
        "default: on the CPU with one thread each.",
    )
    graph_optimization: Literal["disabled", "basic", "extended", "all"] = Field(
        "all", description="Level of ONNX Runtime's graph optimisation."
    )
    session_config: dict[str, str] = Field(
        {}, description="Further entries of ONNX Runtime's session configuration; they win."
    )
    log_level: Literal["verbose", "info", "warning", "error", "fatal"] | None = Field(
        None,
        description="What ONNX Runtime itself prints to stderr; default: fatal on the CPU, where "
        "every error is raised, else error.",
    )

    @field_validator("provider_libraries", mode="before")
    @classmethod
    def _may_import(cls, value: Any, info: ValidationInfo) -> Any:
        if value and (info.context or {}).get("allow_import") is False:
            raise ValueError("they bring in code, and imports are refused here: leave them out")
        return value

    @field_validator("outputs", "unbatched")
    @classmethod
    def _once(cls, names: tuple[str, ...] | None) -> tuple[str, ...] | None:
        twice = sorted({name for name in names or () if (names or ()).count(name) > 1})
        if twice:
            raise ValueError(f"{', '.join(map(repr, twice))} is listed twice")
        return names

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
        if set(self.unbatched) & self.batch_axis.keys():
            both = sorted(set(self.unbatched) & self.batch_axis.keys())
            raise ValueError(f"{both[0]!r} stands in `unbatched` and in `batch_axis`")
        return self


def _short(provider: str) -> str:
    """Give the form of a provider's name that is compared: without its ending, in lower case."""
    return provider.strip().lower().removesuffix("executionprovider")
