"""The options of `TorchModule`."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, get_args

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    TypeAdapter,
    ValidationInfo,
    model_validator,
)

import headrace
from headrace_tensors import UnbatchedOptions
from headrace_torch.backends.fields import Shapes  # noqa: TC001 - pydantic reads the annotations

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["TorchModuleOptions"]

_FACTORY = re.compile(r"[^:\s][^:]*:[A-Za-z_][\w.]*")
_Mode = Literal["default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs"]
_MODES = get_args(_Mode)
_FILE: TypeAdapter[Any] = TypeAdapter(headrace.FilePath)


def _factory(text: str, info: ValidationInfo) -> str:
    """Check the form of a factory's name; a file in it is found like any ``FilePath``."""
    if (info.context or {}).get("allow_import") is False:
        raise ValueError(
            f"{text!r} brings in code, and imports are refused here: allow them, or use a torch.export"
            " program in `model`"
        )
    if not _FACTORY.fullmatch(text):
        raise ValueError("it is written 'package.mod:factory', or 'file.py:factory'")
    place, _, name = text.rpartition(":")
    if not place.endswith(".py"):
        return text
    return f"{_FILE.validate_python(place, context=info.context)}:{name}"


def _mode(value: Any) -> Any:
    """Check the mode of torch.compile; pydantic alone would report one error for each type of the union."""
    if value not in _MODES and type(value) is not bool:
        raise ValueError(f"it is true, false or a mode: {', '.join(_MODES)}")
    return value


_Factory = Annotated[str, AfterValidator(_factory)]


class TorchModuleOptions(UnbatchedOptions):
    """Options of `TorchModule`.

    Attributes:
        model: The model: TorchScript, a torch.export program or an AOTInductor package, recognized by content.
        module: In place of `model`: 'package.mod:factory' (or 'file.py:factory'), which makes an nn.Module.
        args: Arguments of the factory, by name.
        weights: A state dict, or safetensors, for the module; default: the module's own.
        dtype: The dtype to which weights and floating inputs are cast; default: left as they are. (`precision` of
            Onnx2Tensorrt leaves inputs and outputs.)
        channels_last: Run with that layout of memory, for convolutions (true or false).
        compile: Compile it with torch.compile: true, or a mode of that.
        cuda_graph: On CUDA, run captured graphs: one per size of `batch_sizes`, else of 1, 2, 4, ... `max`.
        shape: Shape of one sample, '3x224x224' (-1: any length), with its dtype if that matters ('uint8:3x224x224'), or
            a table by input, where the model declares none.
        share_weights: The node's instances on one device hold one copy of the weights (true or false).
        halve_on_oom: A batch for which memory runs out is tried again in halves, down to single rows (true or false).
    """

    positional: ClassVar[tuple[str, ...]] = ("model",)

    model: headrace.FilePath | None = None
    module: _Factory | None = None
    args: dict[str, Any] = Field({})
    weights: headrace.FilePath | None = None
    dtype: Literal["float16", "bfloat16", "float32"] | None = None
    channels_last: bool = False
    compile: Annotated[bool | _Mode, BeforeValidator(_mode)] = False
    cuda_graph: bool = False
    shape: Shapes = None
    share_weights: bool = True
    halve_on_oom: bool = True

    @model_validator(mode="after")
    def _one_model(self) -> Self:
        if (self.model is None) == (self.module is None):
            raise ValueError("give either model or module, not both")
        if self.module is None and (self.args or self.weights is not None):
            raise ValueError("args and weights belong to module")
        if self.cuda_graph and self.compile in ("reduce-overhead", "max-autotune"):
            raise ValueError(f"compile = {self.compile!r} makes CUDA graphs of its own")
        return self

    @property
    def compile_mode(self) -> str | None:
        """The mode of torch.compile; None if the model is not compiled."""
        return "default" if self.compile is True else self.compile or None
