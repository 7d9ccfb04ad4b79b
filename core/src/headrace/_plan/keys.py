"""Checking the keys of a node or of ``[global]`` against their model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from pydantic import ValidationError

from headrace._config.nodekeys import EXPRESSION_KEYS
from headrace._plan.options import replaced
from headrace.errors import ConfigError

if TYPE_CHECKING:
    from headrace._config.document import Written
    from headrace._config.problems import Problems
    from headrace._options import Options

__all__ = ["check_keys"]

K = TypeVar("K", bound="Options")


def check_keys(
    model: type[K],
    table: dict[str, Written],
    shared: dict[str, Written],
    name: str,
    problems: Problems,
) -> tuple[K | None, dict[str, str]]:
    """Read the keys of ``model`` from ``table``, else from ``shared``.

    Returns:
        The checked keys, None when they are wrong, and per key where its value came from.
    """
    values: dict[str, Any] = {}
    places: dict[str, dict[str, Any]] = {}
    origins: dict[str, str] = {}
    wrong = False
    for key in model.model_fields:
        origins[key] = "node" if key in table else "global" if key in shared else "default"
        written = table.get(key, shared.get(key))
        if written is None:
            continue
        where = f"{name}.{key}" if key in table else f"global.{key}"
        places[key] = {"file": written.file, "path": where}
        try:
            values[key] = written.value if key in EXPRESSION_KEYS else replaced(written.value)
        except ConfigError as error:
            problems.extend(error.problems, **places[key])
            wrong = True
    try:
        keys = model.model_validate(values)
    except ValidationError as error:
        for detail in error.errors(include_url=False, include_context=False):
            key = str(detail["loc"][0]) if detail["loc"] else ""
            message = detail["msg"].removeprefix("Value error, ")
            got = f", got {detail['input']!r}" if key else ""
            place = places.get(key, {"path": name})
            problems.add("key", f"{key}: {message}{got}" if key else message, **place)
        return None, origins
    return (None if wrong else keys), origins
