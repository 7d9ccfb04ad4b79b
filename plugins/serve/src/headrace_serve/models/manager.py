"""Managers of models: users' objects that provide pipelines by name and version, instead of configurations."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import headrace
from headrace.errors import ConfigError, Problem
from headrace_models import Models

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

__all__ = ["Later", "ModelManager", "leased", "load_manager"]


@dataclass(frozen=True)
class Later:
    """The pipeline of a version that its manager builds once it is asked for it.

    Attributes:
        manager: The manager.
    """

    manager: Any


@runtime_checkable
class ModelManager(Protocol):
    """An object that provides pipelines. `headrace_serve.Server` accepts one as its models.

    The server asks the manager when it starts, when it reloads, and when a request loads a model (then only for that
    model's versions). The server never closes a manager's pipelines.

    A manager whose pipelines change by themselves has ``subscribe(listener)``, ``status()``, ``resolve(name, key=...)``,
    ``wait_async(name, timeout=...)`` and ``in`` too, as `headrace_models.Models` has them: it calls the listener with each `headrace_models.Change`, and closes no pipeline before
    the listener has returned. A version that is not ``ready`` is built at its first request, and a name may be an alias.
    """

    def versions(self) -> Mapping[str, Iterable[str]]:
        """Give the versions of each model by its name; a version is a text of digits."""

    def pipeline(self, name: str, version: str) -> headrace.Pipeline:
        """Return the pipeline of a version of a model."""


@contextmanager
def leased(manager: Any, name: str, version: str) -> Iterator[tuple[headrace.Pipeline, Any]]:
    """Give the pipeline of a version, and the version, if the manager tells it, which then may leave for another model."""
    if isinstance(manager, Models):
        with manager.lease_version(f"{name}:{version}") as leased_version:
            yield leased_version.pipe, leased_version
    else:
        yield manager.pipeline(name, version), None


def load_manager(path: str, *, allow_import: bool = True) -> ModelManager:
    """Import a manager.

    Args:
        path: ``"package.module:object"``.
        allow_import: Whether code may be imported. ``HEADRACE_IMPORT=0`` refuses it as well, as for
            the ``import`` of a configuration.

    Raises:
        ConfigError: Imports are refused, the module cannot be imported, or it has no such manager.
    """
    module, _, name = path.partition(":")
    if not module or not name.isidentifier():
        raise ConfigError(Problem("serve", f"the manager {path!r} is no package.module:object"))
    # A configuration imports the module, so that imports are refused and fail in the same way as in every
    # configuration.
    headrace.PipelineConfig.load(
        {"backend": "Identity", "import": [module]}, allow_import=allow_import
    )
    manager: Any = getattr(sys.modules[module], name, None)
    if not isinstance(manager, ModelManager):
        raise ConfigError(
            Problem(
                "serve",
                f"{path} is no manager of models",
                hint="It has the methods versions() and pipeline(name, version).",
            )
        )
    return manager
