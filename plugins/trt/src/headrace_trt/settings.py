"""What a build is asked for: one frozen record that the word, the functions and the tools share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Final

__all__ = ["PRECISIONS", "BuildSettings", "is_python_plugin"]

PRECISIONS: Final = ("model", "fp16", "bf16", "int8", "fp8")

_CHOICES: Final[Mapping[str, tuple[str, ...]]] = {
    "library": ("auto", "tensorrt", "tensorrt_rtx"),
    "precision": PRECISIONS,
    "hardware_compatibility": ("none", "ampere_plus", "same_compute_capability"),
    "verbosity": ("detailed", "layer_names_only", "none"),
}
"""What may stand in fields that take one of some names."""

_ELSEWHERE: Final = ("model", "engine", "cache_dir", "cache_size_bytes", "timing_cache", "library")
"""Fields that say where things are; the content of the model is in the key by its hash."""


@dataclass(frozen=True)
class BuildSettings:
    """All settings of a build.

    A name that a field does not know is a ValueError.

    Attributes:
        model: The ONNX file; None with ``network``.
        network: ``package.module:function``, a function ``(trt, builder, network)`` that fills a
            network with TensorRT's own API; None with ``model``.
        library: ``"auto"``, ``"tensorrt"`` or ``"tensorrt_rtx"``.
        precision: One of `PRECISIONS`.
        calibration: Folder or .npz of samples for int8 and fp8.
        keep_fp32: Patterns of names of nodes that stay in float32.
        tf32: Whether float32 layers may multiply in TF32 (10 bits of mantissa).
        profiles: ``{min, opt, max}`` per optimization profile; None: one of the batch range.
        min, max: Rows per batch where ``profiles`` is None.
        mean, std: Per channel, folded into the network.
        image_input: Whether the network takes ``uint8 [N, H, W, C]``.
        tactic_sources: Names of sources of tactics; None: the library's.
        tactics: File that fixes the choice of tactics; None: chosen anew.
        optimization_level: 0 (quick build) to 5; None: the library's.
        workspace_bytes: Most scratch memory of one layer, in bytes; None: the library's.
        max_aux_streams: Most streams beside the main one; None: the library's.
        sparsity: Whether sparse weights may be used as such.
        dla_core: Index of the DLA core to build for; None: the GPU.
        refit: Whether the weights can be changed later.
        strip: Whether the plan holds no weights (they are read from the model at load).
        weight_streaming: Whether weights may be streamed from the host.
        version_compatible: Whether newer versions of TensorRT can run the plan.
        exclude_lean_runtime: Whether such a plan is written without the lean runtime in it.
        hardware_compatibility: ``"none"``, ``"ampere_plus"`` or ``"same_compute_capability"``.
        plugins: Plugin libraries (.so files) and Python plugins (``package.module:Class``).
        mark_outputs: Names of inner tensors that become outputs too.
        verbosity: What the inspector can tell: ``"detailed"``, ``"layer_names_only"``, ``"none"``.
    """

    model: Path | None = None
    network: str | None = None
    library: str = "auto"
    precision: str = "model"
    calibration: Path | None = None
    keep_fp32: tuple[str, ...] = ()
    tf32: bool = True
    profiles: tuple[Mapping[str, Any], ...] | None = None
    min: int | None = None
    max: int | None = None
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None
    image_input: bool = False
    tactic_sources: tuple[str, ...] | None = None
    tactics: Path | None = None
    optimization_level: int | None = None
    workspace_bytes: int | None = None
    max_aux_streams: int | None = None
    sparsity: bool = False
    dla_core: int | None = None
    refit: bool = False
    strip: bool = False
    weight_streaming: bool = False
    version_compatible: bool = False
    exclude_lean_runtime: bool = False
    hardware_compatibility: str = "none"
    plugins: tuple[str, ...] = ()
    mark_outputs: tuple[str, ...] = ()
    verbosity: str = "detailed"
    timing_cache: Path | None = None

    def __post_init__(self) -> None:
        for name, choices in _CHOICES.items():
            value = getattr(self, name)
            if value not in choices:
                raise ValueError(f"{name} is one of {', '.join(choices)}, not {value!r}")
        for name in ("model", "calibration", "tactics", "timing_cache"):
            value = getattr(self, name)
            if isinstance(value, str):
                object.__setattr__(self, name, Path(value))

    @property
    def label(self) -> str:
        """What is built, for messages."""
        return str(self.model if self.model is not None else self.network)

    def that_matter(self) -> dict[str, Any]:
        """Give the settings that change the engine, JSON-able, without those at their default."""
        plain = BuildSettings()
        found = {}
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name not in _ELSEWHERE and value != getattr(plain, field.name):
                found[field.name] = _plain(value)
        return found

    def with_(self, **changes: Any) -> BuildSettings:
        """Give a copy with some settings changed."""
        return replace(self, **changes)


def is_python_plugin(plugin: str) -> bool:
    """Tell ``package.module:Class`` from the path of a plugin library."""
    module, colon, name = plugin.partition(":")
    return bool(colon) and name.isidentifier() and all(p.isidentifier() for p in module.split("."))


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _plain(part) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(part) for part in value]
    return str(value) if isinstance(value, Path) else value
