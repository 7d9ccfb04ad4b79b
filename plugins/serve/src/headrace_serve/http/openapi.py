"""The OpenAPI document of the server, and a self-contained page of documentation.

``openapi.json`` has all of the document that does not depend on the models, and this module adds the rest.
"""

from __future__ import annotations

import html
import math
import re
from copy import deepcopy
from importlib.metadata import version
from importlib.resources import files
from typing import TYPE_CHECKING, Any

import orjson

from headrace import keys
from headrace_serve.datatypes import ONLY_BINARY
from headrace_serve.http.plain_route import file_input
from headrace_serve.inference.classification import CLASSIFICATION
from headrace_serve.inference.parameters import SEQUENCES

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from headrace_serve.apis.routes import ApiRoute
    from headrace_serve.models.catalogue import Catalogue
    from headrace_serve.models.model import Model
    from headrace_serve.models.signature import Port

__all__ = ["document", "page"]

_FRAME: dict[str, Any] = orjson.loads(files(__package__).joinpath("openapi.json").read_bytes())
_ANYTHING: dict[str, Any] = {"application/json": {"schema": {}}}
_COUNT = {"type": "integer", "minimum": 0}


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
    whole: dict[str, Any] = deepcopy(_FRAME["document"])
    whole["info"]["version"] = version("headrace-serve")
    paths = whole["paths"]
    for model in models:
        paths |= _operations(model, f"/v2/models/{model.name}/versions/{model.version}")
        whole["components"]["schemas"] |= _fields(model)[1]
        if models.find(model.name) is model:
            paths |= _operations(model, f"/v2/models/{model.name}") | _run(model)
    for place, route in (apis or {}).items():
        method, path = place.split()
        paths.setdefault(path, {})[method.lower()] = _of_api(path, route)
    for operations in paths.values():
        for operation in operations.values():
            operation["responses"] = _responses() | operation.get("responses", {})
    if below:  # without it, clients take the paths for those of the whole host
        whole["servers"] = [{"url": below}]
    if keyed:
        whole["components"]["securitySchemes"] = _FRAME["securitySchemes"]
        whole["security"] = [{name: []} for name in _FRAME["securitySchemes"]]
    return whole


def _responses(content: dict[str, Any] = _FRAME["error"]) -> dict[str, Any]:
    """Return the responses that every operation has; those of errors have this content."""
    wrong = {
        status: {"description": text, "content": content}
        for status, text in _FRAME["statuses"].items()
    }
    return {"200": {"description": "Done."}, **wrong}


def _operations(model: Model, root: str) -> dict[str, Any]:
    """Return the operations of a model by their paths, which begin with a root, and by their methods."""
    paths = {root + end: operations for end, operations in deepcopy(_FRAME["model"]).items()}
    for operations in paths.values():
        for operation in operations.values():
            operation["summary"] = _summary(operation, model)
    _fill_inference(paths[f"{root}/infer"]["post"]["requestBody"]["content"], model)
    for end in ("generate", "generate_stream"):
        paths[f"{root}/{end}"]["post"]["requestBody"]["content"] = _generate(model)
    return paths


def _summary(operation: dict[str, Any], model: Model) -> str:
    summary: str = operation["summary"]
    return summary.format(name=model.name, version=model.version)


def _fill_inference(content: dict[str, Any], model: Model) -> None:
    """Add the inputs, outputs and parameters of a model to the body of an inference."""
    signature, body = model.signature, content["application/json"]["schema"]["properties"]
    parameters = body["parameters"]["properties"]
    if not signature.by_item:
        parameters["partial"] = {"const": False}
    if signature.sequence_key is None:
        parameters |= dict.fromkeys(SEQUENCES, False)
    ports = signature.inputs.values()
    body["inputs"] |= {
        "prefixItems": [_tensor(port, signature.max_rows) for port in ports],
        "minItems": len([port for port in ports if not port.optional]),
        "maxItems": len(ports),
    }
    names, once = list(signature.outputs), {"minContains": 0, "maxContains": 1}
    output = body["outputs"]["items"]["properties"]
    output["name"]["enum"] = names
    if any(port.datatype in ("BYTES", "BF16") for port in signature.outputs.values()):
        del output["parameters"]["properties"][CLASSIFICATION]
    body["outputs"]["maxItems"] = len(names)
    body["outputs"]["allOf"] = [
        {"contains": {"properties": {"name": {"const": name}}}, **once} for name in names
    ]


def _generate(model: Model) -> dict[str, Any]:
    """Return the content whose inputs are fields; values may also be lists of them."""
    ports = model.signature.inputs.values()
    required = [port.name for port in ports if not port.optional]
    fields: dict[str, Any] = {}
    for port in ports:
        if port.datatype not in ONLY_BINARY:
            element = _FRAME["elements"][port.datatype]
            fields[port.name] = {"anyOf": [element, {"type": "array", "items": element}]}
    if model.fields is not None:
        schema, _ = _fields(model)
        fields, required = schema["properties"], schema.get("required", [])
    schema = deepcopy(_FRAME["generate"])
    schema["properties"] = {**fields, **schema["properties"]}
    return {"application/json": {"schema": {**schema, "required": required}}}


def _of_api(path: str, route: ApiRoute) -> dict[str, Any]:
    """Return the operation of a route of another server, whose bodies that server describes."""
    done = {"description": "Done.", "content": _ANYTHING}
    operation: dict[str, Any] = {
        "summary": route.summary,
        "responses": {**_responses(_ANYTHING), "200": done},
        "parameters": [
            {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
            for name in re.findall(r"\{(\w+)\}", path)
        ],
    }
    if route.right == "infer":
        operation["requestBody"] = {"required": True, "content": _ANYTHING}
    return operation if route.right is not None else {**operation, "security": []}


def _fields(model: Model) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the schema of the fields of a model, and the schemas to which it refers."""
    return model.fields.schema(f"{model.name}.{model.version}") if model.fields else ({}, {})


def _tensor(port: Port, max_rows: int | None) -> dict[str, Any]:
    is_binary = port.datatype in ONLY_BINARY
    schema: dict[str, Any] = deepcopy(_FRAME["binary_tensor" if is_binary else "tensor"])
    axes: list[dict[str, Any]] = [_COUNT if n < 0 else {"const": n} for n in port.shape]
    if port.batch_axis is not None and port.shape[port.batch_axis] < 0 and max_rows is not None:
        axes[port.batch_axis] = {**_COUNT, "maximum": max_rows}
    count = {"minItems": len(axes), "maxItems": len(axes)}
    schema["properties"] |= {
        "name": {"const": port.name},
        "datatype": {"const": port.datatype},
        "shape": {"type": "array", "prefixItems": axes, **count},
    }
    if not is_binary:
        data = schema["properties"]["data"]
        data["items"] = _FRAME["elements"][port.datatype]
        if all(n >= 0 for n in port.shape):
            data["minItems"] = data["maxItems"] = math.prod(port.shape)
    return schema


def _run(model: Model) -> dict[str, Any]:
    """Return the operation of the plain route by its path and method, if it takes bodies for a model."""
    name = None if model.takes_json else file_input(model)
    if name is None and model.fields is None and not model.takes_json:
        return {}
    operation: dict[str, Any] = deepcopy(_FRAME["run"])
    operation["summary"] = _summary(operation, model)
    body = operation["requestBody"]
    key = keys.DATA if name is None else model.signature.inputs[name].key
    if name is None or not (model.fields is None or model.fields.takes_file(key)):
        body["content"] = {}
    if model.fields is not None:
        body["content"]["application/json"] = {"schema": _fields(model)[0]}
        return {f"/run/{model.name}": {"post": operation}}
    del operation["responses"]["422"]
    if name is None:
        body["content"] = _ANYTHING
    else:
        kinds = _FRAME["elements"]
        operation["parameters"] += [
            {
                "name": port.name,
                "in": "query",
                "required": True,
                "schema": {"type": kinds[port.datatype]["type"]},
            }
            for port in model.signature.inputs.values()
            if port.name != name
        ]
    return {f"/run/{model.name}": {"post": operation}}


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
