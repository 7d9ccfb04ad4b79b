"""What the parts of a plan have in common.

Nobody changes them once planned, and JSON can hold them.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from functools import cache
from numbers import Integral, Real
from pathlib import Path, PurePath
from typing import Any, Literal

from pydantic import BaseModel
from pydantic_core.core_schema import is_instance_schema

from headrace._run.contract.settings import Links
from headrace.errors import Problem

_SCHEMA = Path(__file__).with_name("plan_schema.json")
_ATTRIBUTES = {
    ("Element", "options"): "values",
    ("Element", "prefixes"): "prefix_texts",
    ("NodePlan", "keys"): "values",
    ("NodePlan", "auto"): "auto_reason",
    ("Links", "or"): "otherwise",
}
"""The attribute of a key of the JSON, by class and key, where its name is another one."""


class Data:
    """Base of the parts of a plan. Its JSON has the keys that the schema has."""

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: Any) -> Any:
        return is_instance_schema(cls)  # a field of a model takes a plan as it is

    def _settle(self, **values: Any) -> None:
        """Set what the planner learns later; nobody else changes a plan."""
        vars(self).update(values)

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain data for JSON. A key is left out where it may be and says nothing."""
        return to_dict(self, {})


@dataclass(frozen=True)
class Value(Data):
    """The value of a key or an option, and where it comes from.

    Attributes:
        value: The value, in a form that JSON can hold: a path is its text.
        origin: ``inline`` (args of an expression), ``node`` (a key of the node), ``global`` or
            ``default``.
    """

    value: Any
    origin: Literal["inline", "node", "global", "default"]


def read_schema() -> dict[str, Any]:
    """Return the JSON Schema of a plan."""
    schema: dict[str, Any] = json.loads(_SCHEMA.read_text(encoding="utf-8"))
    return schema


_schema = cache(read_schema)


def to_dict(part: Any, known: Mapping[str, Any]) -> dict[str, Any]:
    """Return the plain data of a part of a plan, of which some values are known."""
    plain, name = {}, type(part).__name__
    shape = _schema()["$defs"].get(name, _schema())
    for key in shape["properties"]:
        attribute = _ATTRIBUTES.get((name, key), key)
        value = known[key] if key in known else as_json(getattr(part, attribute))
        if value or key in shape.get("required", ()):
            plain[key] = value
    return plain


def as_json(value: Any) -> Any:
    """Return a value of a plan as plain data."""
    if isinstance(value, (Data, Problem)):
        return value.to_dict()
    if isinstance(value, Links):
        return to_dict(value, {})
    if isinstance(value, Mapping):
        return {key: as_json(part) for key, part in value.items()}
    return [as_json(part) for part in value] if isinstance(value, (list, tuple)) else value


def plain_copy(value: Any) -> Any:
    """Return a value in a form that JSON can hold.

    Numbers of libraries, enumerations and models are replaced, and all else by its ``repr``.
    """
    if isinstance(value, (Enum, BaseModel)):
        return plain_copy(value.value if isinstance(value, Enum) else value.model_dump())
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, Integral):
        return int(value)
    if isinstance(value, Real):
        return float(value) if math.isfinite(value) else repr(float(value))
    if isinstance(value, dict):
        return {str(key): plain_copy(part) for key, part in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [plain_copy(part) for part in value]
    return str(value) if isinstance(value, PurePath) else repr(value)
