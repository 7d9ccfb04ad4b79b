"""From an import path ``module:Name`` to what it names, with errors that say what to do."""

from __future__ import annotations

import importlib
import re
from typing import Any

from headrace.errors import MissingDependencyError, PluginLoadError

_POINT = re.compile(r"\s*([\w.]+)\s*(?::\s*([\w.]+)\s*)?(?:\[[^\[\]]*\]\s*)?")


def plain_path(path: str) -> str:
    """Give an import path without the blanks and extras that an entry point may have.

    ``odd : Odd [gpu]`` is ``odd:Odd``; what is no import path stays as it is.

    Source:
        The entry points specification of packaging.python.org, "File format".
    """
    match = _POINT.fullmatch(path)
    if match is None:
        return path.strip()
    return f"{match[1]}:{match[2]}" if match[2] else match[1]


def found(path: str) -> Any:
    """Import ``module`` or ``module:attribute``."""
    path = plain_path(path)
    module, _, attribute = path.partition(":")
    one: Any = importlib.import_module(module)
    for part in attribute.split(".") if attribute else ():
        one = getattr(one, part)
    return one


def library_missing(error: BaseException, path: str) -> str | None:
    """Give the module that an import lacks, when it is another than the one that is imported."""
    if not isinstance(error, ModuleNotFoundError) or not error.name:
        return None
    module = path.partition(":")[0]
    return None if module == error.name or module.startswith(f"{error.name}.") else error.name


def load(path: str, distribution: str, what: str = "") -> Any:
    """Import ``module:attribute`` of a plugin.

    Args:
        path: The import path.
        distribution: Who brings it.
        what: What it is, for the error: ``the backend 'ResizeMat'``.

    Raises:
        PluginLoadError: It cannot be imported.
        MissingDependencyError: It needs a library that is not installed.
    """
    about = f"{what} cannot be imported from {path!r}" if what else f"cannot import {path!r}"
    try:
        return found(path)
    except (Exception, SystemExit) as error:
        missing = library_missing(error, path)
        if missing is not None:
            raise MissingDependencyError(
                f"{about}: {error}",
                distribution=distribution,
                hint=f"Install {missing!r}, or install {distribution} again.",
            ) from error
        raise PluginLoadError(
            f"{about}: {type(error).__name__}: {error}",
            distribution=distribution,
            hint="See `headrace plugins doctor`.",
        ) from error
