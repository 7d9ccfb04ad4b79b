"""`vision.toml`: model, sources, order and sinks as one file, checked as a whole."""

from __future__ import annotations

import importlib
import os
import re
import sys
from collections.abc import Callable, Collection, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

import headrace
import headrace_vision
from headrace.errors import ConfigError, HeadraceError, Problem
from headrace.plugins import read_text
from headrace_vision.file.tables import (
    SINKS,
    CropTable,
    ModelTable,
    OtherSinkTable,
    SourceTable,
    VisionConfig,
    sinks_of_plugins,
)
from headrace_vision.network import check_address
from headrace_vision.options import PER_MODEL, SourceOptions, check_name, options_of, texts_of
from headrace_vision.pipelines.crop_models import CropModel
from headrace_vision.pipelines.lanes import VideoModel, check_model
from headrace_vision.pipelines.ordered import Ordered
from headrace_vision.privacy import refuse_copy
from headrace_vision.reading.inputs import is_place, recognise
from headrace_vision.running.detecting import NETWORKS, configuration_of
from headrace_vision.running.runner import VideoRunner
from headrace_vision.sinks.threads import as_sink, named_sinks

if TYPE_CHECKING:
    from concurrent.futures import Future

    from headrace_vision.frames import Frame
    from headrace_vision.running.group import Handle
    from headrace_vision.sinks.sink import Sink

__all__ = ["Vision", "VisionConfig", "load", "open_vision"]


def load(path: str | os.PathLike[str], *, check_inputs: bool = True) -> VisionConfig:
    """Read and check a ``vision.toml`` as a whole. Nothing is built.

    The configurations of the models and of ``ordered`` are checked with it.

    Args:
        path: The file.
        check_inputs: Whether what sources name must be there, and allowed. Cameras and addresses are not opened.

    Raises:
        ConfigError: It cannot be read, or something in it is wrong. All problems are named.
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
    problems: list[Problem] = []
    table = _with_paths(_filled(table, (), problems), file.parent)
    config: VisionConfig | None = None
    try:
        config = VisionConfig.model_validate(table).placed(file.parent, {})
    except ValidationError as error:
        problems += _of_table("", table, error)
    wrong = {problem.path for problem in problems}
    for where, check in _checks(table, file.parent, wrong, check_inputs=check_inputs):
        try:
            check()
        except (HeadraceError, ValueError) as error:
            problems += _of_error(where, error)
    if problems or config is None:
        raise ConfigError([replace(problem, file=str(file)) for problem in problems])
    return config


_VARIABLE = re.compile(r"\$\{(\w+)(?::-([^}]*))?\}")
_PIPELINES = {"model", "models", "ordered", "decode", "import"}
"""Keys below which `headrace` itself replaces variables of the environment."""


def _filled(value: Any, place: tuple[str, ...], problems: list[Problem]) -> Any:
    """Return a value with ``${NAME}`` and ``${NAME:-default}`` replaced in its texts.

    Args:
        value: It.
        place: The keys that lead to it.
        problems: Gets one for each variable that is not set.
    """

    def variable(match: re.Match[str]) -> str:
        name, default = match.groups()
        text = os.environ.get(name) or default
        if text is None and name not in os.environ:
            why = f"the environment variable {name} is not set"
            hint = "Set it, or give a default: ${NAME:-default}."
            problems.append(Problem("vision", why, path=".".join(place), hint=hint))
        return text or ""

    if isinstance(value, str):
        return _VARIABLE.sub(variable, value)
    if isinstance(value, list):
        return [_filled(item, place, problems) for item in value]
    if not isinstance(value, dict):
        return value
    excluded = {"ordered"} if place else _PIPELINES
    own = {k: _filled(v, (*place, k), problems) for k, v in value.items() if k not in excluded}
    return value | own


def _with_paths(table: dict[str, Any], base: Path) -> dict[str, Any]:
    """Return the table of a file whose relative paths start from its folder."""
    models = [table, *_below_key(table, "models").values()]
    models += [crop for model in models for crop in _below_key(model, "crops").values()]
    places: list[tuple[dict[str, Any], tuple[str, ...]]] = [(model, ("model",)) for model in models]
    places += [(source, ("input",)) for source in _below_key(table, "sources").values()]
    of_sinks = ("folder", "path", "spool", "records", "videos", "images")
    places += [(sink, of_sinks) for sink in _below_key(table, "sinks").values()]
    for part, keys in places:
        part.update({key: _placed(part[key], base) for key in keys if key in part})
    return table


def _of_table(where: str, table: dict[str, Any], error: ValidationError) -> list[Problem]:
    """Return the problems that pydantic has found in a table, at a place of the ``vision.toml``."""
    problems = texts_of(table, error, partial(_keys_at, table))
    paths = ((".".join(filter(None, (where, place))) or None, text) for place, text in problems)
    return [Problem("vision", text, path=path) for path, text in paths]


def _of_error(where: str, error: Exception) -> list[Problem]:
    """Return the problems that an error has, at a place of the ``vision.toml``."""
    if not isinstance(error, ConfigError):
        text, _, hint = str(error).partition("\n  ")
        return [Problem("vision", text, path=where, hint=hint or None)]
    problems = []
    for problem in error.problems:
        inner = problem.file if problem.line is None else f"{problem.file}:{problem.line}"
        place = ": ".join(part for part in (where, inner, problem.path) if part)
        problems.append(replace(problem, file=None, path=place or None, line=None, column=None))
    return problems


def _keys_at(table: dict[str, Any], place: list[str]) -> Collection[str]:
    """Return the keys that a table may have."""
    if not place:
        return [field.alias or name for name, field in VisionConfig.model_fields.items()]
    if place[0] == "sinks":
        return SINKS[table["sinks"][place[1]]["kind"]].model_fields
    if "crops" in place[:-1]:
        return CropTable.model_fields
    fields: Collection[str] = (ModelTable if place[0] == "models" else SourceTable).model_fields
    return fields


def _below_key(table: dict[str, Any], key: str) -> dict[str, dict[str, Any]]:
    """Return the tables below a key by name. Pydantic tells of what is none."""
    below = table.get(key)
    pairs = below.items() if isinstance(below, dict) else ()
    return {name: inner for name, inner in pairs if isinstance(inner, dict)}


def _checks(
    table: dict[str, Any], base: Path, wrong: set[str | None], *, check_inputs: bool
) -> Iterator[tuple[str, Callable[[], object]]]:
    """Yield checks of what values mean, each with its place. They raise `HeadraceError` or ValueError.

    Args:
        table: The file.
        base: Its folder.
        wrong: The places whose values are wrong already.
        check_inputs: See `load`.
    """
    imports = _texts(table.get("import"))
    yield "", partial(_check_alone, table)
    yield "decode", partial(_order_of, table.get("decode"), base)
    yield "import", partial(_run_imports, imports, base)
    models = {f"models.{name}.": model for name, model in _below_key(table, "models").items()}
    for where, model in (models or {"": table}).items():
        if model.get("node"):
            yield f"{where}node", partial(_check_network, model.get("model"))
        yield f"{where}model", partial(_check_model, model.get("model"), base, imports)
        yield f"{where}ordered", partial(_order_of, model.get("ordered"), base, imports)
        for name, crop in _below_key(model, "crops").items():
            check = partial(_check_model, crop.get("model"), base, imports, may_detect=False)
            yield f"{where}crops.{name}.model", check
    for name, source in _below_key(table, "sources").items():
        where = f"sources.{name}"
        known = SourceTable.model_fields.keys() - {"input"}
        right = {k: v for k, v in source.items() if k in known and f"{where}.{k}" not in wrong}
        yield "", partial(_check_options, where, right)
        own = {f"{where}.models.{key}": value for key, value in _below_key(right, "models").items()}
        for place, options in {where: right, **own}.items():
            for key in PER_MODEL:
                yield f"{place}.{key}", partial(_check_order, key, options.get(key), base, imports)
        yield from _checks_of_names(where, right, table, wrong)
        inputs = source.get("input") if check_inputs else None
        for item in _texts(inputs if isinstance(inputs, list) else [inputs]):
            yield f"{where}.input", partial(recognise, item, _texts(table.get("network")))
    for name, sink in _below_key(table, "sinks").items():
        yield f"sinks.{name}", partial(_check_sink, sink, table, base)


def _checks_of_names(
    where: str, options: dict[str, Any], table: dict[str, Any], wrong: set[str | None]
) -> Iterator[tuple[str, Callable[[], object]]]:
    """Yield checks of the models and the sinks that a source names."""
    several, models = options.get("models"), _names_of_models(table)
    if not wrong.intersection([f"{where}.model", f"{where}.models"]):
        for model in several or [options.get("model")]:
            place = f"{where}.models" if several else where
            yield place, partial(check_model, model, models)
    for name in _texts(options.get("sinks")):
        yield f"{where}.sinks", partial(check_name, "sink", name, _below_key(table, "sinks"))
    for name, sink in _below_key(table, "sinks").items() if options.get("privacy_masks") else ():
        if sink.get("codec") == "copy" and name in options.get("sinks", [name]):
            yield f"{where}.privacy_masks", partial(refuse_copy, name)


def _check_alone(table: dict[str, Any]) -> None:
    """Refuse a file without a model, or with keys of the only model beside several."""
    if table.get("models"):
        alone = sorted(set(ModelTable.model_fields) & set(table))
        text = "write it below [models.NAME]"
        if alone:
            raise ConfigError([Problem("vision", text, path=key) for key in alone])
    elif "model" not in table:
        text = "there is no model: write model = ..., or tables [models.NAME]"
        raise ConfigError(Problem("vision", text))


def _check_network(model: Any) -> None:
    if not _is_network(model):
        raise ValueError("it is for the file of a network: write these keys into the pipeline")


def _run_imports(imports: list[str], base: Path | None) -> None:
    """Run what is imported, where that is allowed.

    Raises:
        ConfigError: It is not allowed, or fails.
    """
    if imports:
        headrace.PipelineConfig.load({"import": imports, "backend": "Identity"}, base=base)


def _check_model(model: Any, base: Path, imports: list[str], *, may_detect: bool = True) -> None:
    if _is_network(model) and not may_detect:
        raise ConfigError("write the TOML file of a pipeline, or a table, not a network")
    if _is_network(model):
        if not Path(model).is_file():
            raise ConfigError(f"there is no file {model!r}")
    elif isinstance(model, (str, dict)):
        _pipeline_of(model, base, imports)


def _pipeline_of(
    model: Any, base: Path | None, imports: list[str] | None = None
) -> headrace.PipelineConfig:
    """Return a configuration, checked; a table is in a file in the folder ``base``, which imports what that file does."""
    if isinstance(model, str):
        return headrace.PipelineConfig.load(model)
    if imports:
        own = model.get("import", [])
        model = {**model, "import": [*imports, *([own] if isinstance(own, str) else own)]}
    return headrace.PipelineConfig.load(model, base=base)


def _order_of(
    order: Any, base: Path | None, imports: list[str] | None = None
) -> headrace.PipelineConfig | None:
    if not isinstance(order, (str, dict)):
        return None
    return _pipeline_of({"backend": order} if isinstance(order, str) else order, base, imports)


def _is_network(model: Any) -> bool:
    return isinstance(model, str) and Path(model).suffix.lower() in NETWORKS


def _names_of_models(table: dict[str, Any]) -> list[str]:
    models = table.get("models")
    return list(models) if isinstance(models, dict) and models else ["main"]


def _check_options(where: str, options: dict[str, Any]) -> None:
    try:
        SourceOptions(**options)
    except ValidationError as error:
        raise ConfigError(_of_table(where, options, error)) from None


def _check_order(key: str, value: Any, base: Path, imports: list[str]) -> None:
    """Check the order, the lines or the zones of a source, if they are of the right type."""
    if key == "ordered":
        value = _order_of(value, base, imports)
    if isinstance(value, (dict, headrace.PipelineConfig)):
        Ordered().extended(options_of(SourceOptions(), {key: value}))


def _check_sink(sink: dict[str, Any], table: dict[str, Any], base: Path) -> None:
    """Check where a sink sends to, its class, and the model whose results it gets."""
    url, kind = sink.get("url"), sink.get("kind")
    if kind in ("Webhook", "MQTT") and isinstance(url, str):
        schemes = getattr(headrace_vision, kind).schemes
        check_address(url, _texts(sink.get("network", table.get("network"))), schemes)
    elif isinstance(kind, str) and ":" in kind:
        _sink_class(kind, base)
    if isinstance(sink.get("model"), str):
        check_name("model", sink["model"], _names_of_models(table))


def _sink_class(kind: str, base: Path | None) -> Any:
    """Return the class of a sink that is not one of ours.

    Raises:
        ConfigError: It may not be imported, or cannot be.
    """
    module, colon, name = kind.rpartition(":")
    if not colon:
        return sinks_of_plugins()[kind].load()
    _run_imports([module], base)
    if module.endswith(".py"):
        code: Any = headrace.plugins.import_file((base or Path()) / module)
    else:
        code = importlib.import_module(module)
    if not hasattr(code, name):
        raise ConfigError(f"{module} has no class {name!r}")
    return getattr(code, name)


def _texts(value: Any) -> list[str]:
    return [text for text in value if isinstance(text, str)] if isinstance(value, list) else []


def _placed(text: Any, base: Path) -> Any:
    """Return a path as it is from the folder of the file; anything else as it is."""
    if isinstance(text, list):
        return [_placed(item, base) for item in text]
    return str(base / text) if isinstance(text, str) and is_place(text) else text


def _options(table: Any, config: VisionConfig) -> dict[str, Any]:
    """Return the options of a source; its order is checked, from the folder of the file."""
    options = {key: getattr(table, key) for key in table.model_fields_set if key != "input"}
    models = options.get("models")
    for layer in [options, *(models.values() if isinstance(models, dict) else ())]:
        if "ordered" in layer:
            layer["ordered"] = _order_of(layer["ordered"], config.base, config.imports)
    return options


def _made_sink(name: str, table: Any, config: VisionConfig) -> Sink:
    fields = table.model_fields_set - {"kind", "model"}
    arguments = {key: getattr(table, key) for key in fields}
    if "network" in type(table).model_fields:
        arguments["network"] = config.network if table.network is None else table.network
    try:
        if not isinstance(table, OtherSinkTable):
            sink: Sink = getattr(headrace_vision, table.kind)(**arguments)
        else:
            extra = table.model_extra or {}
            sink = as_sink(_sink_class(table.kind, config.base)(**extra))
            for key in set(arguments) - set(extra):
                setattr(sink, key, arguments[key])
    except (TypeError, ValueError, OSError) as error:
        raise ConfigError(f"sinks.{name}: {error}") from error
    sink.model = table.model
    return sink


class Vision:
    """What a ``vision.toml`` describes, built: pipelines, sources and sinks.

    Args:
        config: What `load` returned.
        more_sinks: Sinks beside those in the file.

    Attributes:
        config: The configuration.
        models: The pipelines by name. The only one of a file with ``model`` is called ``main``.

    Raises:
        HeadraceError: Something cannot be built.
    """

    def __init__(self, config: VisionConfig, *, more_sinks: tuple[Any, ...] = ()) -> None:
        self.config = config
        sinks: dict[str, Any] = {}

        def crop_of(crop: CropTable) -> CropModel:
            pipeline = _pipeline_of(crop.model, config.base, config.imports)
            return CropModel(pipeline, crop.every, crop.part)

        def model_of(table: ModelTable) -> VideoModel:
            order = _order_of(table.ordered, config.base, config.imports)
            crops = {key: crop_of(crop) for key, crop in table.crops.items()}
            return VideoModel(_source_of(table, config), order, crops)

        try:
            for name, sink in config.sinks.items():
                sinks[name] = _made_sink(name, sink, config)
            models = {name: model_of(table) for name, table in config.all_models.items()}
            more, hosts = named_sinks(more_sinks, beside=sinks), config.network
            self._runner = VideoRunner(models, sinks=more, decode=config.decode, network=hosts)
        except BaseException:
            for sink in sinks.values():
                if isinstance(sink, headrace_vision.View):  # it serves from the beginning
                    sink.close()
            raise
        lanes = self._runner.lanes
        self.models: dict[str, headrace.Pipeline] = {name: lanes[name].pipe for name in lanes}

    def run(self, x: Any = None, **options: Any) -> Iterator[Frame]:
        """Return the frames of ``x``, or of the sources in the file.

        Args:
            x: See ``VideoRunner.run``. None for the sources in the file.
            options: See ``SourceOptions``. They win over those in the file.
        """
        if x is not None:
            return self._runner.run(x, **options)
        if "model" in options:
            options["models"] = None
        tables = self.config.sources.items()
        own = {name: {**_options(table, self.config), **options} for name, table in tables}
        return self._runner.run_sources({name: (table.input, own[name]) for name, table in tables})

    def add(self, x: Any, **options: Any) -> Handle:
        """Begin to read something more; see ``VideoRunner.add``."""
        return self._runner.add(x, **options)

    def submit(self, request: dict[str, Any], model: str | None = None) -> Future[dict[str, Any]]:
        """Send one request to a pipeline, past sources, order and sinks.

        Args:
            request: It, with ``data``.
            model: The name of the model. None for the only one.

        Raises:
            ValueError: There is no such model, or there are several and ``model`` is None.
        """
        return self.models[check_model(model, self.models)].submit(request)

    def status(self) -> dict[str, Any]:
        """Return the status of the runner, with the counts of the pipelines under ``models``, those of crops as ``MODEL.CROP``."""
        pipes = {**self.models}
        for name, lane in self._runner.lanes.items():
            pipes |= {f"{name}.{key}": crop for key, (crop, _) in lane.crops.items()}
        stats = {name: pipe.stats() for name, pipe in pipes.items()}
        return {**self._runner.status(), "models": stats}

    def close(self) -> None:
        """Close the runner and the pipelines."""
        self._runner.close()

    def __enter__(self) -> Vision:  # noqa: PYI034 - Self needs Python 3.11
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _source_of(table: ModelTable, config: VisionConfig) -> Any:
    if not _is_network(table.model):
        return _pipeline_of(table.model, config.base, config.imports)
    keys = ("layout", "labels", "score_threshold", "classes", "size")
    source, _ = configuration_of(str(table.model), **{key: getattr(table, key) for key in keys})
    return {**source, **table.node}


def open_vision(path: str | os.PathLike[str], *, more_sinks: tuple[Any, ...] = ()) -> Vision:
    """Build what a ``vision.toml`` describes.

    Args:
        path: The file.
        more_sinks: Sinks beside those in the file.

    Raises:
        ConfigError: The file is wrong. All problems are named.
        HeadraceError: Something cannot be built.
    """
    return Vision(load(path), more_sinks=more_sinks)
