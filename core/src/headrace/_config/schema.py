"""A JSON Schema of configurations, for editors: node keys and the options of known backends."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from headrace._config.nodekeys import EXPRESSION_KEYS, GlobalKeys, NodeKeys
from headrace._registry import registry
from headrace.errors import PluginError

if TYPE_CHECKING:
    from pydantic import BaseModel

__all__ = ["json_schema"]

_PLACEHOLDER = {"type": "string", "pattern": r"\$\{"}
"""A text with a placeholder may stand for any value."""

_TEXTS = {"type": "array", "items": {"type": "string"}}

_TARGETS = {"anyOf": [{"type": "string"}, {**_TEXTS, "minItems": 1}]}

_LINK_KEYS: dict[str, dict[str, Any]] = {
    "next": {
        "description": "The nodes that come next: names with commas, or a list.",
        "anyOf": [{"type": "string"}, _TEXTS],
    },
    "map": {
        "description": "What comes from which node: a[result:data], or per node a table of sources "
        "and targets.",
        "anyOf": [
            {"type": "string"},
            {
                "type": "object",
                "additionalProperties": {"type": "object", "additionalProperties": _TARGETS},
            },
        ],
    },
    "or": {
        "description": "Whether the node runs only where the one before it gave no result.",
        "default": False,
        "anyOf": [{"type": "boolean"}, _PLACEHOLDER],
    },
    "each": {
        "description": "The key of a list, once per element of which the node runs, and the key "
        "that elements go to: 'key' or 'key:target'.",
        "type": "string",
    },
}
"""The keys that link a node to others."""

_EACH_ERRORS = {
    "description": "Whether an element that fails fails the request, or leaves none.",
    "default": "fail",
    "anyOf": [{"enum": ["fail", "none"]}, _PLACEHOLDER],
}


def json_schema() -> dict[str, Any]:
    """Give a JSON Schema (draft 2020-12) of the configuration.

    Options of all backends that can be imported here are listed as keys of nodes. Further keys are
    allowed: which of them a node may have depends on its expressions, and `check` knows.
    """
    definitions: dict[str, Any] = {}
    options = _option_keys(definitions)
    shared = {key: value for key, value in options.items() if "::" not in key}
    own_keys = {**shared, **_keys_of(NodeKeys, definitions), "each_errors": _EACH_ERRORS}
    node_keys = {**own_keys, **_LINK_KEYS}
    global_keys = {**own_keys, **_keys_of(GlobalKeys, definitions)}
    definitions["node"] = {
        "type": "object",
        "description": "A node: its own keys, and the options of its backends.",
        "properties": node_keys,
        "patternProperties": {"::": {"description": "An option of the backend before '::'."}},
    }
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Headrace configuration",
        "type": "object",
        "properties": {
            **global_keys,
            "extends": {
                "description": "Configurations that this one is laid over; later ones win.",
                "anyOf": [{"type": "string"}, _TEXTS],
            },
            "import": {
                "description": "Python files and modules that register backends.",
                **_TEXTS,
            },
            "global": {
                "description": "Defaults of all nodes, and keys of the whole pipeline.",
                "type": "object",
                "properties": global_keys,
            },
            "define": {
                "description": "Names that stand for expressions.",
                "type": "object",
                "additionalProperties": {"type": "string"},
            },
        },
        "if": {"required": ["backend"], "properties": {"backend": {"type": "string"}}},
        "else": {
            "additionalProperties": {
                "if": {"type": "object"},
                "then": {"$ref": "#/$defs/node"},
            }
        },
        "$defs": definitions,
    }


def _keys_of(model: type[BaseModel], definitions: dict[str, Any]) -> dict[str, Any]:
    """Give the schemas of the fields of a model, each also as a text with a placeholder."""
    schema = model.model_json_schema(ref_template="#/$defs/{model}")
    definitions.update(schema.get("$defs", {}))
    found = {}
    for key, value in schema.get("properties", {}).items():
        described = {k: value[k] for k in ("description", "default") if k in value}
        rest = {k: v for k, v in value.items() if k not in (*described, "title")}
        if key in EXPRESSION_KEYS:
            found[key] = {**described, **rest}
        else:
            found[key] = {**described, "anyOf": [rest, _PLACEHOLDER]}
    return found


def _option_keys(definitions: dict[str, Any]) -> dict[str, Any]:
    """Give the options of all backends by key; of several with one key any may be meant."""
    offers: dict[str, list[dict[str, Any]]] = {}
    for name in registry.names():
        for spec in registry.find(name):
            try:
                keys = _keys_of(spec.load().Options, definitions)
            except (PluginError, ValueError, TypeError):
                continue  # it cannot be imported, or an option has no JSON form
            for key, schema in keys.items():
                described = f"{spec.name}: {schema.get('description', '')}".strip(": ")
                offers.setdefault(key, []).append({**schema, "description": described})
    return {key: _any_of(schemas) for key, schemas in sorted(offers.items())}


def _any_of(schemas: list[dict[str, Any]]) -> dict[str, Any]:
    unique: list[dict[str, Any]] = []
    for schema in schemas:
        if schema not in unique:
            unique.append(schema)
    if len(unique) == 1:
        return unique[0]
    return {"description": "\n".join(s["description"] for s in unique), "anyOf": unique}
