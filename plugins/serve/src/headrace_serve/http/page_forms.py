"""The form of a model on the live page, made from its signature, its fields of JSON, or the file that it takes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

from headrace_serve.http.plain_route import file_input

if TYPE_CHECKING:
    from headrace_serve.models.model import Model

__all__ = ["form_of"]

_EXAMPLES: Final = {
    "string": "text",
    "integer": 1,
    "number": 0.5,
    "boolean": True,
    "array": [],
    "object": {},
    "null": None,
}


def form_of(model: Model, *, latest: bool) -> dict[str, Any]:
    """Return what a form for a model needs: its ``kind`` (``file``, ``json`` or ``tensors``), its path, and its inputs.

    Args:
        model: The model.
        latest: Whether it is the greatest version, which the route ``/run`` takes. Others take tensors.
    """
    run = f"run/{quote(model.name, safe='')}"
    if latest and (model.fields is not None or model.takes_json):
        return {"kind": "json", "path": run, **_json_form(model)}
    file = file_input(model) if latest else None
    ports = model.signature.inputs
    if file is not None:
        query = [
            {"name": port.name, "datatype": port.datatype}
            for name, port in ports.items()
            if name != file and not port.optional
        ]
        text = ports[file].text
        return {"kind": "file", "path": run, "input": file, "query": query, "text": text}
    inputs = [
        {
            "name": port.name,
            "datatype": port.datatype,
            "shape": list(port.shape),
            "optional": port.optional,
        }
        for port in ports.values()
    ]
    infer = f"v2/models/{quote(model.name, safe='')}/versions/{model.version}/infer"
    return {"kind": "tensors", "path": infer, "inputs": inputs}


def _json_form(model: Model) -> dict[str, Any]:
    if model.fields is None:
        return {"fields": [], "example": None}
    schema, others = model.fields.schema("")
    required = schema.get("required", ())
    fields, example = [], {}
    for name, field in schema["properties"].items():
        kind = _resolved(field, others)
        fields.append(
            {
                "name": name,
                "type": _type(kind, others),
                "required": name in required,
                "description": field.get("description", ""),
            }
        )
        if name in required:
            example[name] = _example(kind, others)
    return {"fields": fields, "example": example}


def _resolved(schema: dict[str, Any], others: dict[str, Any]) -> dict[str, Any]:
    """Return the schema to which a schema refers, or the first of several that it may be."""
    if "$ref" in schema:
        resolved: dict[str, Any] = others.get(schema["$ref"].rpartition("/")[2], {})
        return resolved
    return schema["anyOf"][0] if "anyOf" in schema else schema


def _type(schema: dict[str, Any], others: dict[str, Any]) -> str:
    kind = str(schema.get("type", "any"))
    if kind == "array" and "items" in schema:
        return f"array of {_type(_resolved(schema['items'], others), others)}"
    return kind


def _example(schema: dict[str, Any], others: dict[str, Any]) -> Any:
    for name in ("default", "const"):
        if name in schema:
            return schema[name]
    if "enum" in schema:
        return schema["enum"][0]
    kind = schema.get("type", "string")
    if kind == "array":
        count = max(1, schema.get("minItems", 4))
        if "prefixItems" in schema:
            return [_example(_resolved(item, others), others) for item in schema["prefixItems"]]
        return [_example(_resolved(schema.get("items", {}), others), others)] * count
    if kind == "object":
        needed = schema.get("required", ())
        inside = schema.get("properties", {})
        return {name: _example(_resolved(inside[name], others), others) for name in needed}
    return _EXAMPLES.get(kind)
