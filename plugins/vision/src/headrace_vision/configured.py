"""`vision.toml`: model, sources, order and sinks as one file, checked as a whole."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

import headrace
from headrace.errors import ConfigError

if TYPE_CHECKING:
    from concurrent.futures import Future

    from headrace_vision.frames import Frame
    from headrace_vision.group import Handle
    from headrace_vision.sinks import Sink

__all__ = ["Vision", "VisionConfig", "load", "open_vision"]

SINKS = ("SaveVideo", "SaveImages", "SaveJSONL", "SaveCOCO", "SaveYOLO", "Webhook", "View")
"""What ``kind`` of a sink may be."""

_PATHS = {"SaveJSONL": "path"}


class VisionConfig(BaseModel):
    """A ``vision.toml``. Relative paths start from its folder."""

    model_config = ConfigDict(extra="forbid")

    model: str | dict[str, Any] = Field(
        description="The pipeline: the path of its TOML file, of an ONNX file with a detector, or a table."
    )
    layout: str = Field(default="auto", description="Layout of the ONNX file; see detect.")
    labels: list[str] | None = Field(
        default=None, description="Names of the classes of the ONNX file."
    )
    score_threshold: float | None = Field(
        default=None,
        ge=0,
        le=1,
        description="Boxes of the ONNX file with a lower score are dropped.",
    )
    ordered: str | dict[str, Any] | None = Field(
        default=None,
        description="What gets the results of each source in order: an expression, or a table.",
    )
    network: list[str] = Field(default=[], description="Hosts whose addresses may be opened.")
    decode: str = Field(default="DecodeMat", description="The expression that decodes stills.")
    sources: dict[str, dict[str, Any]] = Field(
        default={}, description="By name: input, and options of SourceOptions."
    )
    sinks: dict[str, dict[str, Any]] = Field(
        default={}, description="By name: kind (SaveVideo, ...), and its arguments."
    )


def load(path: str | os.PathLike[str]) -> VisionConfig:
    """Read and check a ``vision.toml``; nothing is built, and no source is opened.

    Raises:
        ConfigError: It cannot be read, or something in it is wrong; all problems are named.
    """
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib

    file = Path(path)
    try:
        table = tomllib.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"{file} cannot be read: {error}") from error
    try:
        config = VisionConfig.model_validate(table)
    except ValidationError as error:
        problems = [f"{'.'.join(map(str, one['loc']))}: {one['msg']}" for one in error.errors()]
        raise ConfigError(f"{file}: {'; '.join(problems)}") from error
    _check_tables(config, file)
    return _with_paths(config, file.parent)


def _check_tables(config: VisionConfig, file: Path) -> None:
    from headrace_vision.options import SourceOptions, options_of

    problems = []
    for name, table in config.sources.items():
        if "input" not in table:
            problems.append(f"sources.{name}: input is missing")
        try:
            options_of(SourceOptions(), {k: v for k, v in table.items() if k != "input"})
        except (TypeError, ValueError) as error:
            problems.append(f"sources.{name}: {error}")
    for name, table in config.sinks.items():
        if table.get("kind") not in SINKS:
            problems.append(
                f"sinks.{name}: kind is one of {', '.join(SINKS)}, not {table.get('kind')!r}"
            )
    if problems:
        raise ConfigError(f"{file}: {'; '.join(problems)}")


def _with_paths(config: VisionConfig, base: Path) -> VisionConfig:
    from headrace_vision.inputs import is_place

    def placed(text: Any) -> Any:
        return str(base / text) if isinstance(text, str) and is_place(text) else text

    sources = {n: {**t, "input": placed(t["input"])} for n, t in config.sources.items()}
    sinks = {}
    for name, table in config.sinks.items():
        key = _PATHS.get(table["kind"], "folder")
        sinks[name] = {**table, key: placed(table[key])} if key in table else table
    model = placed(config.model) if isinstance(config.model, str) else config.model
    return config.model_copy(update={"sources": sources, "sinks": sinks, "model": model})


def _made_sink(name: str, table: dict[str, Any], config: VisionConfig) -> Sink:
    import headrace_vision

    arguments = {key: value for key, value in table.items() if key != "kind"}
    if table["kind"] == "Webhook":
        arguments.setdefault("network", config.network)
    try:
        made: Sink = getattr(headrace_vision, table["kind"])(**arguments)
    except (TypeError, ValueError, OSError) as error:
        raise ConfigError(f"sinks.{name}: {error}") from error
    return made


class Vision:
    """What a ``vision.toml`` describes, built: a pipeline, its sources and sinks.

    Args:
        config: What `load` returned.
        more_sinks: Sinks beside those in the file.

    Attributes:
        config: The configuration.
        models: The pipeline, as ``{"main": pipeline}``.

    Raises:
        HeadraceError: Something cannot be built.
    """

    def __init__(self, config: VisionConfig, *, more_sinks: tuple[Any, ...] = ()) -> None:
        from headrace_vision.detecting import configuration_of
        from headrace_vision.runner import VideoRunner

        self.config = config
        source: Any = config.model
        if isinstance(source, str) and source.lower().endswith(".onnx"):
            source, _ = configuration_of(
                source,
                layout=config.layout,
                labels=config.labels,
                score_threshold=config.score_threshold,
            )
        pipe = headrace.pipe(source)
        self.models: dict[str, headrace.Pipeline] = {"main": pipe}
        sinks: list[Any] = []
        try:
            sinks += [_made_sink(name, table, config) for name, table in config.sinks.items()]
            self._runner = VideoRunner(
                pipe,
                ordered=config.ordered,
                sinks=[*sinks, *more_sinks],
                decode=config.decode,
                network=config.network,
            )
        except BaseException:
            for sink in sinks:
                if hasattr(sink, "url"):  # a View serves from the beginning
                    sink.close()
            pipe.close()
            raise

    def run(self, x: Any = None, **options: Any) -> Iterator[Frame]:
        """Return the frames of ``x``, or of the sources in the file.

        Args:
            x: See ``VideoRunner.run``; None for the sources in the file.
            options: See ``SourceOptions``; they win over those in the file.
        """
        if x is not None:
            return self._runner.run(x, **options)
        parts = {
            name: (table["input"], {**{k: v for k, v in table.items() if k != "input"}, **options})
            for name, table in self.config.sources.items()
        }
        return self._runner.run_sources(parts)

    def add(self, x: Any, **options: Any) -> Handle:
        """Begin to read something more; see ``VideoRunner.add``."""
        return self._runner.add(x, **options)

    def submit(self, request: dict[str, Any]) -> Future[dict[str, Any]]:
        """Send one request to the pipeline, past sources, order and sinks."""
        return self.models["main"].submit(request)

    def status(self) -> dict[str, Any]:
        """Return the status of the runner, with the counts of the pipeline under ``models``."""
        stats: Mapping[str, Any] = {name: pipe.stats() for name, pipe in self.models.items()}
        return {**self._runner.status(), "models": stats}

    def close(self) -> None:
        """Close the runner and the pipeline."""
        self._runner.close()
        for pipe in self.models.values():
            pipe.close(drain=False, timeout=5.0)

    def __enter__(self) -> Vision:  # noqa: PYI034 - Self needs Python 3.11
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def open_vision(path: str | os.PathLike[str], *, more_sinks: tuple[Any, ...] = ()) -> Vision:
    """Build what a ``vision.toml`` describes.

    Args:
        path: The file.
        more_sinks: Sinks beside those in the file.

    Raises:
        ConfigError: The file is wrong; all problems are named.
        HeadraceError: Something cannot be built.
    """
    return Vision(load(path), more_sinks=more_sinks)
