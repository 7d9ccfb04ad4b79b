"""Checking the keys of a node or of ``[global]`` against their model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from pydantic import ValidationError

from headrace._config.nodekeys import EXPRESSION_KEYS
from headrace._config.problems import shown_value
from headrace._plan.parameters import written_key
from headrace._plan.values import nearest_choice
from headrace.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from headrace._config.document import Written
    from headrace._config.problems import Problems
    from headrace._options import Options

__all__ = ["check_keys"]

K = TypeVar("K", bound="Options")


def check_keys(
    model: type[K],
    table: Mapping[str, Written],
    shared: Mapping[str, Written],
    name: str,
    problems: Problems,
) -> tuple[K, dict[str, str]]:
    """Read the keys of ``model`` from ``table``, else from ``shared``.

    Returns:
        The checked keys, with the default in place of a value that is wrong, so that the rest can
        be checked with them; and per key where its value came from.
    """
    values: dict[str, Any] = {}
    places: dict[str, dict[str, Any]] = {}
    origins = dict.fromkeys(model.model_fields, "default")
    for key in model.model_fields:
        found = written_key(key, name, table, shared)
        if found is None:
            continue
        places[key], origins[key] = found.place(), found.origin
        if key in EXPRESSION_KEYS:
            if isinstance(found.written.value, str):  # else it is reported where it is parsed
                values[key] = found.written.value
            continue
        try:
            values[key] = found.value(problems)
        except ConfigError:
            continue
    return _checked(model, values, places, name, problems), origins


def _checked(
    model: type[K],
    values: dict[str, Any],
    places: dict[str, dict[str, Any]],
    name: str,
    problems: Problems,
) -> K:
    """Check values; those that are wrong are reported and left out."""
    try:
        return model.model_validate(values)
    except ValidationError as error:
        wrong: set[str] = set()
        for detail in error.errors(include_url=False):
            message = detail["msg"].removeprefix("Value error, ")
            if not detail["loc"]:
                among = [key for key in places if f"{key} = " in message or key == "batch_sizes"]
                wrong.update(among)
                problems.add("key", message, **places[among[-1]] if among else {"path": name})
                continue
            key = str(detail["loc"][0])
            if key not in wrong:  # one is enough of the alternatives of a type
                got = shown_value(detail["input"])
                near = nearest_choice(detail)
                problems.add("key", f"{key}: {message}, got {got}", suggestion=near, **places[key])
            wrong.add(key)
    kept = {key: value for key, value in values.items() if key not in wrong}
    return _checked(model, kept, places, name, problems) if len(kept) < len(values) else model()
