"""The tables of a ``vision.toml``: their keys, types and ranges, and their schema for editors."""

from __future__ import annotations

from dataclasses import MISSING, fields
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import (
    BaseModel,
    ConfigDict,
    Discriminator,
    Field,
    PrivateAttr,
    Tag,
    create_model,
)

from headrace_vision.cascade import Part
from headrace_vision.options import SourceOptions
from headrace_vision.sinks import CLOSE_S, SPOOL_BYTES
from headrace_vision.stills import DECODE

__all__ = [
    "SINKS",
    "CropTable",
    "EventsTable",
    "ModelTable",
    "OtherSinkTable",
    "SinkTable",
    "SourceTable",
    "VisionConfig",
    "sinks_of_plugins",
]


class _Table(BaseModel):
    """A table that refuses keys it does not know."""

    model_config = ConfigDict(extra="forbid")


def _is_dict(value: Any) -> bool:
    return isinstance(value, dict)


class CropTable(_Table):
    """A second model, which gets a crop of each detection behind what is in order."""

    model: str | dict[str, Any] = Field(
        description="The pipeline: the path of its TOML file, or a table."
    )
    every: int = Field(
        default=1,
        ge=0,
        description="A track is asked about again after so many frames of its source; 0: once.",
    )
    part: Part = Field(
        default=(0, 0, 1, 1), description="The part of the box that is cut out; see Crops."
    )


class _ModelKeys(_Table):
    layout: Literal["auto", "v5", "v8", "end2end", "yolox", "detr"] = Field(
        default="auto", description="Layout of the ONNX file; see detect."
    )
    labels: list[str] | None = Field(
        default=None, description="Names of the classes of the ONNX file."
    )
    score_threshold: float | None = Field(
        default=None,
        ge=0,
        le=1,
        description="Boxes of the ONNX file with a lower score are dropped.",
    )
    classes: list[str | int] | None = Field(
        default=None, description="Names or numbers of the classes that are kept."
    )
    size: int | None = Field(
        default=None, ge=1, description="Height and width of the input, where no file says them."
    )
    node: dict[str, Any] = Field(
        default={},
        description="More keys of the node of the ONNX file, as device, max, instance_num.",
    )
    ordered: str | dict[str, Any] | None = Field(
        default=None,
        description="What gets the results of each source in order: an expression, or a table.",
    )
    crops: dict[str, CropTable] = Field(
        default={},
        description="Second models by name of the key in data for what they say of each detection.",
    )


class ModelTable(_ModelKeys):
    """A model: a pipeline, and what gets its results in order."""

    model: str | dict[str, Any] = Field(
        description="The pipeline: the path of its TOML file, of an ONNX file with a detector, or a table."
    )


def _documented(of: type[Any]) -> dict[str, str]:
    """Return what the docstring of a class says of each of its attributes."""
    found: dict[str, str] = {}
    name = ""
    for line in (of.__doc__ or "").partition("Attributes:")[2].splitlines():
        text = line.strip()
        first, colon, rest = text.partition(": ")
        if colon and line.startswith(" " * 8) and not line.startswith(" " * 9):
            name, found[first] = first, rest
        elif name and text:
            found[name] += f" {text}"
    return found


def _source_table() -> type[_Table]:
    texts = _documented(SourceOptions)
    types: dict[str, Any] = {
        "frames": Literal["every", "latest"] | None,
        "clock": Literal["pts", "dts", "arrival"] | None,
        "model": str | None,
        "models": list[str] | dict[str, dict[str, Any]] | None,
        "ordered": str | dict[str, Any] | None,
        "lines": dict[str, list[float] | dict[str, Any]] | None,
        "zones": dict[str, list[list[float]] | dict[str, Any]] | None,
        "sinks": list[str] | None,
        "ffmpeg": dict[str, str | int | float] | None,
        "in_flight": int | None,
        "stride": int,
        "loop": bool,
        "realtime": bool,
        "read_timeout": float,
        "image_fps": float,
        "max_pixels": int,
    }
    keys: dict[str, Any] = {"input": (str | list[str], Field(description="See VideoRunner.run."))}
    for one in fields(SourceOptions):
        if one.default is MISSING:
            raise TypeError(f"{one.name} has no default")
        kind = types.get(one.name, float | None)
        keys[one.name] = (kind, Field(default=one.default, description=texts[one.name]))
    made: type[_Table] = create_model(
        "SourceTable", __base__=_Table, __doc__="A source: its input, and how it is read.", **keys
    )
    return made


if TYPE_CHECKING:
    SourceTable = Any
else:
    SourceTable = _source_table()
"""A source: its input, and the attributes of `SourceOptions`."""


class _SinkTable(_Table):
    model: str | None = Field(
        default=None, description="The model whose results the sink gets; without it, all."
    )


class _Spooled(_SinkTable):
    spool_bytes: int = Field(
        default=SPOOL_BYTES,
        ge=0,
        description="Most bytes of frames that are kept while the sink fails.",
    )
    spool: str | None = Field(
        default=None, description="The folder in which they are kept; without it, the memory."
    )
    close_s: float = Field(
        default=CLOSE_S,
        ge=0,
        description="Most seconds for which closing tries to write what is kept.",
    )


class _Folder(_Spooled):
    folder: str = Field(description="Where the files go; it is made.")


class SaveVideoTable(_Folder):
    """A video per source."""

    kind: Literal["SaveVideo"]
    draw: bool | None = Field(default=None, description="Whether detections are drawn.")
    codec: str = Field(
        default="libx264", description='An encoder of FFmpeg, or "copy": what the camera encoded.'
    )
    options: dict[str, str] | None = Field(default=None, description="Options of the encoder.")
    every_s: float | None = Field(
        default=None, ge=0, description="Seconds after which another video begins."
    )
    before_s: float | None = Field(
        default=None, ge=0, description="Seconds that are recorded before an event."
    )
    after_s: float | None = Field(
        default=None, ge=0, description="Seconds that are recorded after an event."
    )
    keep_s: float | None = Field(
        default=None, ge=0, description="Finished videos that are older are deleted (seconds)."
    )


class SaveImagesTable(_Folder):
    """An image per frame."""

    kind: Literal["SaveImages"]
    draw: bool = Field(default=True, description="Whether detections are drawn.")
    suffix: str = Field(default=".jpg", description="The format: .jpg, .png, .webp.")


class SaveCOCOTable(_Folder):
    """Images and labels in the format of COCO."""

    kind: Literal["SaveCOCO"]
    images: bool = Field(default=True, description="Whether images are written.")


class SaveYOLOTable(_Folder):
    """Images and labels in the format of YOLO."""

    kind: Literal["SaveYOLO"]
    images: bool = Field(default=True, description="Whether images are written.")


class SaveJSONLTable(_Spooled):
    """A line of JSON per frame."""

    kind: Literal["SaveJSONL"]
    path: str = Field(description="The file; lines are added to what it holds.")


class EventsTable(_Spooled):
    """What is told of events over the network."""

    url: str = Field(
        description="http, https (Webhook), mqtt, mqtts (MQTT); its host is among those of network."
    )
    network: list[str] | None = Field(
        default=None, description="Hosts that may be called; without it, those of the file."
    )
    only_events: bool = Field(default=True, description="Whether only frames with events count.")
    attempts: int = Field(
        default=3,
        ge=1,
        description="How often a frame that is refused is tried, before the next one is tried in its place.",
    )
    timeout_s: float = Field(
        default=5.0, gt=0, description="Seconds after which an attempt has failed."
    )
    picture: bool = Field(default=False, description="Whether a JPEG with boxes is sent as well.")


class WebhookTable(EventsTable):
    """A call over HTTP per frame with events."""

    kind: Literal["Webhook"]


class MQTTTable(EventsTable):
    """A message to a broker per frame with events."""

    kind: Literal["MQTT"]


class ViewTable(_SinkTable):
    """A page that shows every source live."""

    kind: Literal["View"]
    port: int = Field(default=0, ge=0, le=65535, description="The port; 0 takes a free one.")


SINKS = {
    one.model_fields["kind"].annotation.__args__[0]: one  # type: ignore[union-attr]
    for one in (
        SaveVideoTable,
        SaveImagesTable,
        SaveJSONLTable,
        SaveCOCOTable,
        SaveYOLOTable,
        WebhookTable,
        MQTTTable,
        ViewTable,
    )
}
"""The table of a sink by its kind."""


class OtherSinkTable(_Spooled):
    """A sink of yours: ``module:Class``, ``file.py:Class``, or a name in the entry points ``headrace.sinks``."""

    model_config = ConfigDict(extra="allow")

    kind: str = Field(json_schema_extra={"not": {"enum": list(SINKS)}})


def sinks_of_plugins() -> dict[str, EntryPoint]:
    """Return the entry points of sinks by name."""
    return {one.name: one for one in entry_points(group="headrace.sinks")}


def _kind_of(table: Any) -> str | None:
    kind = table.get("kind") if _is_dict(table) else getattr(table, "kind", None)
    if kind in SINKS:
        return str(kind)
    return (
        "other" if isinstance(kind, str) and (":" in kind or kind in sinks_of_plugins()) else None
    )


SinkTable = Annotated[
    Annotated[SaveVideoTable, Tag("SaveVideo")]
    | Annotated[SaveImagesTable, Tag("SaveImages")]
    | Annotated[SaveJSONLTable, Tag("SaveJSONL")]
    | Annotated[SaveCOCOTable, Tag("SaveCOCO")]
    | Annotated[SaveYOLOTable, Tag("SaveYOLO")]
    | Annotated[WebhookTable, Tag("Webhook")]
    | Annotated[MQTTTable, Tag("MQTT")]
    | Annotated[ViewTable, Tag("View")]
    | Annotated[OtherSinkTable, Tag("other")],
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
        default=None,
        description="The only pipeline, called main: the path of its TOML file, of an ONNX file with a detector, or a "
        "table.",
    )
    models: dict[str, ModelTable] = Field(
        default={}, description="Several pipelines by name; each source says its model."
    )
    imports: list[str] = Field(
        default=[], alias="import", description="Python files or modules with words of the models."
    )
    network: list[str] = Field(default=[], description="Hosts whose addresses may be opened.")
    decode: str = Field(default=DECODE, description="The expression that decodes stills.")
    sources: dict[str, SourceTable] = Field(
        default={}, description="By name: input, and options of SourceOptions."
    )
    sinks: dict[str, SinkTable] = Field(
        default={}, description="By name: kind (SaveVideo, ...), and its arguments."
    )

    _base: Path | None = PrivateAttr(default=None)

    @property
    def base(self) -> Path | None:
        """The folder from which relative paths in tables start."""
        return self._base

    def placed(self, base: Path, changes: dict[str, Any]) -> VisionConfig:
        """Return a copy with ``changes``, whose relative paths start from ``base``."""
        made = self.model_copy(update=changes)
        made._base = base
        return made

    @property
    def all_models(self) -> dict[str, ModelTable]:
        """The models by name; the only one is called ``main``."""
        if self.models or self.model is None:
            return self.models
        keys = {name: getattr(self, name) for name in ModelTable.model_fields}
        return {"main": ModelTable(**keys)}
