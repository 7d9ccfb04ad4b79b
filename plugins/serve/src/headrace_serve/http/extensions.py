"""The REST routes of models that load, unload and exchange, which ``--allow`` turns on."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final

from headrace.errors import InputError
from headrace_serve.http.replies import Reply
from headrace_serve.inference.parameters import without_nulls

if TYPE_CHECKING:
    from headrace_serve.admission.keys import Right
    from headrace_serve.http.exchange import Exchange

__all__ = ["REPOSITORY_ROUTES", "json_object"]


async def json_object(exchange: Exchange, *keys: str) -> dict[str, Any]:
    """Return the body as a JSON object, ``{}`` for an empty body.

    Args:
        exchange: The request.
        keys: The keys that the object may have.

    Raises:
        InputError: The body is no JSON object, or has other keys.
    """
    body = await exchange.body(exchange.limits.max_json_bytes)
    document: Any = await exchange.parsed(body) if body.strip() else {}
    if not isinstance(document, dict) or not set(document) <= set(keys):
        raise InputError("the body", expected=f"nothing, or an object with {', '.join(keys)}")
    return document


def _parameters(body: dict[str, Any]) -> dict[str, Any]:
    parameters = without_nulls(body).get("parameters", {})
    if not isinstance(parameters, dict):
        raise InputError("parameters", expected="an object", got=type(parameters).__name__)
    return without_nulls(parameters)


async def _end_exchange(exchange: Exchange) -> Reply:
    exchange.service.allowed_repository()
    action = (await json_object(exchange, "action")).get("action")
    await exchange.service.change("exchange", exchange.path["model"], action=action)
    return Reply.json({})


async def _change(change: str, exchange: Exchange) -> Reply:
    exchange.service.allowed_repository()
    parameters = _parameters(await json_object(exchange, "parameters"))
    await exchange.service.change(change, exchange.path["model"], parameters=parameters)
    return Reply.json({})


_MODEL = "/v2/repository/models/{model}"

REPOSITORY_ROUTES: Final[tuple[tuple[str, str, Any, Right], ...]] = (
    ("POST", f"{_MODEL}/load", partial(_change, "load"), "repository"),
    ("POST", f"{_MODEL}/unload", partial(_change, "unload"), "repository"),
    ("POST", f"{_MODEL}/exchange", _end_exchange, "repository"),
)
"""Method, path, handler, and the right that the client's key needs."""
