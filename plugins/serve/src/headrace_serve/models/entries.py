"""Reads which models are to be served: by name and version, each with its pipeline and its entry."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import pydantic

import headrace
from headrace import keys
from headrace.errors import ConfigError, HeadraceError, Problem, SetupError, nearest
from headrace.plugins import read_text
from headrace_formats import read_labels
from headrace_models import Exchange, Memory, folder_models, is_shares
from headrace_models.memory.budget import read_bytes
from headrace_serve.models.field_types import type_of
from headrace_serve.models.manager import Later, ModelManager, leased
from headrace_serve.toml_tables import problem_of, read_tables

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = [
    "NO_INPUTS",
    "InputEntry",
    "ModelEntry",
    "OutputEntry",
    "read_entries",
    "read_memory",
    "read_models",
    "repositories",
]

Datatype = Literal[
    "BOOL", "UINT8", "UINT16", "UINT32", "UINT64", "INT8", "INT16", "INT32", "INT64",
    "FP16", "FP32", "FP64", "BF16", "BYTES",
]  # fmt: skip

Axis = Annotated[int, pydantic.Field(ge=-1)]

NO_INPUTS = frozenset(keys.RESERVED) - {keys.DATA}
"""Keys of a request that decide how it is run, so that no input may be one of them."""

_VERSION = re.compile(r"0|[1-9][0-9]{0,17}")
"""Without leading zeros, so that 1 and 01 are not two versions, and as long as the clients' numbers may be."""
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*(/[A-Za-z0-9][A-Za-z0-9_.-]*)*")
_STATISTICS = "stats"
"""No model may have this name: the protocol uses ``/v2/models/stats`` for the statistics of all models."""
_NAMED = re.compile(
    r"(?P<name>[A-Za-z0-9][A-Za-z0-9_.-]*)(?::(?P<version>[^=:/\\]*))?=(?P<config>.+)", re.DOTALL
)
_OF_FILE = ("models", "memory")
_OF_MEMORY = ("host", "min_stay_s")
_KEYS_OF_MEMORY = "There are: host, min_stay_s, and devices such as cuda:0."
_DEVICE = re.compile(r"cuda:[0-9]+")
_EXPRESSION = re.compile(r"[A-Z]\w*$|[\w:-]+[\[(]|\[")
"""How a text begins that is an expression, and no path."""


class _Entry(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(
        extra="forbid", frozen=True, arbitrary_types_allowed=True, strict=True
    )


class OutputEntry(_Entry):
    """One output of a model whose pipeline does not describe its outputs."""

    datatype: Datatype
    shape: list[Axis]
    optional: bool = False
    """Whether answers may lack the output."""


class InputEntry(_Entry):
    """One input of a model whose pipeline does not describe its inputs."""

    datatype: Datatype
    shape: list[Axis]
    """The length of each axis, -1 for any length; the axis of the batch or of the items is included."""
    key: str | None = pydantic.Field(default=None, min_length=1)
    """The key under which the request of the pipeline holds the input. Default: ``data`` for a single input,
    else the input's name."""
    each: bool | None = None
    """Whether each element of the first axis is a request of its own; default: true for BYTES, else false."""
    batched: bool = False
    """Whether the first axis is the batch of one request; the outputs then have that axis too."""
    optional: bool = False
    """Whether requests may lack the input."""

    @pydantic.model_validator(mode="after")
    def _check_axes(self) -> InputEntry:
        if self.each and self.batched:
            raise ValueError("the first axis is of items (each) or of rows (batched), not both")
        if (self.each or self.batched) and not self.shape:
            raise ValueError("items and rows lie along a first axis, and the shape has none")
        return self

    @property
    def by_item(self) -> bool:
        """Whether each element of the first axis is a request of its own."""
        items = self.datatype == "BYTES" if self.each is None else self.each
        return items and not self.batched and bool(self.shape)


class FieldEntry(_Entry):
    """One field of the bodies of JSON of a model; a text alone is its type."""

    type: str
    """``str``, ``int``, ``float``, ``bool``, ``any``, ``list[T]``, ``dict[str, T]`` or ``T | None``."""
    required: bool | None = None
    """Whether every body has it; default: true without a default."""
    default: Any = None
    """The value where a body lacks it; without one the request lacks it too."""
    description: str | None = None

    @pydantic.model_validator(mode="before")
    @classmethod
    def _of_type(cls, value: Any) -> Any:
        return {"type": value} if isinstance(value, str) else value

    @pydantic.model_validator(mode="after")
    def _check_type(self) -> FieldEntry:
        kind = type_of(self.type)
        if self.default is not None:
            if self.required:
                raise ValueError("a field that is required has no default")
            pydantic.TypeAdapter(kind).validate_python(self.default, strict=True)
        return self

    @property
    def needed(self) -> bool:
        """Whether every body has the field."""
        return self.default is None if self.required is None else self.required


class ModelEntry(_Entry):
    """One model to serve."""

    config: Any
    """A path, a dict, a `headrace.PipelineConfig`, or a `headrace.Pipeline`, which the caller closes."""
    version: str = "1"
    """Digits without a zero in front; a whole number is read as its digits."""
    preload: bool = True
    """Whether the server builds the model before it takes requests; if not, the first request has it built."""
    memory: str | None = None
    """What it takes on each device of the budget that it uses, with a unit; default: it is measured."""
    keep: bool = False
    """Whether it never leaves for another model."""
    idle_unload_s: float | None = pydantic.Field(default=None, gt=0)
    """Seconds without a request after which it leaves; default: never."""
    inputs: dict[str, InputEntry] | None = pydantic.Field(default=None, min_length=1)
    outputs: dict[str, OutputEntry] | None = pydantic.Field(default=None, min_length=1)
    max_body_bytes: int | None = pydantic.Field(default=None, gt=0)
    """This and the next three: limits of this model, as in `headrace_serve.Limits`; the smaller one counts."""
    max_items: int | None = pydantic.Field(default=None, gt=0)
    max_elements: int | None = pydantic.Field(default=None, gt=0)
    max_timeout_ms: float | None = pydantic.Field(default=None, gt=0)
    request: dict[str, FieldEntry] | None = pydantic.Field(default=None, min_length=1)
    """The fields of the bodies of JSON that ``POST /run/NAME`` takes: each is the key of the request of this name."""
    body: Literal["json", "bytes"] | None = None
    """``json``: the body of ``POST /run/NAME`` is JSON, and its value the key ``data``. ``bytes``: it is never read. Default:
    fields where ``request`` or the pipeline declares them, else ``bytes``."""

    decoupled: bool = False
    """Whether its answers over ``ModelStreamInfer`` come in parts, any number of responses for a request, as Triton calls it."""

    exchange: Exchange | None = None
    """How a changed model proves itself before it takes the place of the one that serves."""

    labels: dict[str, list[str]] | None = None
    """The labels of the classes of an output, by its name: a list of texts, or the path of a file with one on each line."""

    @pydantic.field_validator("memory")
    @classmethod
    def _check_memory(cls, value: str | None) -> str | None:
        if value is not None:
            read_bytes(value, "model")
        return value

    @pydantic.field_validator("labels", mode="before")
    @classmethod
    def _read_labels(cls, value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        return {
            name: _labels(labels) if isinstance(labels, (str, Path)) else labels
            for name, labels in value.items()
        }

    @pydantic.field_validator("config")
    @classmethod
    def _check_config(cls, value: Any) -> Any:
        kinds = (str, Path, dict, headrace.PipelineConfig, headrace.Pipeline, Later)
        if not isinstance(value, kinds):
            got = type(value).__name__
            raise ValueError(  # noqa: TRY004 - what pydantic takes
                f"a model is a configuration or a pipeline, got {got}"
            )
        return value

    @pydantic.field_validator("version", mode="before")
    @classmethod
    def _check_version(cls, value: Any) -> str:
        text = str(value) if type(value) is int else value
        if not isinstance(text, str) or not _VERSION.fullmatch(text):
            raise ValueError(f"a version is a whole number such as 2 or 10, got {value!r}")
        return text

    @pydantic.model_validator(mode="after")
    def _check_keys(self) -> ModelEntry:
        owners: dict[str, str] = {}
        for name in self.inputs or ():
            key = self.key_of(name)
            if key in NO_INPUTS:
                raise ValueError(f"input {name!r} cannot be the key {key!r}, which is reserved")
            if owners.setdefault(key, name) != name:
                raise ValueError(f"inputs {owners[key]!r} and {name!r} are both the key {key!r}")
        for name in self.request or ():
            if name in NO_INPUTS:
                raise ValueError(f"field {name!r} is a key of a request that is reserved")
        if self.body is not None and self.request is not None:
            raise ValueError("`request` declares the fields of the body, so `body` is left out")
        return self

    def key_of(self, name: str) -> str:
        """Return the key under which the request of the pipeline holds an input."""
        inputs = self.inputs or {}
        return inputs[name].key or (keys.DATA if len(inputs) == 1 else name)

    @property
    def lazy(self) -> bool:
        """Whether a request builds the model."""
        return not self.preload or isinstance(self.config, Later)

    @property
    def limits(self) -> dict[str, float]:
        """The limits that the entry sets for this model, by name."""
        names = ("max_body_bytes", "max_items", "max_elements", "max_timeout_ms")
        limits = {name: getattr(self, name) for name in names}
        return {name: value for name, value in limits.items() if value is not None}


def _labels(path: str | Path) -> list[str]:
    try:
        return read_labels(read_text(path), Path(path).suffix)
    except (OSError, ValueError) as error:
        raise ValueError(f"the labels in {path} cannot be read: {error}") from None


def read_entries(
    models: Any,
    only: str | None = None,
    *,
    may_be_none: bool = False,
    failed: dict[str, HeadraceError] | None = None,
) -> tuple[dict[tuple[str, str], ModelEntry], dict[str, Any]]:
    """Read what `Server` and `asgi` take as models.

    Args:
        models: ``{"name" or "name:version": model}``, a list of texts ``[NAME[:VERSION]=]CONFIG``, or
            a `headrace_serve.ModelManager`. A model is the path of a configuration, a configuration as a dict, a
            `headrace.PipelineConfig`, a `headrace.Pipeline`, or a dict with ``config`` and further keys of `ModelEntry`.
            The path of a folder stands for all models in it (`headrace_models.folder_models`), a table of shares is an alias.
        only: The name of the one model that is read. None: all models.
        may_be_none: Whether there may be no model: those of a folder may come later.
        failed: Gets the errors of models that a plugin refuses, by name. None: they are raised.

    Returns:
        An entry per name and version, in the order of ``models``, and the shares of each alias.

    Raises:
        ConfigError: A name or an entry is wrong, a version of a model is given twice, or there is no model.
        SetupError: The manager of models has failed.
    """
    entries: dict[tuple[str, str], ModelEntry] = {}
    aliases: dict[str, Any] = {}
    problems: list[Problem] = []
    if isinstance(models, ModelManager):
        pairs = _managed(models, only)
    else:
        pairs = [pair for pair in _pairs(models) if only in (None, pair[0])]
    if not pairs and not may_be_none:
        hint = (
            "A folder has NAME.toml or NAME/VERSION.toml, a serving file a table [models.NAME]."
            " With --watch or --allow repository a folder may be empty at first."
        )
        raise ConfigError(Problem("serve", "there is no model to serve", hint=hint))
    refused = {name: model for name, _, model in pairs if isinstance(model, ConfigError)}
    if failed is None:
        problems += [problem for error in refused.values() for problem in error.problems]
    else:
        failed.update(refused)
    for name, version, value in [pair for pair in pairs if pair[0] not in refused]:
        if not _NAME.fullmatch(name) or name == _STATISTICS:
            hint = "Use A-Z a-z 0-9 _ . - in parts with a / between, and not 'stats' alone: NAME=CONFIG."
            problems.append(Problem("serve", f"{name!r} is no name of a model", hint=hint))
            continue
        if is_shares(value) and "config" not in value:
            aliases[name] = value
            continue
        try:
            entry = _entry(name, value, version)
        except pydantic.ValidationError as error:
            problems += _problems(name, error)
            continue
        if (name, entry.version) in entries:
            problems.append(
                Problem("serve", f"version {entry.version} of model {name!r} is there twice")
            )
        entries[name, entry.version] = entry
    if problems:
        raise ConfigError(problems)
    return entries, aliases if only is None else {}


def repositories(entries: Mapping[tuple[str, str], ModelEntry]) -> list[Any]:
    """Return what reads a model again, for each repository that a plugin has read.

    The configuration of such a model has ``repository``, its folder, and ``again(name=None, override=None)``. That returns what
    the folder says of a model by now, or of all, as `headrace.hookspecs` does. ``override`` is a configuration of a request.
    """
    configs = (entry.config for entry in entries.values())
    return [*{each.repository: each.again for each in configs if hasattr(each, "again")}.values()]


def read_models(
    texts: Sequence[str], file: str | None, problems: list[Problem] | None = None
) -> dict[str, Any]:
    """Read the models that the command line names, as texts and in a TOML file with tables ``[models.NAME]``.

    Relative paths in the file start from the folder of the file. The returned dict is an argument for
    `read_entries`.

    Args:
        texts: The texts.
        file: The file, whose table ``[memory]`` is checked, too.
        problems: Gets all that is wrong in the file, and the models without a mistake are returned. None: that is raised.

    Raises:
        ConfigError: The file cannot be read, has another shape, or a model is named twice.
    """
    models: dict[str, Any] = {}
    wrong: list[Problem] = [] if problems is None else problems
    for name, version, config in _of_texts(texts):
        place = name if version is None else f"{name}:{version}"
        if place in models:
            wrong.append(Problem("serve", f"{place!r} is named twice"))
        models[place] = config
    if file is not None:
        for name, entry in _read_file(Path(file), wrong).items():
            if name in models:
                wrong.append(Problem("serve", f"{name!r} is named by {file} too"))
            models[name] = entry
    if wrong and problems is None:
        raise ConfigError(wrong)
    return models


def _read_file(path: Path, problems: list[Problem]) -> dict[str, Any]:
    """Return the models of a file in which nothing is wrong, and add what is wrong in the others and in ``[memory]``."""
    document = read_tables(path)
    tables, right = document.get("models"), {}
    for key in [key for key in document if key not in _OF_FILE]:
        text = "it may hold only tables [models.NAME] and [memory]"
        near = nearest(key, _OF_FILE)
        problems.append(Problem("serve", text, path=key, file=str(path), suggestion=near))
    if not problems and not isinstance(tables, dict):
        problems.append(Problem("serve", "it has no table [models.NAME]", file=str(path)))
    for name, table in tables.items() if isinstance(tables, dict) else ():
        if not isinstance(table, dict) or "config" not in table:
            hint = f"It has: {', '.join(table)}." if table and isinstance(table, dict) else None
            text = f"[models.{name}] needs a key `config`"
            problems.append(Problem("serve", text, file=str(path), hint=hint))
        else:
            if isinstance(table["config"], str):
                table["config"] = str(path.parent / table["config"])
            labels = table.get("labels")
            if isinstance(labels, dict):
                table["labels"] = {
                    k: str(path.parent / v) if isinstance(v, str) else v for k, v in labels.items()
                }
            wrong = _wrong_in(name, table, path)
            problems += wrong
            if not wrong:
                right[name] = table
    if "memory" in document:
        problems += _wrong_memory(document["memory"], str(path))
    return right


def read_memory(file: str | None, parts: int = 1) -> Memory | None:
    """Read the budget of memory in the table ``[memory]`` of a TOML file. None: there is none.

    Args:
        file: The file.
        parts: How many processes share the budget.

    Raises:
        ConfigError: The file cannot be read, or the table is wrong.
    """
    document = {} if file is None else read_tables(file)
    if "memory" not in document:
        return None
    table = document["memory"]
    if problems := _wrong_memory(table, file):
        raise ConfigError(problems)
    return Memory(**_memory_settings(table), parts=parts)


def _memory_settings(table: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments of `Memory` for a table ``[memory]``."""
    budget = {key: value for key, value in table.items() if key != "min_stay_s"}
    return {"budget": budget, **{key: table[key] for key in table.keys() - budget}}


def _wrong_memory(table: Any, file: str | None) -> list[Problem]:
    if not isinstance(table, dict):
        text = 'it is a table [memory], as in "cuda:0" = "20 GiB"'
        return [Problem("serve", text, path="memory", file=file)]
    problems: list[Problem] = []
    for key, value in table.items():
        place: Any = {"path": f"memory.{key}", "file": file}
        if key not in _OF_MEMORY and not _DEVICE.fullmatch(key):
            near, hint = nearest(key, _OF_MEMORY), _KEYS_OF_MEMORY
            text = "there is no such key"
            problems.append(Problem("serve", text, **place, suggestion=near, hint=hint))
            continue
        try:
            Memory(**_memory_settings({key: value}))
        except ConfigError as error:
            problems += [replace(problem, **place) for problem in error.problems]
    return problems


def _wrong_in(name: str, table: dict[str, Any], path: Path) -> list[Problem]:
    """Check one model of a file, so that the problems name the file."""
    try:
        ModelEntry.model_validate(table)
    except pydantic.ValidationError as error:
        return _problems(f"models.{name}", error, str(path))
    return []


def _pairs(models: Any) -> list[tuple[str, str | None, Any]]:
    """Return name, version (None: not given) and model of each entry."""
    if isinstance(models, (str, Path)):
        models = [models]
    if hasattr(models, "items"):
        items: Mapping[str, Any] = models
        return [(*_split(name), value) for name, value in items.items()]
    listed = list(models) if isinstance(models, Iterable) else [models]
    for model in listed:
        if not isinstance(model, (str, Path)):
            hint = "They are a list of texts [NAME[:VERSION]=]CONFIG, or a dict of configurations by name."
            raise ConfigError(Problem("serve", f"{model!r:.80} names no model", hint=hint))
    return _of_texts(listed)


def _managed(manager: ModelManager, only: str | None) -> list[tuple[str, str | None, Any]]:
    """Return name, version and pipeline of each model of a manager.

    Raises:
        SetupError: The manager has raised an error, or gives no versions by name.
    """
    models: list[tuple[str, str | None, Any]] = []
    try:
        states: Any = manager.status() if hasattr(manager, "status") else {}
        for name, versions in manager.versions().items():
            if only not in {None, name}:
                continue
            known = states.get(name, {}).get("versions", {})
            for version in versions:
                late = only is None and known.get(version, {}).get("state", "ready") != "ready"
                if late:
                    models.append((name, version, Later(manager)))
                    continue
                with leased(manager, name, version) as (pipe, _):
                    models.append((name, version, pipe))
    except HeadraceError:
        raise
    except Exception as error:
        text = f"the manager of models failed: {type(error).__name__}: {error}"
        hint = "versions() gives {name: [version, ...]}, and pipeline(name, version) a headrace.Pipeline."
        raise SetupError(text, hint=hint) from error
    return models


def _split(name: str) -> tuple[str, str | None]:
    head, colon, version = str(name).partition(":")
    return head, version if colon else None


def _of_texts(texts: Iterable[Any]) -> list[tuple[str, str | None, Any]]:
    """Return name, version and model of each text; of a folder those of all models in it."""
    models: list[tuple[str, str | None, Any]] = []
    for named in map(str, texts):
        text = str(headrace.plugins.located(named))
        there = os.path.exists(text)  # noqa: PTH110 - False for texts too long for a path
        if there and (os.path.isdir(text) or headrace.plugins.reads(text)):  # noqa: PTH112
            models += [(*_split(name), model) for name, model in _models_in(text).items()]
        else:
            models.append(_of_text(text))
    return models


def _models_in(folder: str) -> dict[str, Any]:
    """Return the models of a folder. In the place of one that a plugin refuses is its error."""
    try:
        return folder_models(folder)
    except ConfigError as error:
        if not hasattr(error, "others"):
            raise
        return {**error.others, **getattr(error, "refused", {})}


def _of_text(text: str) -> tuple[str, str | None, Any]:
    """Return name, version and configuration of a text: ``[NAME[:VERSION]=]``, then a path or an expression."""
    matched = None if os.path.exists(text) else _NAMED.fullmatch(text)  # noqa: PTH110
    name, version, config = matched.groups() if matched else (None, None, text)
    if _EXPRESSION.match(config) and not os.path.exists(config):  # noqa: PTH110
        return name or (config if _NAME.fullmatch(config) else "main"), version, {"backend": config}
    return name or Path(config).stem, version, config


def _entry(name: str, value: Any, version: str | None) -> ModelEntry:
    said = {} if version is None else {"version": version}
    if isinstance(value, ModelEntry):
        return value
    if isinstance(value, dict) and "config" in value and "backend" not in value:
        if version is not None and str(value.get("version", version)) != version:
            both = f"the version of model {name!r} is {version!r} in its name, and {value['version']!r}"
            raise ConfigError(Problem("serve", both))
        return ModelEntry.model_validate({**value, **said})
    return ModelEntry.model_validate({"config": value, **said})


def _problems(name: str, error: pydantic.ValidationError, file: str | None = None) -> list[Problem]:
    kinds: dict[Any, type[pydantic.BaseModel]] = {
        "exchange": Exchange,
        "inputs": InputEntry,
        "outputs": OutputEntry,
        "request": FieldEntry,
    }
    return [
        problem_of(name, each, kinds.get(each["loc"][0] if each["loc"] else "", ModelEntry), file)
        for each in error.errors()
    ]
