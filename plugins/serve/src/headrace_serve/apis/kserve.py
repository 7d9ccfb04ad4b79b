"""The first protocol of KServe, that of TensorFlow Serving: each instance is a request.

Source: KServe's documents of its "V1 Protocol", and the REST API of TensorFlow Serving for ``b64``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from headrace import keys
from headrace.errors import InputError

if TYPE_CHECKING:
    from headrace_serve.apis.routes import Answering

__all__ = ["ROUTES", "error_of", "instances_in"]


_SIGNATURE = "serving_default"
"""The one signature of a model, as TensorFlow Serving names it."""


def instances_in(body: Any) -> list[Any]:
    """Return the instances of a body. What ``parameters`` say belongs to each, unless it says it itself.

    Raises:
        InputError: It has none, or keys of another meaning, or another signature than the one that there is.
    """
    known = {"instances", "parameters", "signature_name"}
    if not isinstance(body, dict) or not isinstance(body.get("instances"), list):
        raise InputError("the body", expected='{"instances": [...]}', got=repr(body)[:40])
    if others := [*body.keys() - known]:
        problem = f"the body has {', '.join(map(repr, sorted(others)))[:80]}"
        raise InputError(problem, hint=f"Its keys are {', '.join(sorted(known))}.")
    if body.get("signature_name") not in (None, _SIGNATURE):
        got = repr(body["signature_name"])[:40]
        raise InputError("signature_name", expected=repr(_SIGNATURE), got=got)
    instances, more = body["instances"], body.get("parameters") or {}
    if not isinstance(more, dict):
        raise InputError("parameters", expected="an object", got=repr(more)[:40])
    return [_with(more, instance) for instance in instances] if more else instances


def _with(parameters: dict[str, Any], instance: Any) -> dict[str, Any]:
    plain = not isinstance(instance, dict) or instance.keys() == {"b64"}
    return {**parameters, **({keys.DATA: instance} if plain else instance)}


async def listed(asked: Any) -> Any:
    """List the models."""
    return {"models": asked.models()}


def predict(asked: Any, body: Any) -> Answering:
    """Give the predictions for instances."""
    _, results = yield asked.path["model"], instances_in(body)
    return {"predictions": results}


async def ready(asked: Any) -> Any:
    """Say whether a model takes requests."""
    model = asked.model(asked.path["model"])
    return {"name": model["name"], "ready": model["ready"]}


def error_of(status: int, code: str, text: str) -> Any:
    """Return the body of a refusal."""
    del status, code
    return {"error": text}


ROUTES = {
    "GET /v1/models": listed,
    "GET /v1/models/{model}": ready,
    "POST /v1/models/{model}:predict": predict,
    "error": error_of,
}
"""The routes, and the form of their errors."""
