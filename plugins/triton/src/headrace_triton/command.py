"""``headrace triton``: writes a model repository as the TOML files that it stands for."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

import headrace
from headrace.errors import ConfigError, HeadraceError
from headrace_cli.for_plugins import OK, print_data, print_message
from headrace_formats import write_toml
from headrace_triton.comparing import DESCRIBE_THEMSELVES
from headrace_triton.pbtxt import Place
from headrace_triton.repository import ServedModel, read_repository

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from headrace.errors import Problem
    from headrace_triton.reading import Model

__all__ = ["triton"]


def triton(
    repository: Annotated[
        Path, typer.Argument(metavar="REPOSITORY", help="The model repository of Triton.")
    ],
    output: Annotated[
        Path, typer.Option("-o", "--output", metavar="DIR", help="A new folder for the files.")
    ] = Path("served"),
) -> int:
    """Write a model repository as TOML: serving.toml, and a pipeline for each version of a model.

    Each line names the place that it comes from. Files of models stay where they are. What means something else here is
    printed. A configuration that contradicts its model is refused.

    \b
    Examples:
      headrace triton repository -o served
      headrace serve --models served/serving.toml
    """  # noqa: D301 - typer keeps the lines after a backspace character
    at = Place(str(repository))
    if not repository.is_dir():
        raise ConfigError(at.problem("there is no such folder"))
    if output.exists() and (not output.is_dir() or any(output.iterdir())):
        raise ConfigError(Place(str(output)).problem("it is there already", "Name a new folder."))
    models = read_repository(repository)
    if not models:
        raise ConfigError(
            at.problem("there is no model in it", "One is a folder with config.pbtxt.")
        )
    _compare(models)
    serving = [f"# The models of {repository.name}, for headrace serve --models."]
    for name, model in models.items():
        for problem in model.warnings:
            print_message(f"warning: {ConfigError(problem)}")
        for version in sorted(model.versions):
            folder = output / name
            folder.mkdir(parents=True, exist_ok=True)
            lines = [*_pipeline(model, version, folder)]
            (folder / f"{version}.toml").write_text("\n".join(lines) + "\n", encoding="utf-8")
            serving += ["", *_served(model, version, output)]
    (output / "serving.toml").write_text("\n".join(serving) + "\n", encoding="utf-8")
    print_data(str(output / "serving.toml"))
    return OK


def _compare(models: Mapping[str, Model]) -> None:
    """Build the models that describe themselves, and compare each with its configuration, as a server does.

    Raises:
        ConfigError: Some contradict it. It has all problems.
    """
    problems: list[Problem] = []
    writers = [model for model in models.values() if model.backend in DESCRIBE_THEMSELVES]
    pairs = [(model, version) for model in writers for version in model.versions]
    for model, version in pairs:
        served = ServedModel(model, version)
        try:
            with headrace.pipe(served) as pipe:
                described = pipe.describe()
        except HeadraceError as error:
            problem = f"version {version} cannot be built here, so it is not compared: {error}"
            print_message(f"warning: {ConfigError(model.config.place.problem(problem))}")
            continue
        try:
            served.check_built(described)
        except ConfigError as error:
            problems += error.problems
    if problems:
        raise ConfigError(problems)


def _pipeline(model: Model, version: int, folder: Path) -> Iterator[str]:
    for key, source in model.pipeline(version).items():
        value = source
        if key == "model":
            value = _relative(source, folder)
        elif key == "first_states":
            value = {name: _relative(file, folder) for name, file in source.items()}
        usual = model.config.at("default_model_filename") if key == "model" else None
        yield _line(key, value, model.origins.get(key, usual))


def _served(model: Model, version: int, output: Path) -> Iterator[str]:
    """Yield the lines of a version in the serving file."""
    config, facts = model.config, model.told()
    title = f'models."{model.name}:{version}"'
    yield f"[{title}]"
    yield _line("config", f"{model.name}/{version}.toml", config.place)
    if "decoupled" in facts:
        yield _line("decoupled", value=True, place=config.at("model_transaction_policy"))
    if "labels" in facts:
        labels = {name: os.path.relpath(path, output) for name, path in facts["labels"].items()}
        yield _line("labels", labels, config.at("output"))
    for side in ("input", "output"):
        for index, (name, port) in enumerate(facts.get(f"{side}s", {}).items()):
            yield ""
            yield f"[{title}.{side}s.{_value(name)}]"
            for key, value in port.items():
                yield _line(key, value, config.at(side, index))


def _line(key: str, value: Any, place: Place | None) -> str:
    origin = ""
    if place is not None:
        path = Path(place.file)
        origin = f"  # {path.parent.name}/{path.name}" + (f":{place.line}" if place.line else "")
    return f"{key} = {_value(value)}{origin}"


def _value(value: Any) -> str:
    """Return a value as TOML has it in one line; a text of JSON as it is."""
    if isinstance(value, str) and '"' in value and value.isprintable() and "'" not in value:
        return f"'{value}'"
    return write_toml({"x": [value]}).strip()[len("x = [") : -1]


def _relative(path: str, folder: Path) -> str:
    return os.path.relpath(path.replace("$${", "${"), folder).replace("${", "$${")
