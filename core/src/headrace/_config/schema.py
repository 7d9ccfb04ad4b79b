"""A JSON Schema of configurations, for editors: node keys and the options of known backends."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pydantic.errors import PydanticUserError

from headrace._config.nodekeys import EXPRESSION_KEYS, NODE_ONLY, GlobalKeys, NodeKeys
from headrace._registry import registry
from headrace.errors import PluginError

if TYPE_CHECKING:
    from pydantic import BaseModel

__all__ = ["json_schema"]

_PLACEHOLDER = {"type": "string", "pattern": r"\$\{"}
"""A text with a placeholder may stand for any value."""

_RESERVED = "extends|import|global|define"
_MAKES_A_NODE = ("backend", "init", "node_entrypoint")
_SINGLE = {"required": ["backend"], "properties": {"backend": {"type": "string"}}}
_UNKNOWN = {"enum": ["no node has such a key, and no installed backend such an option"]}
"""What a value under an unknown key must be: an editor shows this text at the key, while it shows
``additionalProperties: false`` at everything in the table."""
_CLOSED = {
    "if": _SINGLE,
    "then": {"$ref": "#/$defs/known_main"},
    "else": {"$ref": "#/$defs/known_nodes"},
}
_TEXTS = {"type": "array", "items": {"type": "string"}}
_TABLE = {
    "type": "object",
    "minProperties": 1,
    "additionalProperties": {
        "type": "object",
        "minProperties": 1,
        "additionalProperties": {"anyOf": [{"type": "string"}, {**_TEXTS, "minItems": 1}]},
    },
}
_LINKS: dict[str, dict[str, Any]] = {
    "next": {
        "description": "The nodes that come after this one: a, or a,b, or a list.",
        "anyOf": [{"type": "string"}, _TEXTS],
    },
    "map": {
        "description": "What this node gets: node[source:target,...],... or a table per node.",
        "anyOf": [{"type": "string"}, _TABLE],
    },
    "or": {
        "description": "Run only where the node before gave no result.",
        "default": False,
        "type": "boolean",
    },
    "each": {
        "description": "Run once per element of the list under this key: key, or key:target.",
        "type": "string",
    },
    "each_errors": {
        "description": "An element that fails makes the request fail, or leaves none.",
        "default": "fail",
        "enum": ["fail", "none"],
    },
}
"""The keys that link nodes; `headrace._plan.links` reads them."""


def json_schema() -> dict[str, Any]:
    """Give a JSON Schema (draft 2020-12) of the configuration.

    Options of all backends that can be imported here are listed as keys of nodes; which of them a
    node may have depends on its expressions, and `check` knows. Other keys are refused, unless the
    configuration has ``import`` or ``extends``, whose backends are not known here, or a backend that
    is installed cannot be imported. Numbers and flags that are written as texts are refused,
    although they can be read.
    """
    definitions: dict[str, Any] = {}
    options, all_known = _option_keys(definitions)
    own = {**options, **_keys_of(NodeKeys, definitions)}
    whole = _keys_of(GlobalKeys, definitions)
    links = {key: _or_placeholder(schema) for key, schema in _LINKS.items()}
    shared = {key: schema for key, schema in links.items() if key not in NODE_ONLY}
    scoped = {"::": {"description": "An option of the backend before '::'."}}
    definitions["node"] = {
        "type": "object",
        "description": "A node: its own keys, and the options of its backends.",
        "properties": {**own, **links, **dict.fromkeys(whole, _elsewhere("to [global]"))},
        "patternProperties": scoped,
    }
    definitions["global"] = {
        "type": "object",
        "description": "Defaults of all nodes, and keys of the whole pipeline.",
        "properties": {
            **own,
            **shared,
            **whole,
            **dict.fromkeys(NODE_ONLY, _elsewhere("to nodes")),
        },
        "patternProperties": scoped,
    }
    definitions["main"] = {
        "description": "One node without a table of its own: tables are options.",
        "properties": {**own, **links, **whole},
        "patternProperties": {
            **scoped,
            f"^(?!({_RESERVED})$)": {"not": {"type": "object", "required": ["backend"]}},
        },
    }
    definitions["nodes"] = {
        "description": "Each table is a node; other keys belong to [global].",
        "properties": {
            **{key: _unless_table(key) for key in definitions["global"]["properties"]},
            **dict.fromkeys(_RESERVED.split("|"), True),
        },
        "patternProperties": {
            f"^(?!({_RESERVED})$)[A-Za-z][A-Za-z0-9_-]*$": {
                "if": {"type": "object"},
                "then": {"$ref": "#/$defs/node"},
            }
        },
        "additionalProperties": {"not": {"type": "object"}},
    }
    _add_closed(definitions)
    open_ended = {"anyOf": [{"required": ["import"]}, {"required": ["extends"]}]}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Headrace configuration",
        "type": "object",
        "properties": {
            "extends": {
                "description": "Configurations that this one is laid over; later ones win.",
                "anyOf": [{"type": "string"}, _TEXTS],
            },
            "import": {"description": "Python files and modules that register backends.", **_TEXTS},
            "global": {"$ref": "#/$defs/global"},
            "define": {
                "description": "Names that stand for expressions.",
                "type": "object",
                "additionalProperties": {"type": "string"},
            },
        },
        "if": _SINGLE,
        "then": {"$ref": "#/$defs/main"},
        "else": {"$ref": "#/$defs/nodes"},
        **({"allOf": [{"if": {"not": open_ended}, "then": _CLOSED}]} if all_known else {}),
        "$defs": definitions,
    }


def _add_closed(definitions: dict[str, Any]) -> None:
    """Add what refuses unknown keys and tables that are no nodes: misspelt ones."""
    reserved = dict.fromkeys(_RESERVED.split("|"), True)
    scoped = {"::": True}
    keys = dict.fromkeys((*definitions["node"]["properties"], *GlobalKeys.model_fields), True)
    definitions["known_keys"] = {
        "properties": keys,
        "patternProperties": scoped,
        "additionalProperties": _UNKNOWN,
    }
    known = {"$ref": "#/$defs/known_keys"}
    definitions["known_main"] = {
        "properties": {**keys, **reserved, "global": known},
        "patternProperties": scoped,
        "additionalProperties": _UNKNOWN,
    }
    definitions["known_nodes"] = {
        "properties": {**keys, **reserved, "global": known},
        "patternProperties": scoped,
        "additionalProperties": {"allOf": [{"type": "object"}, known]},
    }
    makes_a_node = {"anyOf": [{"required": [key]} for key in _MAKES_A_NODE]}
    definitions["whole_nodes"] = {
        "properties": {**keys, **reserved},
        "patternProperties": scoped,
        "additionalProperties": makes_a_node,
    }
    in_global = {"required": ["global"], "properties": {"global": makes_a_node}}
    definitions["known_nodes"]["if"] = {"not": {"anyOf": [makes_a_node, in_global]}}
    definitions["known_nodes"]["then"] = {"$ref": "#/$defs/whole_nodes"}


def _elsewhere(where: str) -> dict[str, Any]:
    return {"description": f"Belongs {where}.", "not": {}}


def _unless_table(key: str) -> dict[str, Any]:
    """Give the schema of a key at the top beside tables, which is a node if it is one itself."""
    return {"if": {"not": {"type": "object"}}, "then": {"$ref": f"#/$defs/global/properties/{key}"}}


def _or_placeholder(schema: dict[str, Any]) -> dict[str, Any]:
    """Let a value be a text with a placeholder as well; what describes it stays outside."""
    described: dict[str, Any] = {k: schema[k] for k in ("description", "default") if k in schema}
    rest = {k: v for k, v in schema.items() if k not in (*described, "title")}
    return {**described, "anyOf": [rest, _PLACEHOLDER]}


def _keys_of(model: type[BaseModel], definitions: dict[str, Any]) -> dict[str, Any]:
    """Give the schemas of the fields of a model, each also as a text with a placeholder."""
    schema = model.model_json_schema(ref_template="#/$defs/{model}")
    definitions.update(schema.get("$defs", {}))
    found = {}
    for key, value in schema.get("properties", {}).items():
        plain = {k: v for k, v in value.items() if k != "title"}
        found[key] = plain if key in EXPRESSION_KEYS else _or_placeholder(value)
    return found


def _option_keys(definitions: dict[str, Any]) -> tuple[dict[str, Any], bool]:
    """Give the options of all backends by key, and whether these are all.

    Of several backends with one key any may be meant.
    """
    offers: dict[str, list[dict[str, Any]]] = {}
    all_known = True
    for name in registry.names():
        for spec in registry.find(name):
            try:
                keys = _keys_of(spec.load().Options, definitions)
            except (PluginError, PydanticUserError, ValueError, TypeError):
                all_known = False  # it cannot be imported, or an option has no JSON form
                continue
            for key, schema in keys.items():
                described = f"{spec.name}: {schema.get('description', '')}".strip(": ")
                offers.setdefault(key, []).append({**schema, "description": described})
    return {key: _any_of(schemas) for key, schemas in sorted(offers.items())}, all_known


def _any_of(schemas: list[dict[str, Any]]) -> dict[str, Any]:
    unique: list[dict[str, Any]] = []
    for schema in schemas:
        if schema not in unique:
            unique.append(schema)
    if len(unique) == 1:
        return unique[0]
    return {"description": "\n".join(s["description"] for s in unique), "anyOf": unique}
