"""What a model repository stands for: the tables of a serving file."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Final

from headrace.errors import ConfigError, Problem
from headrace_triton.checking import check_ensemble
from headrace_triton.reading import Model, read_model

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

__all__ = ["ServedModel", "read_repository", "tables_of"]

logger = logging.getLogger("headrace.triton")

_told: Final[set[str]] = set()
"""The warnings that were logged: a repository that is watched is read again and again."""


class ServedModel(dict[str, Any]):
    """The pipeline of one version, which also tells the server of the configuration that it comes from.

    Attributes:
        configuration: The configuration as Triton prints it.
    """

    def __init__(self, model: Model, version: int) -> None:
        super().__init__(model.pipeline(version))
        self._model, self._version = model, version
        self.configuration = model.printed()

    def changed(self, override: Mapping[str, Any]) -> ServedModel:
        """Return the model with other instances and batches: ``max_batch_size``, ``instance_group``, ``dynamic_batching``.

        Raises:
            ConfigError: The configuration has another field, or a wrong value.
        """
        return ServedModel(self._model.changed(override), self._version)


def tables_of(folder: Path) -> dict[str, Any]:
    """Return ``{"models": {...}}`` for the models of a repository; see `headrace.hookspecs.headrace_readers`.

    Raises:
        ConfigError: A configuration cannot be read, or asks for what there is not. It has the problems of all models.
    """
    models = read_repository(folder)
    for problem in [one for model in models.values() for one in model.warnings]:
        if str(problem) not in _told:
            _told.add(str(problem))
            logger.warning("%s", problem)
    return {
        "models": {
            f"{name}:{version}": {"config": ServedModel(model, version), **model.told()}
            for name, model in models.items()
            for version in sorted(model.versions)
        }
    }


def read_repository(folder: Path) -> dict[str, Model]:
    """Return the models of a repository by name.

    Raises:
        ConfigError: As `tables_of` does.
    """
    problems: list[Problem] = []
    models: dict[str, Model] = {}
    for path in sorted(folder.iterdir()):
        if path.is_dir() and (
            (path / "config.pbtxt").exists() or next(path.glob("[1-9]*/*"), None)
        ):
            try:
                models[path.name] = read_model(path)
            except ConfigError as error:
                problems += error.problems
    for model in [one for one in models.values() if one.backend == "ensemble"]:
        try:
            check_ensemble(model, models)
        except ConfigError as error:
            problems += error.problems
    if problems:
        raise ConfigError(problems)
    return models
