"""What a model repository stands for: the tables of a serving file."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Final

from headrace.errors import ConfigError, Problem
from headrace_triton.checking import check_ensemble
from headrace_triton.comparing import check_built
from headrace_triton.reading import Model, read_model

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

__all__ = ["ServedModel", "read_repository", "tables_of"]

logger = logging.getLogger("headrace.triton")

_told: Final[set[str]] = set()
"""The warnings that were logged: a repository that is watched is read again and again."""


class RefusedModelsError(ConfigError):
    """Some models of a repository are wrong.

    Attributes:
        refused: The error of each, by its name.
        others: What a serving file says of the other models.
    """

    def __init__(self, errors: Mapping[str, ConfigError], others: dict[str, Any]) -> None:
        super().__init__([problem for error in errors.values() for problem in error.problems])
        self.refused, self.others = errors, others


class ServedModel(dict[str, Any]):
    """The pipeline of one version, which also tells the server of the configuration that it comes from.

    Attributes:
        repository: The folder of the repository.
        files: The file that the configuration is written in.
        configuration: The configuration as Triton prints it.
    """

    def __init__(self, model: Model, version: int) -> None:
        super().__init__(model.pipeline(version))
        self.repository = model.folder.parent
        self.files = {model.folder / "config.pbtxt"}
        self.configuration = model.printed()
        self._model = model

    def __eq__(self, other: object) -> bool:
        same = isinstance(other, ServedModel) and self.configuration == other.configuration
        return same and super().__eq__(other)

    __hash__ = None

    def check_built(self, described: Mapping[str, Any]) -> None:
        """Check what the pipeline says of itself against the configuration: see `headrace_triton.comparing`.

        Args:
            described: What ``describe()`` of the pipeline gives.

        Raises:
            ConfigError: They contradict each other.
        """
        (node,) = described["nodes"].values()
        tree = node["tree"]
        while tree["children"]:
            tree = tree["children"][-1]
        if isinstance(tree["built"], dict):
            check_built(self._model, tree["built"])

    def again(self, name: str | None = None, override: Any = None) -> dict[str, Any]:
        """Return what a serving file says of a model by now; nothing if it is not there.

        Args:
            name: The model. Others may be broken. None: all models, as `tables_of` reads them.
            override: What a request says: ``max_batch_size``, ``instance_group`` and ``dynamic_batching`` may be others.

        Raises:
            ConfigError: The configuration is wrong, or ``override`` changes something else.
            InputError: ``override`` holds values that there are not.
        """
        if name is None:
            tables: dict[str, Any] = tables_of(self.repository)["models"]
            return tables
        models, errors = _read(self.repository, name)
        if name in errors:
            raise errors[name]
        if name not in models:
            return {}
        return _served(models[name] if override is None else models[name].changed(override))


def tables_of(folder: Path) -> dict[str, Any]:
    """Return ``{"models": {...}}`` for the models of a repository; see `headrace.hookspecs`.

    Raises:
        ConfigError: A configuration cannot be read, or asks for what there is not. It has the problems of all models.
    """
    models = read_repository(folder)
    warnings = [warning for model in models.values() for warning in model.warnings]
    for text in map(str, map(ConfigError, warnings)):
        if text not in _told:
            _told.add(text)
            logger.warning("%s", text)
    return {"models": _served_all(models)}


def _served_all(models: Mapping[str, Model]) -> dict[str, Any]:
    return {key: entry for model in models.values() for key, entry in _served(model).items()}


def _served(model: Model) -> dict[str, Any]:
    return {
        f"{model.name}:{version}": {"config": ServedModel(model, version), **model.told()}
        for version in sorted(model.versions)
    }


def read_repository(folder: Path) -> dict[str, Model]:
    """Return the models of a repository by name.

    Raises:
        ConfigError: As `tables_of` does.
    """
    models, errors = _read(folder)
    if errors:
        raise RefusedModelsError(errors, _served_all(models))
    return models


def _read(
    folder: Path, only: str | None = None
) -> tuple[dict[str, Model], Mapping[str, ConfigError]]:
    """Return the models, and the errors of those that are wrong.

    Args:
        folder: The repository.
        only: The model that is wanted. What it calls is read too, where it is an ensemble. None: all models.
    """
    models: dict[str, Model] = {}
    errors: dict[str, ConfigError] = {}
    todo = [path.name for path in sorted(folder.iterdir())] if only is None else [only]
    while todo:
        name = todo.pop(0)
        if name in models or name in errors or not _is_model(folder, name):
            continue
        try:
            models[name] = read_model(folder / name)
        except ConfigError as error:
            errors[name] = error
        except OSError as error:  # it is being removed
            problem = f"cannot read the model: {error.strerror}"
            errors[name] = ConfigError(Problem("triton", problem, file=str(folder / name)))
        else:
            todo += models[name].called()
    for name in [name for name, model in models.items() if model.backend == "ensemble"]:
        try:
            check_ensemble(models[name], models, {*errors})
        except ConfigError as error:
            errors[name] = error
    return models, errors


def _is_model(folder: Path, name: str) -> bool:
    path = folder / name
    return path.parent == folder and (
        (path / "config.pbtxt").exists() or next(path.glob("[1-9]*/model.*"), None) is not None
    )
