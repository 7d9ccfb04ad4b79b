"""`vision.toml`: model, sources, order and sinks as one file, checked as a whole."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

import headrace
from headrace.errors import ConfigError, HeadraceError, InputError, Problem
from headrace.plugins import read_text
from headrace_vision.inputs import is_place, recognise
from headrace_vision.lanes import VideoModel, check_model
from headrace_vision.network import check_address
from headrace_vision.options import SourceOptions, options_of
from headrace_vision.runner import VideoRunner
from headrace_vision.tables import SINKS, ModelTable, VisionConfig, WebhookTable

if TYPE_CHECKING:
    from concurrent.futures import Future

    from headrace_vision.frames import Frame
    from headrace_vision.group import Handle
    from headrace_vision.sinks import Sink

__all__ = ["Vision", "VisionConfig", "load", "open_vision"]


def load(path: str | os.PathLike[str], *, check_inputs: bool = True) -> VisionConfig:
    """Read and check a ``vision.toml`` as a whole; nothing is built.

    The configurations of the models and of ``ordered`` are checked with it.

    Args:
        path: The file.
        check_inputs: Whether what sources name must be there, and allowed. Cameras and addresses are not opened.

    Raises:
        ConfigError: It cannot be read, or something in it is wrong; all problems are named.
    """
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib

    file = Path(path)
    try:
        table = tomllib.loads(read_text(file))
    except (OSError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(f"{file} cannot be read: {error}") from error
    except ValueError as error:
        hint = "headrace video CONFIG INPUT: the configuration comes first, then what it reads."
        raise ConfigError(Problem("vision", f"it cannot be read: {error}", hint=hint)) from error
    try:
        config = VisionConfig.model_validate(table)
    except ValidationError as error:
        problems = [_problem(one["loc"], _said(one)) for one in error.errors()]
        raise ConfigError(f"{file}: {'; '.join(problems)}") from error
    config = _with_paths(config, file.parent)
    problems = [
        *_of_models(config, file.parent),
        *_of_sources(config, check_inputs),
        *_of_sinks(config),
    ]
    if problems:
        raise ConfigError(f"{file}: {'; '.join(problems)}")
    return config


def _said(error: Any) -> str:
    if error["type"] == "missing":
        return "it is missing"
    if error["type"] == "kind" and "kind" in error["input"]:
        return f"{error['msg']}, not {error['input']['kind']!r}"
    return str(error["msg"]).removeprefix("Value error, ")


def _problem(place: tuple[Any, ...], text: str) -> str:
    where = ".".join(str(one) for one in place if one not in SINKS)
    return f"{where}: {text}" if where else text


def _of_models(config: VisionConfig, base: Path) -> list[str]:
    """Return what is wrong with the models, and with what is in order behind them."""
    if config.models:
        alone = set(ModelTable.model_fields) & config.model_fields_set
        problems = [f"{key}: write it below [models.NAME]" for key in sorted(alone)]
    elif config.model is None:
        return ["there is no model: write model = ..., or tables [models.NAME]"]
    else:
        problems = []
    for name, one in config.all_models.items():
        where = f"models.{name}." if config.models else ""
        try:
            _check_model(one.model, base)
        except HeadraceError as error:
            problems.append(f"{where}model: {error}")
        try:
            _order_of(one, base)
        except HeadraceError as error:
            problems.append(f"{where}ordered: {error}")
    return problems


def _check_model(model: Any, base: Path) -> None:
    if _is_onnx(model):
        if not Path(model).is_file():
            raise ConfigError(f"there is no file {model!r}")
    else:
        _pipeline_of(model, base)


def _pipeline_of(model: Any, base: Path | None) -> headrace.PipelineConfig:
    """Return a configuration, checked; a table is in a file in the folder ``base``."""
    if isinstance(model, str):
        return headrace.PipelineConfig.load(model)
    return headrace.PipelineConfig.load(model, base=base)


def _order_of(table: ModelTable, base: Path | None) -> headrace.PipelineConfig | None:
    order = table.ordered
    if order is None:
        return None
    return _pipeline_of({"backend": order} if isinstance(order, str) else order, base)


def _is_onnx(model: Any) -> bool:
    return isinstance(model, str) and model.lower().endswith(".onnx")


def _of_sources(config: VisionConfig, check_inputs: bool) -> list[str]:
    problems = []
    for name, table in config.sources.items():
        try:
            options_of(SourceOptions(), _options(table))
            check_model(table.model, config.all_models)
        except (TypeError, ValueError) as error:
            problems.append(f"sources.{name}: {error}")
        inputs = [table.input] if isinstance(table.input, str) else table.input
        for one in inputs if check_inputs else ():
            try:
                recognise(one, config.network)
            except InputError as error:
                problems.append(f"sources.{name}.input: {error}")
    return problems


def _of_sinks(config: VisionConfig) -> list[str]:
    problems = []
    for name, table in config.sinks.items():
        if isinstance(table, WebhookTable):
            try:
                check_address(table.url, _hosts(table, config))
            except HeadraceError as error:
                problems.append(f"sinks.{name}: {error}")
    return problems


def _options(table: Any) -> dict[str, Any]:
    return {key: getattr(table, key) for key in table.model_fields_set if key != "input"}


def _hosts(table: WebhookTable, config: VisionConfig) -> list[str]:
    return config.network if table.network is None else table.network


def _with_paths(config: VisionConfig, base: Path) -> VisionConfig:
    """Return the configuration with paths that start from the folder of its file."""

    def placed(text: Any) -> Any:
        if isinstance(text, list):
            return [placed(one) for one in text]
        return str(base / text) if isinstance(text, str) and is_place(text) else text

    def with_(table: Any, *keys: str) -> Any:
        found = [key for key in keys if getattr(table, key, None) is not None]
        return table.model_copy(update={key: placed(getattr(table, key)) for key in found})

    changes: dict[str, Any] = {
        "sources": {name: with_(one, "input") for name, one in config.sources.items()},
        "sinks": {name: with_(one, "folder", "path") for name, one in config.sinks.items()},
        "models": {name: with_(one, "model") for name, one in config.models.items()},
    }
    if config.model is not None:
        changes["model"] = placed(config.model)
    return config.placed(base, changes)


def _made_sink(name: str, table: Any, config: VisionConfig) -> Sink:
    import headrace_vision

    arguments = {key: getattr(table, key) for key in table.model_fields_set if key != "kind"}
    if isinstance(table, WebhookTable):
        arguments["network"] = _hosts(table, config)
    try:
        made: Sink = getattr(headrace_vision, table.kind)(**arguments)
    except (TypeError, ValueError, OSError) as error:
        raise ConfigError(f"sinks.{name}: {error}") from error
    return made


class Vision:
    """What a ``vision.toml`` describes, built: pipelines, sources and sinks.

    Args:
        config: What `load` returned.
        more_sinks: Sinks beside those in the file.

    Attributes:
        config: The configuration.
        models: The pipelines by name; the only one of a file with ``model`` is called ``main``.

    Raises:
        HeadraceError: Something cannot be built.
    """

    def __init__(self, config: VisionConfig, *, more_sinks: tuple[Any, ...] = ()) -> None:
        self.config = config
        self.models: dict[str, headrace.Pipeline] = {}
        sinks: list[Any] = []
        try:
            for name, table in config.all_models.items():
                self.models[name] = headrace.pipe(_source_of(table, config.base))
            sinks += [_made_sink(name, table, config) for name, table in config.sinks.items()]
            self._runner = VideoRunner(
                {
                    name: VideoModel(self.models[name], ordered=_order_of(table, config.base))
                    for name, table in config.all_models.items()
                },
                sinks=[*sinks, *more_sinks],
                decode=config.decode,
                network=config.network,
            )
        except BaseException:
            for sink in sinks:
                if hasattr(sink, "url"):  # a View serves from the beginning
                    sink.close()
            self._close_models()
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
            name: (table.input, {**_options(table), **options})
            for name, table in self.config.sources.items()
        }
        return self._runner.run_sources(parts)

    def add(self, x: Any, **options: Any) -> Handle:
        """Begin to read something more; see ``VideoRunner.add``."""
        return self._runner.add(x, **options)

    def submit(self, request: dict[str, Any], model: str | None = None) -> Future[dict[str, Any]]:
        """Send one request to a pipeline, past sources, order and sinks.

        Args:
            request: It, with ``data``.
            model: The name of the model; None for the only one.

        Raises:
            ValueError: There is no such model, or there are several and ``model`` is None.
        """
        return self.models[check_model(model, self.models)].submit(request)

    def status(self) -> dict[str, Any]:
        """Return the status of the runner, with the counts of the pipelines under ``models``."""
        stats: Mapping[str, Any] = {name: pipe.stats() for name, pipe in self.models.items()}
        return {**self._runner.status(), "models": stats}

    def close(self) -> None:
        """Close the runner and the pipelines."""
        self._runner.close()
        self._close_models()

    def _close_models(self) -> None:
        for pipe in self.models.values():
            pipe.close(drain=False, timeout=5.0)

    def __enter__(self) -> Vision:  # noqa: PYI034 - Self needs Python 3.11
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _source_of(table: ModelTable, base: Path | None) -> Any:
    if not _is_onnx(table.model):
        return _pipeline_of(table.model, base)
    from headrace_vision.detecting import configuration_of

    source, _ = configuration_of(
        str(table.model),
        layout=table.layout,
        labels=table.labels,
        score_threshold=table.score_threshold,
    )
    return source


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
