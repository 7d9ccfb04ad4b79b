"""Tables of TOML files: read, and with their errors as problems of a configuration."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from headrace.errors import ConfigError, Problem, nearest
from headrace.plugins import read_text
from headrace_formats.mistakes import choices_of, text_of

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    import pydantic

__all__ = ["problem_of", "read_tables"]


def read_tables(path: str | Path) -> dict[str, Any]:
    """Return what a TOML file holds.

    Raises:
        ConfigError: The file cannot be read, or is no TOML.
    """
    try:
        tables: dict[str, Any] = tomllib.loads(read_text(path))
    except OSError as error:
        problem = f"cannot read it: {error.strerror}"
        raise ConfigError(Problem("serve", problem, file=str(path))) from error
    except (ValueError, RecursionError) as error:
        raise ConfigError(Problem("serve", f"this is no TOML: {error}", file=str(path))) from error
    return tables


def problem_of(
    name: str, mistake: Mapping[str, Any], kind: type[pydantic.BaseModel], file: str | None = None
) -> Problem:
    """Give the problem for one error that pydantic has found in a table.

    Args:
        name: The name of the table.
        mistake: One of the ``errors()`` of pydantic.
        kind: The pydantic model whose fields are the known keys.
        file: The file with the table. None: the table comes from no file.
    """
    path = ".".join(map(str, (name, *mistake["loc"])))
    if mistake["type"] != "extra_forbidden":
        near = nearest(str(mistake["input"]), choices_of(mistake))
        return Problem("serve", text_of(mistake), path=path, file=file, suggestion=near)
    known = kind.model_fields
    return Problem(
        "serve",
        "there is no such key",
        path=path,
        file=file,
        suggestion=nearest(str(mistake["loc"][-1]), known),
        hint=f"There are: {', '.join(known)}.",
    )
