"""The tables of a ``vision.toml``: their keys, types and ranges, and their schema for editors."""

from __future__ import annotations

import os
from dataclasses import fields
from importlib.metadata import EntryPoint, entry_points
from inspect import cleandoc, signature
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Union, get_args, get_type_hints

from pydantic import BaseModel, ConfigDict, Discriminator, Field, PrivateAttr, Tag, create_model

import headrace_vision
from headrace_vision.models.cascade import Part
from headrace_vision.options import SourceOptions
from headrace_vision.reading.stills import DECODE
from headrace_vision.sinks.retention import Bounds
from headrace_vision.sinks.sink import CLOSE_S, SPOOL_BYTES, Sink

__all__ = [
    "SINKS", "CropTable", "ModelTable", "OtherSinkTable", "SinkTable", "SourceTable",
    "VisionConfig", "sinks_of_plugins",
]  # fmt: skip


class _Table(BaseModel):
    """A table that refuses keys it does not know."""

    model_config = ConfigDict(extra="forbid")


class CropTable(_Table):
    """A second model, which gets a crop of each detection behind what is in order."""

    model: str | dict[str, Any] = Field(
        description="The pipeline: the path of its TOML file, or a table."
    )
    every: int = Field(
        1,
        ge=0,
        description="A track is asked about again after so many frames of its source; 0: once.",
    )
    part: Part = Field((0, 0, 1, 1), description="The part of the box that is cut out; see Crops.")


class _ModelKeys(_Table):
    layout: Literal[
        "auto", "v5", "v8", "end2end", "yolox", "yolox_decoded", "rfdetr", "rtdetr", "rtdetr_scores", "rtdetr_end2end",
        "detr", "yolonas", "torchvision",
    ] = Field(default="auto", description="Layout of the file of a network; see detect.")  # fmt: skip
    labels: list[str] | None = Field(None, description="Names of the classes of the ONNX file.")
    score_threshold: float | None = Field(
        None, ge=0, le=1, description="Boxes of the ONNX file with a lower score are dropped."
    )
    classes: list[str | int] | None = Field(
        None, description="Names or numbers of the classes that are kept."
    )
    size: int | None = Field(
        None, ge=1, description="Height and width of the input, where no file says them."
    )
    node: dict[str, Any] = Field(
        {}, description="More keys of the node of the ONNX file, as device, max, instance_num."
    )
    ordered: str | dict[str, Any] | None = Field(
        None,
        description="What gets the results of each source in order: an expression, or a table.",
    )
    crops: dict[str, CropTable] = Field(
        {},
        description="Second models by name of the key in data for what they say of each detection.",
    )


class ModelTable(_ModelKeys):
    """A model: a pipeline, and what gets its results in order."""

    model: str | dict[str, Any] = Field(
        description="The pipeline: the path of its TOML file, of an ONNX file with a detector, or a table."
    )


def _documented(of: type[Any], section: str) -> dict[str, str]:
    """Return what the docstring of a class says, in a section, of each attribute or argument.

    Nothing under ``python -OO``, which drops docstrings.
    """
    texts: dict[str, str] = {}
    name = ""
    text = cleandoc(of.__doc__ or "").partition(f"\n{section}:\n")[2].partition("\n\n")[0]
    for line in text.splitlines():
        first, colon, rest = line.strip().partition(": ")
        if colon and not line.startswith(" " * 5):
            name, texts[first] = first, rest
        elif name:
            texts[name] += f" {line.strip()}"
    return texts


def _source_table() -> type[_Table]:
    texts = _documented(SourceOptions, "Attributes")
    types = get_type_hints(SourceOptions, localns={"PipelineConfig": dict}) | {
        "models": list[str] | dict[str, dict[str, Any]] | None,
        "ordered": str | dict[str, Any] | None,
        "lines": dict[str, list[float] | dict[str, Any]] | None,
        "zones": dict[str, list[list[float]] | dict[str, Any]] | None,
        "privacy_masks": dict[str, list[list[float]]] | None,
        "ffmpeg": dict[str, str | int | float] | None,
    }
    keys: dict[str, Any] = {"input": (str | list[str], Field(description="See VideoRunner.run."))}
    for field in fields(SourceOptions):
        own = Field(default=field.default, description=texts.get(field.name))
        keys[field.name] = (types[field.name], own)
    table: type[_Table] = create_model(
        "SourceTable", __base__=_Table, __doc__="A source: its input, and how it is read.", **keys
    )
    return table


if TYPE_CHECKING:
    SourceTable = Any
else:
    SourceTable = _source_table()
"""A source: its input, and the attributes of `SourceOptions`."""


class _SinkTable(_Table):
    kind: str
    model: str | None = Field(
        None, description="The model whose results the sink gets; without it, all."
    )


_RANGES: dict[str, dict[str, float]] = {
    "port": {"ge": 0, "le": 65535},
    "attempts": {"ge": 1},
    "timeout_s": {"gt": 0},
}
"""What arguments of sinks may be. Other seconds and bytes are at least 0."""


def _field_type(annotation: Any) -> Any:
    """Return the type of a key: a `Path` where pydantic before 2.10 knows no `os.PathLike`."""
    members = get_args(annotation)
    types = tuple(Path if member == os.PathLike[str] else member for member in members)
    return Union[types] if os.PathLike[str] in members else annotation  # noqa: UP007 - of a list


def _sink_table(kind: str) -> type[_SinkTable]:
    """Return the table of a sink: the arguments of its class, as its signature and docstring say them."""
    of = getattr(headrace_vision, kind)
    texts = _documented(Sink, "Attributes") | _documented(Bounds, "Attributes")
    texts |= _documented(of, "Args")
    types = get_type_hints(of)
    keys: dict[str, Any] = {"kind": (Literal[kind], ...)}
    for name, parameter in signature(of).parameters.items():
        default = ... if parameter.default is parameter.empty else parameter.default
        least = {"ge": 0} if name.endswith(("_s", "_bytes")) else {}
        field: Any = Field(default, description=texts.get(name), **_RANGES.get(name, least))
        keys[name] = (_field_type(types[name]), field)
    if "network" in keys:
        text = "Hosts that may be called; without it, those of the file."
        keys["network"] = (list[str] | None, Field(None, description=text))
    text = (of.__doc__ or "").partition("\n")[0]
    return create_model(f"{kind}Table", __base__=_SinkTable, __doc__=text, **keys)


_KINDS = ("SaveVideo", "SaveImages", "SaveJSONL", "Webhook", "MQTT", "View")
SINKS = {kind: _sink_table(kind) for kind in _KINDS}
"""The table of a sink by its kind."""


class OtherSinkTable(_SinkTable):
    """A sink of yours: ``module:Class``, ``file.py:Class``, or a name in the entry points ``headrace.sinks``."""

    model_config = ConfigDict(extra="allow")

    kind: str = Field(json_schema_extra={"not": {"enum": list(SINKS)}})
    spool_bytes: int = Field(default=SPOOL_BYTES, ge=0)
    spool: str | None = None
    close_s: float = Field(default=CLOSE_S, ge=0)


def sinks_of_plugins() -> dict[str, EntryPoint]:
    """Return the entry points of sinks by name."""
    return {point.name: point for point in entry_points(group="headrace.sinks")}


def _kind_of(table: Any) -> str | None:
    kind = table.get("kind") if isinstance(table, dict) else getattr(table, "kind", None)
    if kind in SINKS:
        return str(kind)
    return (
        "other" if isinstance(kind, str) and (":" in kind or kind in sinks_of_plugins()) else None
    )


if TYPE_CHECKING:
    SinkTable = Any
else:
    _TAGGED = [Annotated[table, Tag(kind)] for kind, table in SINKS.items()]
    _TAGGED.append(Annotated[OtherSinkTable, Tag("other")])
    SinkTable = Annotated[
        Union[tuple(_TAGGED)],  # noqa: UP007 - of a list
        Discriminator(
            _kind_of,
            custom_error_type="kind",
            custom_error_message=f"kind is one of {', '.join(SINKS)}, or module:Class",
        ),
    ]
"""A sink: its kind, and its arguments."""


class VisionConfig(_ModelKeys):
    """A ``vision.toml``. Relative paths start from its folder.

    Attributes:
        base: The folder. None for the working directory.
    """

    model: str | dict[str, Any] | None = Field(
        None,
        description="The only pipeline, called main: the path of its TOML file, of an ONNX file with a detector, or a "
        "table.",
    )
    models: dict[str, ModelTable] = Field(
        {}, description="Several pipelines by name; each source says its model."
    )
    imports: list[str] = Field(
        [], alias="import", description="Python files or modules with words of the models."
    )
    network: list[str] = Field(default=[], description="Hosts whose addresses may be opened.")
    decode: str = Field(default=DECODE, description="The expression that decodes stills.")
    sources: dict[str, SourceTable] = Field(
        {}, description="By name: input, and options of SourceOptions."
    )
    sinks: dict[str, SinkTable] = Field(
        {}, description="By name: kind (SaveVideo, ...), and its arguments."
    )

    _base: Path | None = PrivateAttr(default=None)

    @property
    def base(self) -> Path | None:
        """The folder from which relative paths in tables start."""
        return self._base

    def placed(self, base: Path, changes: dict[str, Any]) -> VisionConfig:
        """Return a copy with ``changes``, whose relative paths start from ``base``."""
        config = self.model_copy(update=changes)
        config._base = base
        return config

    @property
    def all_models(self) -> dict[str, ModelTable]:
        """The models by name; the only one is called ``main``."""
        if self.models or self.model is None:
            return self.models
        keys = {name: getattr(self, name) for name in ModelTable.model_fields}
        return {"main": ModelTable(**keys)}
