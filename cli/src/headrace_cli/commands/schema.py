"""A JSON Schema of configurations, for editors: node keys and the options of known backends."""

from __future__ import annotations

import re
from functools import partial
from json import dumps
from typing import TYPE_CHECKING, Annotated, Any

import typer
from pydantic.errors import PydanticUserError

from headrace import Options, PipelineConfig
from headrace.errors import PluginError
from headrace_cli.console import OK, print_data
from headrace_cli.names import all_plugins

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from pydantic import BaseModel

_PLACEHOLDER = {"type": "string", "pattern": r"\$\{"}
"""The schema of a text with a placeholder, which may become any value."""

_RESERVED = "extends|ignore|import|global"
_SINGLE = {"required": ["backend"], "properties": {"backend": {"type": "string"}}}
_UNKNOWN = {"enum": ["no node has such a key, and no installed backend such an option"]}
"""The schema of a value under an unknown key. An editor shows this text at the key, while it shows an
error of ``additionalProperties: false`` at the whole table."""
_CLOSED = {
    "if": _SINGLE,
    "then": {"$ref": "#/$defs/known_main"},
    "else": {"$ref": "#/$defs/known_nodes"},
}
_TEXTS = {"type": "array", "items": {"type": "string"}}
_NAMES_A_KEY = r"\b(?:Reflect|InstanceFromParam|ProxyFromParam)\s*\[\s*([A-Za-z_][A-Za-z0-9_]*)"
"""How an expression names a key of the node, which is an option of no backend."""


def schema(
    json: Annotated[
        bool, typer.Option("--json", help="Print it in one line, for programs.")
    ] = False,
) -> int:
    """Print the JSON Schema of configurations, for editors.

    It knows the keys of nodes and the options of all installed backends, policies and probes.

    \b
    Example:
      headrace schema > headrace.schema.json
    """  # noqa: D301 - typer keeps the lines after a backspace character
    print_data(dumps(json_schema(), indent=None if json else 2))
    return OK


def json_schema() -> dict[str, Any]:
    """Return a JSON Schema (draft 2020-12) of the configuration.

    Options of all backends, policies and probes that can be imported here are listed as keys of nodes.
    Which of them a node may have depends on its expressions, and only `check` knows that. Other keys are
    refused, unless the configuration has ``import`` or ``extends``, whose backends are not known here, an
    expression of it names keys by ``Reflect[key]``, or an installed backend cannot be imported. Numbers and flags that are written as texts are refused,
    although Headrace reads them.
    """
    definitions: dict[str, Any] = {}
    options, all_known = _option_keys(definitions)
    keys = {
        where: {key: _or_placeholder(schema) for key, schema in schemas.items()}
        for where, schemas in PipelineConfig.key_schemas().items()
    }
    translated = _translated_keys()
    own = {**options, **keys["node"], **translated}
    node_only, whole = keys["node_only"], keys["global"]
    whole["probes"]["examples"] = sorted(
        name for plugin in all_plugins() for name in plugin.offers["probes"]
    )
    scoped = {"::": {"description": "An option of the backend before '::'."}}
    definitions["node"] = {
        "type": "object",
        "description": "A node: its own keys, and the options of its backends.",
        "properties": {**own, **node_only, **dict.fromkeys(whole, _elsewhere("to [global]"))},
        "patternProperties": scoped,
    }
    definitions["global"] = {
        "type": "object",
        "description": "Defaults of all nodes, and keys of the whole pipeline.",
        "properties": {**own, **whole, **dict.fromkeys(node_only, _elsewhere("to nodes"))},
        "patternProperties": scoped,
    }
    definitions["main"] = {
        "description": "One node without a table of its own: tables are options.",
        "properties": {**own, **node_only, **whole},
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
    _add_closed(definitions, whole, translated)
    names_a_key = {"type": "string", "pattern": _NAMES_A_KEY}
    at_top, in_a_table = _somewhere(names_a_key), _somewhere(_somewhere(names_a_key))
    open_ended = {
        "anyOf": [{"required": ["import"]}, {"required": ["extends"]}, at_top, in_a_table]
    }
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Headrace configuration",
        "type": "object",
        "properties": {
            "extends": {
                "description": "Configurations that this one extends; later ones win.",
                "anyOf": [{"type": "string"}, _TEXTS],
            },
            "ignore": {
                "description": "Names that the readers of what this one extends shall not look at.",
                "anyOf": [{"type": "string"}, _TEXTS],
            },
            "import": {
                "description": "Python files and modules that register backends.",
                "anyOf": [{"type": "string"}, _TEXTS],
            },
            "global": {"$ref": "#/$defs/global"},
        },
        "if": _SINGLE,
        "then": {"$ref": "#/$defs/main"},
        "else": {"$ref": "#/$defs/nodes"},
        **({"allOf": [{"if": {"not": open_ended}, "then": _CLOSED}]} if all_known else {}),
        "$defs": definitions,
    }


def _add_closed(
    definitions: dict[str, Any], whole: Iterable[str], translated: Iterable[str]
) -> None:
    """Add the schemas that refuse unknown keys, and tables that are no nodes: both may be misspelt."""
    reserved = dict.fromkeys(_RESERVED.split("|"), True)
    keys = dict.fromkeys((*definitions["node"]["properties"], *whole), True)
    scoped = {f"::({'|'.join(map(re.escape, keys))})$": True}
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
    makes_a_node = {"anyOf": [{"required": [key]} for key in ("backend", *translated)]}
    definitions["whole_nodes"] = {
        "properties": {**keys, **reserved},
        "patternProperties": scoped,
        "additionalProperties": makes_a_node,
    }
    in_global = {"required": ["global"], "properties": {"global": makes_a_node}}
    definitions["known_nodes"]["if"] = {"not": {"anyOf": [makes_a_node, in_global]}}
    definitions["known_nodes"]["then"] = {"$ref": "#/$defs/whole_nodes"}


def _translated_keys() -> dict[str, Any]:
    """Return the keys that plugins translate, which may hold anything. Words begin with a capital letter."""
    return {
        key: {"description": f"Translated by {plugin.distribution} into keys of Headrace."}
        for plugin in all_plugins()
        if plugin.usable
        for key in plugin.offers["rewriters"]
        if key[:1].islower()
    }


def _somewhere(schema: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of a table in which some value fits ``schema``."""
    return {"type": "object", "not": {"additionalProperties": {"not": schema}}}


def _elsewhere(where: str) -> dict[str, Any]:
    return {"description": f"Belongs {where}.", "not": {}}


def _unless_table(key: str) -> dict[str, Any]:
    """Return the schema of a key at the top beside tables: a table under this key is a node."""
    return {"if": {"not": {"type": "object"}}, "then": {"$ref": f"#/$defs/global/properties/{key}"}}


def _or_placeholder(schema: dict[str, Any]) -> dict[str, Any]:
    """Allow a text with a placeholder as well; description and default stay at the top."""
    described: dict[str, Any] = {k: schema[k] for k in ("description", "default") if k in schema}
    rest = {k: v for k, v in schema.items() if k not in (*described, "title")}
    return {**described, "anyOf": [rest, _PLACEHOLDER]}


def _keys_of(model: type[BaseModel], definitions: dict[str, Any]) -> dict[str, Any]:
    """Return the schemas of the fields of a model, each of which also allows a text with a placeholder."""
    schema = model.model_json_schema(ref_template="#/$defs/{model}")
    definitions.update(schema.get("$defs", {}))
    return {key: _or_placeholder(value) for key, value in schema.get("properties", {}).items()}


def _option_keys(definitions: dict[str, Any]) -> tuple[dict[str, Any], bool]:
    """Return the options of all backends, policies and probes by key, and whether these are all.

    Where several have the same key, a value may fit any of them.
    """
    offers: dict[str, list[dict[str, Any]]] = {}
    all_known = True
    offered: list[tuple[str, Callable[[], Any]]] = []
    for plugin in all_plugins():
        if plugin.usable:
            offered += [(name, partial(plugin.backend, name)) for name in plugin.backends]
            for kind in ("batch_policies", "dispatch_policies", "probes", "node_keys"):
                classes = plugin.offers[kind].items()
                offered += [(name, partial(plugin.load, path)) for name, path in classes]
    for name, load in sorted(offered, key=lambda pair: pair[0]):
        try:
            options = load()
            keys = _keys_of(getattr(options, "Options", Options), definitions)
            if issubclass(options, Options):  # of a key, which is a field
                keys = {name: _keys_of(options, definitions)[name]}
        except (PluginError, PydanticUserError, ValueError, TypeError):
            all_known = False  # a class cannot be imported, or an option has no JSON form
            continue
        for key, schema in keys.items():
            described = f"{name}: {schema.get('description', '')}".strip(": ")
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
