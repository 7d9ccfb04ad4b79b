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
from headrace.errors import ConfigError, HeadraceError, InputError, Problem, among
from headrace.plugins import read_text
from headrace_vision.asking import CropModel
from headrace_vision.detecting import NETWORKS, configuration_of
from headrace_vision.inputs import is_place, recognise
from headrace_vision.lanes import VideoModel, check_model
from headrace_vision.network import check_address
from headrace_vision.options import SourceOptions, check_name, options_of
from headrace_vision.ordered import Ordered
from headrace_vision.privacy import refuse_copy
from headrace_vision.runner import VideoRunner
from headrace_vision.sink_threads import as_sink, named_sinks
from headrace_vision.tables import (
    SINKS,
    CropTable,
    ModelTable,
    OtherSinkTable,
    SourceTable,
    VisionConfig,
    sinks_of_plugins,
)

if TYPE_CHECKING:
    from concurrent.futures import Future

    from headrace_vision.frames import Frame
    from headrace_vision.group import Handle
    from headrace_vision.sinks import Sink

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
    config: VisionConfig | None = None
    problems: list[Problem] = []
    table = _filled(table, (), problems)
    try:
        config = VisionConfig.model_validate(table)
    except ValidationError as error:
        problems += _of_tables(table, error)
    wrong = {one.path for one in problems}
    problems += [
        *_of_models(table, file.parent),
        *_of_sources(table, file.parent, wrong, check_inputs=check_inputs),
        *_of_sinks(table, file.parent),
    ]
    if problems or config is None:
        raise ConfigError([replace(one, file=str(file)) for one in problems])
    return _with_paths(config, file.parent)


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

    def variable(found: re.Match[str]) -> str:
        name, default = found.groups()
        text = os.environ.get(name) or default
        if text is None and name not in os.environ:
            said = f"the environment variable {name} is not set"
            hint = "Set it, or give a default: ${NAME:-default}."
            problems.append(Problem("vision", said, path=".".join(place), hint=hint))
        return text or ""

    if isinstance(value, str):
        return _VARIABLE.sub(variable, value)
    if isinstance(value, list):
        return [_filled(one, place, problems) for one in value]
    if not isinstance(value, dict):
        return value
    kept = {"ordered"} if place else _PIPELINES
    return {
        key: one if key in kept else _filled(one, (*place, key), problems)
        for key, one in value.items()
    }


def _of_error(where: str, error: Exception) -> list[Problem]:
    """Return the problems that an error has, at a place of the ``vision.toml``."""
    if not isinstance(error, ConfigError):
        text, _, hint = str(error).partition("\n  ")
        return [Problem("vision", text, path=where, hint=hint or None)]
    problems = []
    for one in error.problems:
        inner = one.file if one.line is None else f"{one.file}:{one.line}"
        place = ": ".join(part for part in (where, inner, one.path) if part)
        problems.append(replace(one, file=None, path=place, line=None, column=None))
    return problems


def _of_tables(table: dict[str, Any], error: ValidationError) -> list[Problem]:
    """Return what is wrong with keys and their types, one problem for each place."""
    found: dict[tuple[str, str], list[str]] = {}
    for one in error.errors():
        place = _place_of(table, one["loc"])
        if one["type"] == "extra_forbidden":
            *place, key = place
            text = f"there is no key {key!r}. {among(key, _keys_at(table, place))}"
            found[".".join(place), text] = [text]
        else:
            found.setdefault((".".join(place), ""), []).append(_said(one))
    return [
        Problem("vision", " or ".join(texts), path=where or None)
        for (where, _), texts in found.items()
    ]


def _place_of(table: Any, location: tuple[Any, ...]) -> list[str]:
    """Return the keys of a place in the file, without what pydantic calls the parts of a union."""
    place = []
    for number, part in enumerate(location, 1):
        if (isinstance(table, dict) and part in table) or (
            isinstance(table, list) and isinstance(part, int) and part < len(table)
        ):
            table = table[part]
        elif not isinstance(table, dict) or number < len(location):
            continue
        place.append(str(part))
    return place


def _keys_at(table: dict[str, Any], place: list[str]) -> Collection[str]:
    """Return the keys that a table may have."""
    if not place:
        return [one.alias or name for name, one in VisionConfig.model_fields.items()]
    if place[0] == "sinks":
        return SINKS[table["sinks"][place[1]]["kind"]].model_fields
    if "crops" in place[:-1]:
        return CropTable.model_fields
    fields: Collection[str] = (ModelTable if place[0] == "models" else SourceTable).model_fields
    return fields


def _said(error: Any) -> str:
    if error["type"] == "missing":
        return "it is missing"
    if error["type"] == "kind" and "kind" in error["input"]:
        return f"{error['msg']}, not {error['input']['kind']!r}"
    return str(error["msg"])


def _below_key(table: dict[str, Any], key: str) -> dict[str, dict[str, Any]]:
    """Return the tables below a key by name; what is none is told by `_of_tables`."""
    found = table.get(key)
    pairs = found.items() if isinstance(found, dict) else ()
    return {name: one for name, one in pairs if isinstance(one, dict)}


def _of_models(table: dict[str, Any], base: Path) -> list[Problem]:
    """Return what is wrong with expressions and models, and with what is in order behind them."""
    problems = []
    if table.get("models"):
        alone = sorted(set(ModelTable.model_fields) & set(table))
        text = "write it below [models.NAME]"
        problems += [Problem("vision", text, path=key) for key in alone]
    elif "model" not in table:
        text = "there is no model: write model = ..., or tables [models.NAME]"
        problems.append(Problem("vision", text))
    imports = _texts(table.get("import"))
    checks: list[tuple[str, Callable[[], object]]] = [
        ("decode", lambda: _order_of(table.get("decode"), base)),
        ("import", lambda: _run_imports(imports, base)),
    ]
    models = {f"models.{name}.": one for name, one in _below_key(table, "models").items()}
    for where, one in (models or {"": table}).items():
        model, order = _placed(one.get("model"), base), one.get("ordered")
        if one.get("node") and not _is_network(model):
            text = "it is for the file of a network: write these keys into the pipeline"
            problems.append(Problem("vision", text, path=f"{where}node"))
        checks.append((f"{where}model", partial(_check_model, model, base, imports)))
        checks.append((f"{where}ordered", partial(_order_of, order, base, imports)))
        for name, crop in _below_key(one, "crops").items():
            asked = _placed(crop.get("model"), base)
            place = f"{where}crops.{name}.model"
            checks.append((place, partial(_check_model, asked, base, imports, may_detect=False)))
    for where, check in checks:
        try:
            check()
        except (HeadraceError, ValueError) as error:
            problems += _of_error(where, error)
    return problems


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


def _of_sources(
    table: dict[str, Any], base: Path, wrong: set[str | None], *, check_inputs: bool
) -> list[Problem]:
    """Return what is wrong with values of sources that have the right type; ``wrong`` are the places of the others."""
    problems: list[Problem] = []
    for name, one in _below_key(table, "sources").items():
        where = f"sources.{name}"
        known = SourceTable.model_fields
        right = {k: v for k, v in one.items() if k in known and f"{where}.{k}" not in wrong}
        inputs = right.pop("input", [])
        # Each value alone, and then those that must fit each other.
        alone = [p for k, v in right.items() for p in _of_options(where, {k: v})]
        problems += alone or _of_options(where, right) or _of_order(where, right, table, base)
        for model, own in _below_key(right, "models").items() if not alone else ():
            problems += _of_order(f"{where}.models.{model}", own, table, base)
        problems += _of_names(where, right, table, wrong)
        for item in inputs if isinstance(inputs, list) else [inputs]:
            try:
                if check_inputs and isinstance(item, str):
                    recognise(_placed(item, base), _texts(table.get("network")))
            except InputError as error:
                problems += _of_error(f"{where}.input", error)
    return problems


def _of_names(
    where: str, options: dict[str, Any], table: dict[str, Any], wrong: set[str | None]
) -> list[Problem]:
    """Return what is wrong with the models and the sinks that a source names."""
    problems: list[Problem] = []
    several, models = options.get("models"), _names_of_models(table)
    checks: list[tuple[str, Callable[[], object]]] = [
        (f"{where}.models" if several else where, partial(check_model, one, models))
        for one in several or [options.get("model")]
        if not wrong.intersection([f"{where}.model", f"{where}.models"])
    ] + [
        (f"{where}.sinks", partial(check_name, "sink", one, _below_key(table, "sinks")))
        for one in _texts(options.get("sinks"))
    ]
    for name, sink in _below_key(table, "sinks").items() if options.get("privacy_masks") else ():
        if sink.get("codec") == "copy" and name in options.get("sinks", [name]):
            checks.append((f"{where}.privacy_masks", partial(refuse_copy, name)))
    for place, check in checks:
        try:
            check()
        except ValueError as error:
            problems += _of_error(place, error)
    return problems


def _names_of_models(table: dict[str, Any]) -> list[str]:
    models = table.get("models")
    return list(models) if isinstance(models, dict) and models else ["main"]


def _of_options(where: str, options: dict[str, Any]) -> list[Problem]:
    try:
        options_of(SourceOptions(), options)
    except ValueError as error:
        return _of_error(where, error)
    return []


def _of_order(
    where: str, options: dict[str, Any], table: dict[str, Any], base: Path
) -> list[Problem]:
    """Return what is wrong with the order, the lines and the zones of a source."""
    problems = []
    for key in ("ordered", "lines", "zones"):
        one: dict[str, Any] = {key: options.get(key)}
        try:
            if key == "ordered":
                one[key] = _order_of(one[key], base, _texts(table.get("import")))
            Ordered().extended(SourceOptions(**one))
        except HeadraceError as error:
            problems += _of_error(f"{where}.{key}", error)
    return problems


def _of_sinks(table: dict[str, Any], base: Path) -> list[Problem]:
    import headrace_vision

    problems = []
    for name, one in _below_key(table, "sinks").items():
        url, kind = one.get("url"), one.get("kind")
        try:
            if kind in ("Webhook", "MQTT") and isinstance(url, str):
                schemes = getattr(headrace_vision, kind).schemes
                check_address(url, _texts(one.get("network", table.get("network"))), schemes)
            elif isinstance(kind, str) and ":" in kind:
                _sink_class(kind, base)
            if isinstance(one.get("model"), str):
                check_name("model", one["model"], _names_of_models(table))
        except (HeadraceError, ValueError) as error:
            problems += _of_error(f"sinks.{name}", error)
    return problems


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
        found: Any = headrace.plugins.import_file((base or Path()) / module)
    else:
        found = importlib.import_module(module)
    if not hasattr(found, name):
        raise ConfigError(f"{module} has no class {name!r}")
    return getattr(found, name)


def _texts(value: Any) -> list[str]:
    return [one for one in value if isinstance(one, str)] if isinstance(value, list) else []


def _placed(text: Any, base: Path) -> Any:
    """Return a path as it is from the folder of the file; anything else as it is."""
    if isinstance(text, list):
        return [_placed(one, base) for one in text]
    return str(base / text) if isinstance(text, str) and is_place(text) else text


def _options(table: Any, config: VisionConfig) -> dict[str, Any]:
    """Return the options of a source; its order is checked, from the folder of the file."""
    found = {key: getattr(table, key) for key in table.model_fields_set if key != "input"}
    models = found.get("models")
    for one in [found, *(models.values() if isinstance(models, dict) else ())]:
        if "ordered" in one:
            one["ordered"] = _order_of(one["ordered"], config.base, config.imports)
    return found


def _with_paths(config: VisionConfig, base: Path) -> VisionConfig:
    """Return the configuration with paths that start from the folder of its file."""

    def with_(table: Any, *keys: str) -> Any:
        found = [key for key in keys if getattr(table, key, None) is not None]
        return table.model_copy(update={key: _placed(getattr(table, key), base) for key in found})

    def with_crops(table: Any) -> Any:
        crops = {name: with_(one, "model") for name, one in table.crops.items()}
        return table.model_copy(update={"crops": crops})

    changes: dict[str, Any] = {
        "sources": {name: with_(one, "input") for name, one in config.sources.items()},
        "sinks": {
            name: with_(one, "folder", "path", "spool", "records", "videos", "images")
            for name, one in config.sinks.items()
        },
        "models": {name: with_crops(with_(one, "model")) for name, one in config.models.items()},
        "crops": {name: with_(one, "model") for name, one in config.crops.items()},
    }
    if config.model is not None:
        changes["model"] = _placed(config.model, base)
    return config.placed(base, changes)


def _made_sink(name: str, table: Any, config: VisionConfig) -> Sink:
    import headrace_vision

    fields = table.model_fields_set - {"kind", "model"}
    arguments = {key: getattr(table, key) for key in fields}
    if "network" in type(table).model_fields:
        arguments["network"] = config.network if table.network is None else table.network
    try:
        if not isinstance(table, OtherSinkTable):
            made: Sink = getattr(headrace_vision, table.kind)(**arguments)
        else:
            extra = table.model_extra or {}
            made = as_sink(_sink_class(table.kind, config.base)(**extra))
            for key in set(arguments) - set(extra):
                setattr(made, key, arguments[key])
    except (TypeError, ValueError, OSError) as error:
        raise ConfigError(f"sinks.{name}: {error}") from error
    made.model = table.model
    return made


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

        try:
            for name, sink in config.sinks.items():
                sinks[name] = _made_sink(name, sink, config)
            self._runner = VideoRunner(
                {
                    name: VideoModel(
                        _source_of(table, config),
                        ordered=_order_of(table.ordered, config.base, config.imports),
                        crops={key: crop_of(one) for key, one in table.crops.items()},
                    )
                    for name, table in config.all_models.items()
                },
                sinks=named_sinks(more_sinks, beside=sinks),
                decode=config.decode,
                network=config.network,
            )
        except BaseException:
            for sink in sinks.values():
                if hasattr(sink, "url"):  # a View serves from the beginning
                    sink.close()
            raise
        self.models: dict[str, headrace.Pipeline] = {
            name: lane.pipe for name, lane in self._runner.lanes.items()
        }

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
        parts = {
            name: (table.input, {**_options(table, self.config), **options})
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
            model: The name of the model. None for the only one.

        Raises:
            ValueError: There is no such model, or there are several and ``model`` is None.
        """
        return self.models[check_model(model, self.models)].submit(request)

    def status(self) -> dict[str, Any]:
        """Return the status of the runner, with the counts of the pipelines under ``models``, those of crops as ``MODEL.CROP``."""
        pipes = {**self.models}
        for name, lane in self._runner.lanes.items():
            pipes |= {f"{name}.{key}": one for key, (one, _) in lane.crops.items()}
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
