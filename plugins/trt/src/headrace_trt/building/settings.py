"""The settings of a build: one frozen record, shared by the backend, the functions and the tools."""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Annotated, Any, Final, Literal, get_args, get_type_hints

from pydantic import ConfigDict, Field, FiniteFloat, TypeAdapter, ValidationError

from headrace_trt.building.profiles import parse_shapes

__all__ = [
    "PRECISIONS",
    "BuildSettings",
    "Compatibility",
    "LibraryName",
    "Precision",
    "Verbosity",
    "is_python_plugin",
    "require_settings",
]

LibraryName = Literal["auto", "tensorrt", "tensorrt_rtx"]
Precision = Literal["model", "fp16", "bf16", "int8", "fp8"]
Compatibility = Literal["none", "ampere_plus", "same_compute_capability"]
Verbosity = Literal["detailed", "layer_names_only", "none"]

PRECISIONS: Final = get_args(Precision)

_PATHS: Final = ("model", "calibration", "timing_cache")
_PER_CHANNEL: Final = ("mean", "std")
_LISTS: Final = ("keep_fp32", "plugins", "mark_outputs", "profiles")

_MOST_FLOAT32: Final = 3.4028234663852886e38

_ELSEWHERE: Final = ("model", "calibration", "timing_cache", "library")
"""Fields with paths, which are not part of the cache key; the key has the content of the files that matter."""


@dataclass(frozen=True)
class BuildSettings:
    """All settings of a build.

    A wrong value, and settings that do not fit together, raise ValueError: no setting is silently ignored. Values are
    normalised: lists become tuples, a single number a tuple of one, file names paths, and numbers and arrays of numpy
    those of Python. ``strip`` sets ``refit``.

    Attributes:
        model: The ONNX file. None with ``network``.
        network: ``package.module:function``, a function ``(trt, builder, network)`` that fills a
            network with TensorRT's own API. None with ``model``.
        library: ``"auto"``, ``"tensorrt"`` or ``"tensorrt_rtx"``.
        precision: One of `PRECISIONS`.
        calibration: Folder or .npz of samples for int8 and fp8.
        keep_fp32: Patterns of names of nodes that stay in float32.
        tf32: Whether float32 layers may multiply in TF32 (10 bits of mantissa).
        profiles: ``{min, opt, max}`` per optimization profile. None: one of the batch range.
        min, max: Rows per batch where ``profiles`` is None.
        mean, std: Per channel, folded into the network.
        image_input: Whether the network takes ``uint8 [N, H, W, C]``.
        optimization_level: 0 (quick build) to 5. None: the library's.
        workspace_bytes: Most scratch memory of one layer, in bytes. None: the library's.
        sparsity: Whether kernels for sparse weights may be used.
        refit: Whether the weights can be changed later.
        strip: Whether the plan holds no weights (they are read from the model at load).
        weight_streaming: Whether weights may be streamed from the host.
        hardware_compatibility: ``"none"``, ``"ampere_plus"`` or ``"same_compute_capability"``.
        plugins: Plugin libraries (.so files) and Python plugins (``package.module:Class``).
        mark_outputs: Names of inner tensors that become outputs too.
        verbosity: What the inspector can report: ``"detailed"``, ``"layer_names_only"``, ``"none"``.
    """

    model: Path | None = None
    network: str | None = None
    library: LibraryName = "auto"
    precision: Precision = "model"
    calibration: Path | None = None
    keep_fp32: tuple[str, ...] = ()
    tf32: bool = True
    profiles: tuple[Mapping[str, Any], ...] | None = None
    min: Annotated[int, Field(ge=1)] | None = None
    max: Annotated[int, Field(ge=1)] | None = None
    mean: tuple[FiniteFloat, ...] | None = None
    std: tuple[FiniteFloat, ...] | None = None
    image_input: bool = False
    optimization_level: Annotated[int, Field(ge=0, le=5)] | None = None
    workspace_bytes: Annotated[int, Field(ge=0, lt=1 << 63)] | None = None
    sparsity: bool = False
    refit: bool = False
    strip: bool = False
    weight_streaming: bool = False
    hardware_compatibility: Compatibility = "none"
    plugins: tuple[str, ...] = ()
    mark_outputs: tuple[str, ...] = ()
    verbosity: Verbosity = "detailed"
    timing_cache: Path | None = None

    def __post_init__(self) -> None:
        for field in fields(self):
            name, value = field.name, _python(getattr(self, field.name))
            if name in _PATHS and isinstance(value, (str, os.PathLike)):
                value = Path(value)
            elif name in _PER_CHANNEL and isinstance(value, (int, float)):
                value = (value,)
            elif name in (*_LISTS, *_PER_CHANNEL) and isinstance(value, (list, set, frozenset)):
                value = tuple(value)
            try:
                self._set(name, _types()[name].validate_python(value))
            except ValidationError as error:
                raise ValueError(f"{name}: {error.errors()[0]['msg']}, not {value!r}") from None
        self._set("refit", self.refit or self.strip)
        problem = _misfit(self)
        if problem is not None:
            raise ValueError(problem)

    def _set(self, name: str, value: Any) -> None:
        object.__setattr__(self, name, value)

    @property
    def label(self) -> str:
        """The name of the model or function that is built, for messages."""
        return str(self.model if self.model is not None else self.network)

    def that_matter(self) -> dict[str, Any]:
        """Return the settings that change the engine, JSON-able, without those at their default.

        Different spellings of one value give one result, so that the backend and ``headrace trt build`` find each
        other's engines.

        Raises:
            SetupError: Shapes in ``profiles`` cannot be read.
        """
        # With `profiles` the rows of a batch are not read; without, None is 1.
        rows = ("min", "max") if self.profiles else ()
        values = {}
        for field in fields(self):
            name, value = field.name, getattr(self, field.name)
            if name in (*_ELSEWHERE, *rows) or value == (1 if name in ("min", "max") else None):
                continue
            if value != field.default:
                values[name] = sorted(set(value)) if name == "keep_fp32" else _plain(value)
        if self.plugins:  # the key has the content of a library separately
            values["plugins"] = [p if is_python_plugin(p) else Path(p).name for p in self.plugins]
        if self.profiles:
            values["profiles"] = [_ranges(profile) for profile in self.profiles]
        return values

    def with_(self, **changes: Any) -> BuildSettings:
        """Return a copy with some settings changed."""
        return replace(self, **changes)


def require_settings(settings: object) -> None:
    """Refuse what is no `BuildSettings`: the path of a model, say.

    Raises:
        TypeError: It is none.
    """
    if not isinstance(settings, BuildSettings):
        raise TypeError(
            f"settings is a BuildSettings, such as BuildSettings(model=...), not {settings!r}"
        )


def _python(value: Any) -> Any:
    """Return numbers, texts and arrays of numpy as those of Python, also in lists."""
    if isinstance(value, (list, tuple)):
        return [_python(part) for part in value]
    return value.tolist() if callable(getattr(value, "tolist", None)) else value


def _ranges(profile: Mapping[str, Any]) -> dict[str, Any]:
    """Return a profile with every range written out, independent of its spelling."""
    read = {key: parse_shapes(shapes) for key, shapes in profile.items() if shapes is not None}
    most = read.get("max", {})
    return {key: {**most, **read.get(key, {})} for key in ("min", "opt", "max")}


@functools.cache
def _types() -> dict[str, TypeAdapter[Any]]:
    """Return what checks the value of each field."""
    hints = get_type_hints(BuildSettings, include_extras=True)
    return {name: TypeAdapter(hint, config=ConfigDict(strict=True)) for name, hint in hints.items()}


def _misfit(settings: BuildSettings) -> str | None:
    """Return a text about settings that do not fit together, or None."""
    for index, profile in enumerate(settings.profiles or ()):
        if profile.get("max") is None or not set(profile) <= {"min", "opt", "max"}:
            has = ", ".join(map(repr, profile)) or "nothing"
            return f"profile {index} must have `max`, and may have `min` and `opt`; it has {has}"
    network = settings.network
    changes = (
        settings.precision != "model"
        or settings.image_input
        or settings.strip
        or (settings.mean, settings.std) != (None, None)
    )
    low, quantized = settings.precision in ("fp16", "bf16"), settings.precision in ("int8", "fp8")
    counts = {len(values) for values in (settings.mean, settings.std) if values is not None}
    problems = {
        "exactly one of `model` and `network` must be set": (settings.model is None)
        == (network is None),
        "`precision`, `mean`, `std`, `image_input` and `strip` change an ONNX graph; a function of"
        " `network` builds what it wants itself": network is not None and changes,
        "`network` is package.module:function": network is not None
        and re.fullmatch(r"[^\s:]+:[^\s:]+", network) is None,
        "`keep_fp32` goes with precision = fp16 or bf16": bool(settings.keep_fp32) and not low,
        "`calibration` goes with precision = int8 or fp8": settings.calibration is not None
        and not quantized,
        "verbosity below detailed hides the types by which `precision` is verified": (
            settings.verbosity != "detailed" and settings.precision != "model"
        ),
        f"`min` = {settings.min} is more than `max` = {settings.max or 1}": (settings.min or 1)
        > (settings.max or (settings.min if settings.profiles else None) or 1),
        "`std` must not be 0": 0 in (settings.std or ()),
        "`mean` and `std` have one number, or one per channel, both as many": 0 in counts
        or len(counts - {1}) > 1,
        "`mean` and `std` must be numbers, and quotients of them, that float32 holds": (
            _overflows(settings.mean or (0.0,), settings.std or (1.0,))
        ),
    }
    return next((text for text, holds in problems.items() if holds), None)


def _overflows(mean: Sequence[float], std: Sequence[float]) -> bool:
    """Return whether normalization by these numbers exceeds the range of float32."""
    least = min(map(abs, std)) or 1.0
    return max(*map(abs, mean), max(map(abs, mean)) / least, 1.0 / least) > _MOST_FLOAT32


def is_python_plugin(plugin: str) -> bool:
    """Return whether a text is ``package.module:Class``, not the path of a plugin library."""
    module, colon, name = plugin.partition(":")
    return bool(colon) and name.isidentifier() and all(p.isidentifier() for p in module.split("."))


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _plain(part) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(part) for part in value]
    return str(value) if isinstance(value, Path) else value
