"""The first protocol of KServe, that of TensorFlow Serving: each instance is a request.

Source: KServe's documents of its "V1 Protocol", and the REST API of TensorFlow Serving for ``b64``.
"""

from __future__ import annotations

from typing import Any

from headrace.errors import InputError

__all__ = ["ROUTES", "error_of", "instances_in"]


def instances_in(body: Any) -> list[Any]:
    """Return the instances of a body.

    Raises:
        InputError: It has none, or more than them.
    """
    if not isinstance(body, dict) or not isinstance(body.get("instances"), list) or len(body) > 1:
        raise InputError("the body", expected='{"instances": [...]}', got=repr(body)[:40])
    found: list[Any] = body["instances"]
    return found


async def predict(asked: Any) -> Any:
    """Give the predictions for instances."""
    name, instances = asked.path["model"], instances_in(await asked.json())
    return {"predictions": await asked.run(name, await asked.requests(name, instances))}


async def ready(asked: Any) -> Any:
    """Say whether a model takes requests."""
    found = asked.model(asked.path["model"])
    return {"name": found["name"], "ready": found["ready"]}


def error_of(status: int, code: str, text: str) -> Any:
    """Return the body of a refusal."""
    del status, code
    return {"error": text}


ROUTES = {
    "GET /v1/models/{model}": ready,
    "POST /v1/models/{model}:predict": predict,
    "error": error_of,
}
"""The routes, and the form of their errors. ``GET /v1/models`` is left to OpenAI's."""
