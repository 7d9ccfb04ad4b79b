"""The options of `Onnx2Tensorrt` and `LoadTensorrtEngine`, which bring an engine."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Final, Literal

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    FiniteFloat,
    TypeAdapter,
    ValidationInfo,
    model_validator,
)

import headrace
from headrace.errors import SetupError
from headrace_trt.building.profiles import ShapeRange, parse_shapes, refuse_names
from headrace_trt.building.settings import (
    BuildSettings,
    Compatibility,
    LibraryName,
    Precision,
    Verbosity,
    is_python_plugin,
)

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["BuildOptions", "LoadOptions"]

Names = tuple[Annotated[str, Field(min_length=1)], ...]
Shapes = str | dict[str, str | list[int]]


_PATH: Final = TypeAdapter(headrace.OutputPath)


def _refuse_code(value: Any, info: ValidationInfo) -> Any:
    """Refuse a value that imports code, if imports are refused."""
    if value is not None and (info.context or {}).get("allow_import") is False:
        raise ValueError(f"{value!r} brings in code, and imports are refused here")
    return value


def _there(path: Path) -> Path:
    """Refuse a path that does not exist."""
    if not path.exists():
        raise ValueError(f"no such file or folder: {str(path)!r}")
    return path


def _plugin(value: Any, info: ValidationInfo) -> Any:
    """Return the path of a plugin library, or a class.

    A path may be relative to the configuration's file.
    """
    _refuse_code(value, info)
    if not isinstance(value, str) or not value or is_python_plugin(value):
        return value
    path = _PATH.validate_python(value, context=info.context)
    if not path.is_file():
        raise ValueError(f"no such file: {str(path)!r}; a plugin in Python is package.module:Class")
    return str(path)


PluginNames = tuple[Annotated[str, Field(min_length=1), BeforeValidator(_plugin)], ...]


def _profile(profile: dict[str, Any]) -> dict[str, Any]:
    """Refuse a profile without `max`, shapes that cannot be read, and ranges that are not min <= opt <= max."""
    if "max" not in profile:
        raise ValueError("a profile must have `max`")
    try:
        read = {key: parse_shapes(shapes) for key, shapes in profile.items()}
        refuse_names(read)
    except SetupError as error:
        raise ValueError(": ".join(filter(None, (error.what, error.hint))).rstrip(".")) from None
    for name, most in read["max"].items():
        low, best = (read.get(key, {}).get(name, most) for key in ("min", "opt"))
        shapes = ShapeRange(low, best, most)
        if not shapes.ordered:
            raise ValueError(
                f"input {name!r}: {shapes.text()} is not min <= opt <= max on every axis"
            )
    return profile


def _some(profiles: tuple[Any, ...]) -> tuple[Any, ...]:
    """Refuse an empty list; called after the items were checked."""
    if not profiles:
        raise ValueError("there must be at least one profile")
    return profiles


def _spelled(profile: Any) -> Any:
    """Refuse shapes that are neither a text nor a table of texts and lists, with a single error."""
    for key, shapes in profile.items() if isinstance(profile, dict) else ():
        values = list(shapes.values()) if isinstance(shapes, dict) else []
        right = all(isinstance(v, (str, list, tuple)) or hasattr(v, "tolist") for v in values)
        lengths = [n for v in values if isinstance(v, (list, tuple)) for n in v]
        right = right and all(isinstance(n, str) or hasattr(n, "__index__") for n in lengths)
        if not isinstance(shapes, (str, dict)) or not right:
            raise ValueError(
                f"{key} is a text such as x:8x3x224x224, or a table of such, {{x = [8, 3, 224, 224]}}"
            )
    return profile


ProfileShapes = Annotated[
    dict[Literal["min", "opt", "max"], Shapes], BeforeValidator(_spelled), AfterValidator(_profile)
]
"""One optimization profile: shapes as trtexec writes them, or tables of shapes by input."""


class BuildOptions(headrace.Options):
    """Options of `Onnx2Tensorrt`.

    Attributes:
        model: The ONNX file; external data lies beside it.
        network: In place of `model`: package.module:function, called as (trt, builder, network), which builds the
            network with TensorRT's own API.
        engine: A file to keep the plan in; default: the engine cache.
        library: Which TensorRT; auto: tensorrt if it is installed, else tensorrt_rtx.
        precision: The graph's own types, or the type it is converted to; int8 and fp8 through Q/DQ nodes, the graph's
            or made from `calibration`. Inputs and outputs keep their types, which `dtype` of TorchModule casts, too.
        calibration: Folder of .npy or .npz samples, or one .npz of all, for int8 and fp8.
        keep_fp32: Patterns of names of nodes that stay in float32, with fp16 and bf16.
        tf32: Whether float32 layers may multiply with 10 bits of mantissa (TF32).
        profiles: Optimization profiles, each {min, opt, max} as trtexec writes shapes; default: one with the batch axis
            from the node's `min` to its `max`.
        mean: Subtracted from the image input inside the network, one number or one per channel, in units of the input.
        std: Divisor of the difference inside the network, one number or one per channel, in units of the input.
        image_input: Whether the network takes uint8 [H, W, C] per sample and makes float [C, H, W] of it itself.
        cache_dir: Folder of the engine cache; default: in the user's cache folder.
        cache_size_bytes: Size limit of the engine cache, in bytes.
        timing_cache: File of the timing cache; default: one in `cache_dir` per version and device, where the library
            has timings.
        optimization_level: 0 (quick build) to 5; default: the library's.
        workspace_bytes: Most scratch memory of a layer, in bytes; default: the library's.
        sparsity: Whether sparse weights are used as such.
        refit: Whether the weights can be changed later.
        strip: Whether the plan is kept without weights; they come from `model`.
        weight_streaming_bytes: Bytes of weights that stay on the device, the others are streamed; default: all stay.
        hardware_compatibility: Which other GPUs can run the plan.
        plugins: Plugin libraries (.so files, relative to the file that names them) and creators in Python
            (package.module:Class); refused where `import` is.
        mark_outputs: Inner tensors that become outputs, to look at.
        verbosity: How much the inspector tells of the plan; default: detailed, which the check of the precision needs.
    """

    positional: ClassVar[tuple[str, ...]] = ("model",)

    model: headrace.FilePath | None = None
    network: Annotated[str, AfterValidator(_refuse_code)] | None = None
    engine: headrace.OutputPath | None = None
    library: LibraryName = "auto"
    precision: Precision = "model"
    calibration: Annotated[headrace.OutputPath, AfterValidator(_there)] | None = None
    keep_fp32: Names = ()
    tf32: bool = True
    profiles: Annotated[tuple[ProfileShapes, ...], AfterValidator(_some)] | None = None
    mean: tuple[FiniteFloat, ...] | FiniteFloat | None = None
    std: tuple[FiniteFloat, ...] | FiniteFloat | None = None
    image_input: bool = False
    cache_dir: headrace.OutputPath | None = None
    cache_size_bytes: int = Field(20 << 30, ge=0)
    timing_cache: headrace.OutputPath | None = None
    optimization_level: int | None = Field(None, ge=0, le=5)
    workspace_bytes: int | None = Field(None, ge=0)
    sparsity: bool = False
    refit: bool = False
    strip: bool = False
    weight_streaming_bytes: int | None = Field(None, ge=0, le=(1 << 63) - 1)
    hardware_compatibility: Compatibility = "none"
    plugins: PluginNames = ()
    mark_outputs: Names = ()
    verbosity: Verbosity | None = None

    @model_validator(mode="after")
    def _fit(self) -> BuildOptions:
        self.settings()  # raises ValueError if options do not fit together
        return self

    def settings(self, **more: Any) -> BuildSettings:
        """Return the options as the `BuildSettings` that the functions of this package take."""
        same = {
            name: getattr(self, name)
            for name in BuildSettings.__dataclass_fields__
            if name in type(self).model_fields
        }
        same |= {
            "weight_streaming": self.weight_streaming_bytes is not None,
            "verbosity": self.verbosity or "detailed",
        }
        return BuildSettings(**{**same, **more})


class LoadOptions(headrace.Options):
    """Options of `LoadTensorrtEngine`.

    Attributes:
        model: The plan: .trt, .engine or .plan.
        library: Which TensorRT; auto: tensorrt if it is installed, else tensorrt_rtx.
        trust_engine: Whether the plan may hold code that runs on the host.
        weights: An ONNX file of the same graph whose weights replace the plan's; needed where it was stripped.
        weight_streaming_bytes: Bytes of weights that stay on the device, of a plan that streams; default: all.
        plugins: Plugin libraries (.so files, relative to the file that names them) and creators in Python
            (package.module:Class); refused where `import` is.
    """

    positional: ClassVar[tuple[str, ...]] = ("model",)

    model: headrace.FilePath
    library: LibraryName = "auto"
    trust_engine: bool = False
    weights: headrace.FilePath | None = None
    weight_streaming_bytes: int | None = Field(None, ge=0, le=(1 << 63) - 1)
    plugins: PluginNames = ()
