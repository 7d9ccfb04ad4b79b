"""The OpenAPI document of the server, and a self-contained page of documentation."""

from __future__ import annotations

import html
import math
import re
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

import numpy as np

from headrace import keys
from headrace_serve.datatypes import ONLY_BINARY
from headrace_serve.http.events import EVENTS
from headrace_serve.http.plain_route import file_input
from headrace_serve.inference.classification import CLASSIFICATION
from headrace_serve.inference.parameters import SEQUENCES, TRACE
from headrace_tensors import DATATYPES

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from headrace_serve.models.catalogue import Catalogue
    from headrace_serve.models.model import Model
    from headrace_serve.models.signature import Port
    from headrace_serve.routes import ApiRoute

__all__ = ["document", "page"]

_FLAG, _TEXT, _COUNT = {"type": "boolean"}, {"type": "string"}, {"type": "integer", "minimum": 0}
_WHOLE = {**_COUNT, "maximum": (1 << 63) - 1}
_FILE = {"schema": {"type": "string", "format": "binary"}}
_ANYTHING: dict[str, Any] = {"application/json": {"schema": {}}}
_PARAMETERS: dict[str, Any] = {
    "timeout": {**_WHOLE, "description": "Microseconds; 0: none."},
    "priority": {**_WHOLE, "description": "1 is most urgent, 0 the default."},
    **dict.fromkeys(TRACE, _TEXT),
    "binary_data_output": _FLAG,
    "triton_enable_empty_final_response": _FLAG,
}
_SENT = {name: {**one, "type": [one["type"], "null"]} for name, one in _PARAMETERS.items()}
"""The same in a request, where null is as if it were not there."""
_SEQUENCE: dict[str, Any] = {
    "sequence_id": {"type": ["integer", "string"], "description": "Needed; neither 0 nor empty."},
    "sequence_start": _FLAG,
    "sequence_end": _FLAG,
}
_STATUSES = {
    "400": "The request is wrong.",
    "401": "There is no key, or a wrong one.",
    "403": "The key does not allow this.",
    "404": "There is no such model or version.",
    "408": "The request was not received in time.",
    "413": "The body is too large.",
    "415": "The Content-Encoding is not known (see Accept-Encoding), or the Content-Type.",
    "429": "The queue is full; see Retry-After.",
    "500": "The pipeline failed.",
    "501": "The server does not have this part of the protocol.",
    "503": "The server is shutting down; see Retry-After.",
    "504": "The time is over.",
}

_EVENTS: dict[str, Any] = {EVENTS: {"schema": _TEXT}}

_KEYS: dict[str, Any] = {
    "bearer": {"type": "http", "scheme": "bearer"},
    "header": {"type": "apiKey", "in": "header", "name": "X-API-Key"},
}


def document(
    models: Catalogue,
    *,
    keyed: bool = False,
    below: str = "",
    apis: Mapping[str, ApiRoute] | None = None,
) -> dict[str, Any]:
    """Return the document: every version of every model with its inputs and outputs.

    Args:
        models: The models.
        keyed: Whether requests need a key. Requests of health never do.
        below: The path below which the application lies. ``""`` for none.
        apis: The routes of other servers, by method and path.
    """
    paths: dict[str, Any] = {
        "/v2": _get("Name, version and extensions of the server"),
        "/v2/health/live": _get("Whether the server and its processes live", security=[]),
        "/v2/health/ready": _get("Whether it accepts requests", security=[]),
        "/v2/repository/index": {"post": _operation("The models and their state")},
        "/v2/models/stats": _get("Statistics of all models"),
    }
    said = {"error": _TEXT, "code": _TEXT, "node": {"type": ["string", "null"]}, "id": _TEXT}
    schemas: dict[str, Any] = {"Error": _object(said, *said)}
    for model in models:
        places = [f"/v2/models/{model.name}/versions/{model.version}"]
        if models.find(model.name) is model:
            places.insert(0, f"/v2/models/{model.name}")
        for place in places:
            paths[place] = _get(f"Metadata of {model.name}")
            paths[f"{place}/ready"] = _get(f"{model.name}: ready", security=[])
            for end in ("config", "stats"):
                paths[f"{place}/{end}"] = _get(f"{model.name}: {end}")
            paths[f"{place}/infer"] = {"post": _infer(model)}
            if model.fields is not None:
                schemas |= model.fields.schema(_schemas_of(model))[1]
            for end in ("generate", "generate_stream"):
                paths[f"{place}/{end}"] = {"post": _generate(model, end)}
        if len(places) == 2 and _can_run(model):
            made_run, more = _run(model)
            paths[f"/run/{model.name}"] = {"post": made_run}
            schemas |= more
    _add_apis(paths, apis or {})
    made: dict[str, Any] = {
        "openapi": "3.1.0",
        "info": {"title": "headrace-serve", "version": version("headrace-serve")},
        "paths": paths,
        "components": {"schemas": schemas},
    }
    if below:  # without it, clients take the paths for those of the whole host
        made["servers"] = [{"url": below}]
    if keyed:
        made["components"]["securitySchemes"] = _KEYS
        made["security"] = [{name: []} for name in _KEYS]
    return made


def _operation(summary: str, ok: dict[str, Any] | None = None) -> dict[str, Any]:
    done: dict[str, Any] = {"description": "Done."}
    if ok is not None:
        done["content"] = _json(ok)
    content = _json({"$ref": "#/components/schemas/Error"})
    wrong = {s: {"description": text, "content": content} for s, text in _STATUSES.items()}
    return {"summary": summary, "responses": {"200": done, **wrong}}


def _json(schema: dict[str, Any]) -> dict[str, Any]:
    """Return the content of a body of JSON."""
    return {"application/json": {"schema": schema}}


def _post(summary: str, content: dict[str, Any]) -> dict[str, Any]:
    """Return an operation that takes a body, by its media types, and gives an object of JSON."""
    made = _operation(summary, {"type": "object"})
    made["requestBody"] = {"required": True, "content": content}
    return made


def _get(summary: str, **more: Any) -> dict[str, Any]:
    return {"get": {**_operation(summary), **more}}


def _infer(model: Model) -> dict[str, Any]:
    inputs = [_tensor(port, model.signature.max_rows) for port in model.signature.inputs.values()]
    names = list(model.signature.outputs)
    alone = model.signature.sequence_key is None
    parameters = {
        **_SENT,
        "partial": _FLAG if model.signature.by_item else {"const": False},
        "inputs": False,
        **(dict.fromkeys(SEQUENCES, False) if alone else _SEQUENCE),
    }
    taken = {
        "type": "array",
        "description": "Each input once; the server takes them in any order.",
        "prefixItems": inputs,
        "minItems": len([p for p in model.signature.inputs.values() if not p.optional]),
        "maxItems": len(inputs),
    }
    wanted = {"name": {"enum": names}, "parameters": _object(_of_outputs(model))}
    once = {"minContains": 0, "maxContains": 1}
    given = {
        "type": "array",
        "description": "The outputs that are wanted, each at most once; none: all.",
        "items": _object(wanted, "name"),
        "maxItems": len(names),
        "allOf": [{"contains": {"properties": {"name": {"const": n}}}, **once} for n in names],
    }
    told = _open(parameters, "Others are for the pipeline.")
    fields = {"id": _TEXT, "parameters": told, "inputs": taken, "outputs": given}
    made = _post(f"Run {model.name} version {model.version}", _json(_object(fields, "inputs")))
    made["responses"]["200"]["content"]["application/octet-stream"] = _FILE
    return made


def _generate(model: Model, end: str) -> dict[str, Any]:
    """Return the operation whose inputs and outputs are fields; values may also be lists of them."""
    inputs = [port for port in model.signature.inputs.values() if port.datatype not in ONLY_BINARY]
    fields: dict[str, Any] = {}
    for port in inputs:
        one = _element(port.datatype)
        fields[port.name] = {"anyOf": [one, {"type": "array", "items": one}]}
    required = [port.name for port in model.signature.inputs.values() if not port.optional]
    if model.fields is not None:
        said, _ = model.fields.schema(_schemas_of(model))
        fields, required = said["properties"], said.get("required", [])
    fields = {**fields, "id": _TEXT, "parameters": {"type": "object"}}
    schema = _open(fields, "Other fields, and those of parameters, are parameters.")
    content = _json({**schema, "required": required})
    made = _post(f"Run {model.name} version {model.version}", content)
    if end == "generate_stream":
        made["summary"] += ": an event for each part of the answer"
        made["responses"]["200"]["content"] = _EVENTS
    return made


def _add_apis(paths: dict[str, Any], apis: Mapping[str, ApiRoute]) -> None:
    for place, found in apis.items():
        method, path = place.split()
        paths.setdefault(path, {})[method.lower()] = _of_api(path, found)


def _of_api(path: str, found: ApiRoute) -> dict[str, Any]:
    """Return the operation of a route of another server, whose bodies that server describes."""
    made = _operation(found.summary, {})
    for answer in made["responses"].values():
        answer["content"] = _ANYTHING
    named = {"in": "path", "required": True, "schema": _TEXT}
    made["parameters"] = [{"name": name, **named} for name in re.findall(r"\{(\w+)\}", path)]
    if found.right == "infer":
        made["requestBody"] = {"required": True, "content": _ANYTHING}
    return made if found.right is not None else {**made, "security": []}


def _schemas_of(model: Model) -> str:
    """Return what the names of the schemas begin with to which the fields of a model refer."""
    return f"{model.name}.{model.version}"


def _of_outputs(model: Model) -> dict[str, Any]:
    """Return the parameters that every output of a model may have."""
    found: dict[str, Any] = {"binary_data": _FLAG}
    if all(port.datatype not in ("BYTES", "BF16") for port in model.signature.outputs.values()):
        found[CLASSIFICATION] = {"type": "integer", "minimum": 1, "maximum": (1 << 31) - 1}
    return found


def _open(properties: dict[str, Any], description: str) -> dict[str, Any]:
    """Return the schema of an object that may have other properties than these."""
    return {"type": "object", "description": description, "properties": properties}


def _object(properties: dict[str, Any], *required: str) -> dict[str, Any]:
    made = {"type": "object", "additionalProperties": False, "properties": properties}
    return {**made, "required": list(required)} if required else made


def _tensor(port: Port, max_rows: int | None) -> dict[str, Any]:
    axes: list[dict[str, Any]] = [_COUNT if n < 0 else {"const": n} for n in port.shape]
    if port.batch_axis is not None and port.shape[port.batch_axis] < 0 and max_rows is not None:
        axes[port.batch_axis] = {**_COUNT, "maximum": max_rows}
    shape = {"type": "array", "prefixItems": axes, "minItems": len(axes), "maxItems": len(axes)}
    data: dict[str, Any] = {
        "type": "array",
        "description": "As many elements as the shape says, in row-major order; nested lists are accepted too.",
        "items": _element(port.datatype),
    }
    if all(n >= 0 for n in port.shape):
        data["minItems"] = data["maxItems"] = math.prod(port.shape)
    said = {"name": {"const": port.name}, "datatype": {"const": port.datatype}}
    fields: dict[str, Any] = {**said, "shape": shape}
    if port.datatype in ONLY_BINARY:
        fields["parameters"] = _object({"binary_data_size": _COUNT}, "binary_data_size")
        return _object(fields, *fields)
    elsewhere = dict.fromkeys(("binary_data_size", "shared_memory_region"), False)
    more = {"parameters": _open(elsewhere, "They are for the pipeline.")}
    return _object({**fields, "data": data, **more}, *fields, "data")


def _element(datatype: str) -> dict[str, Any]:
    """Give the schema of one element in JSON."""
    dtype: Any = DATATYPES[datatype]
    if datatype in ("BOOL", "BYTES"):
        return _FLAG if datatype == "BOOL" else _TEXT
    if dtype.kind == "f":
        most = float(np.finfo(dtype).max)
        return {"type": "number", "minimum": -most, "maximum": most}
    info: Any = np.iinfo(dtype)
    return {"type": "integer", "minimum": int(info.min), "maximum": int(info.max)}


def _can_run(model: Model) -> bool:
    """Return whether the plain route takes bodies for a model."""
    return model.takes_json or model.fields is not None or file_input(model) is not None


def _run(model: Model) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the operation of the plain route, and the schemas to which its body refers."""
    file_name = None if model.takes_json else file_input(model)
    files = {"type": "array", "items": _FILE["schema"], "minItems": 1}
    form = {"schema": {"type": "object", "required": ["file"], "properties": {"file": files}}}
    content: dict[str, Any] = {}
    schemas: dict[str, Any] = {}
    key = keys.DATA if file_name is None else model.signature.inputs[file_name].key
    if file_name is not None and (model.fields is None or model.fields.takes_file(key)):
        content = {"application/octet-stream": _FILE, "multipart/form-data": form}
    if model.fields is not None:
        schema, schemas = model.fields.schema(_schemas_of(model))
        content = {**_json(schema), **content}
    elif model.takes_json:
        content = _ANYTHING
    made = _post(f"Run {model.name}", content)
    made["responses"]["200"]["content"] |= _EVENTS
    if model.fields is not None:
        wrong = made["responses"]["400"]["content"]
        made["responses"]["422"] = {"description": "A field is wrong.", "content": wrong}
    query = {"timeout": _COUNT, "priority": _COUNT, **dict.fromkeys(TRACE, _TEXT)}
    made["parameters"] = [{"name": n, "in": "query", "schema": one} for n, one in query.items()]
    if file_name is not None and model.fields is None:
        made["parameters"] += [
            {
                "name": port.name,
                "in": "query",
                "required": True,
                "schema": {"type": _element(port.datatype)["type"]},
            }
            for port in model.signature.inputs.values()
            if port.name != file_name
        ]
    return made, schemas


_PAGE = """<!doctype html>
<html lang="en"><meta charset="utf-8"><title>headrace-serve</title>
<style>body{{font:16px/1.5 sans-serif;max-width:60em;margin:2em auto;padding:0 1em}}
code,pre{{background:#f3f3f3;padding:.1em .3em}}td{{padding:.2em 1em .2em 0}}</style>
<h1>headrace-serve {version}</h1>
<p>The Open Inference Protocol; its description is in <a href="openapi.json">openapi.json</a>.</p>
{models}
"""
_MODEL = """<h2>{name}, version {version}</h2>
<p><code>POST /v2/models/{name}/versions/{version}/infer</code></p>
<table>{rows}</table>
"""
_FORM = """<p><code>POST /run/{name}</code></p>
<p><input type="file" onchange="fetch('run/{name}',{{method:'POST',body:this.files[0],
headers:{{'content-type':'application/octet-stream'}}}})
.then(answer=>answer.text()).then(text=>this.nextElementSibling.textContent=text)"><pre></pre></p>
"""


def page(models: Catalogue) -> str:
    """Return a page of HTML: the inputs and outputs of each model, and a form for each model that takes a file."""
    parts = []
    for model in models:
        inputs = model.signature.inputs.values()
        rows = _rows("input", (port for port in inputs if not port.optional))
        rows += _rows("optional input", (port for port in inputs if port.optional))
        rows += _rows("output", model.signature.outputs.values())
        parts.append(_MODEL.format(name=model.name, version=model.version, rows=rows))
        if models.find(model.name) is model and file_input(model) and not model.takes_json:
            parts.append(_FORM.format(name=model.name))
    return _PAGE.format(version=version("headrace-serve"), models="".join(parts))


def _rows(kind: str, ports: Iterable[Port]) -> str:
    return "".join(
        f"<tr><td>{kind}<td>{html.escape(port.name)}<td>{port.datatype}<td>{list(port.shape)}"
        for port in ports
    )
