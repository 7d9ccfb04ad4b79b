"""The REST routes of shared memory, and of models that load, unload and exchange, which ``--allow`` turns on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from headrace.errors import InputError
from headrace_serve.http.exchange import Reply
from headrace_serve.inference.parameters import without_nulls
from headrace_serve.shared_memory import allowed, no_cuda_region

if TYPE_CHECKING:
    from headrace_serve.http.exchange import Exchange
    from headrace_serve.keys import Right

__all__ = ["MEMORY_ROUTES", "REPOSITORY_ROUTES", "json_object"]


async def json_object(exchange: Exchange, *keys: str) -> dict[str, Any]:
    """Return the body as a JSON object, ``{}`` for an empty body.

    Args:
        exchange: The request.
        keys: The keys that the object may have.

    Raises:
        InputError: The body is no JSON object, or has other keys.
    """
    body = await exchange.json_body()
    found: Any = await exchange.parsed(body) if body.strip() else {}
    if not isinstance(found, dict) or not set(found) <= set(keys):
        raise InputError("the body", expected=f"nothing, or an object with {', '.join(keys)}")
    return found


async def _status(exchange: Exchange) -> Reply:
    regions = allowed(exchange.service.regions)
    return Reply.json(regions.status(exchange.path.get("region", "")))


async def _register(exchange: Exchange) -> Reply:
    allowed(exchange.service.regions)
    asked = await json_object(exchange, "key", "offset", "byte_size")
    given = {"key": asked.get("key"), "offset": asked.get("offset", 0)}
    size = asked.get("byte_size")
    await exchange.service.change("register", exchange.path["region"], **given, byte_size=size)
    return Reply.json({})


async def _unregister(exchange: Exchange) -> Reply:
    allowed(exchange.service.regions)
    await json_object(exchange)
    await exchange.service.change("unregister", exchange.path.get("region", ""))
    return Reply.json({})


def _parameters(body: dict[str, Any]) -> dict[str, Any]:
    parameters = without_nulls(body).get("parameters", {})
    if not isinstance(parameters, dict):
        raise InputError("parameters", expected="an object", got=type(parameters).__name__)
    return without_nulls(parameters)


async def _load(exchange: Exchange) -> Reply:
    return await _change(exchange, "load")


async def _unload(exchange: Exchange) -> Reply:
    return await _change(exchange, "unload")


async def _end_exchange(exchange: Exchange) -> Reply:
    exchange.service.allowed_repository()
    asked = await json_object(exchange, "action")
    given = {"action": asked.get("action")}
    await exchange.service.change("exchange", exchange.path["model"], **given)
    return Reply.json({})


async def _change(exchange: Exchange, what: str) -> Reply:
    exchange.service.allowed_repository()
    parameters = _parameters(await json_object(exchange, "parameters"))
    await exchange.service.change(what, exchange.path["model"], parameters=parameters)
    return Reply.json({})


async def _cuda_status(exchange: Exchange) -> Reply:
    """Give no region: there are none of CUDA."""
    name = exchange.path.get("region", "")
    if name:
        raise no_cuda_region(name)
    return Reply.json([])


async def _cuda_unregister(exchange: Exchange) -> Reply:
    """Unregister nothing; clients do so to begin and to end, whatever there is."""
    await json_object(exchange)
    return Reply.json({})


_CUDA = "/v2/cudasharedmemory"
_MEMORY = "/v2/systemsharedmemory"
_REGION = f"{_MEMORY}/region/{{region}}"
_MODEL = "/v2/repository/models/{model}"

MEMORY_ROUTES: Final[tuple[tuple[str, str, Any, Right], ...]] = (
    ("GET", f"{_MEMORY}/status", _status, "infer"),
    ("GET", f"{_REGION}/status", _status, "infer"),
    ("POST", f"{_REGION}/register", _register, "infer"),
    ("POST", f"{_REGION}/unregister", _unregister, "infer"),
    ("POST", f"{_MEMORY}/unregister", _unregister, "infer"),
    ("GET", f"{_CUDA}/status", _cuda_status, "infer"),
    ("GET", f"{_CUDA}/region/{{region}}/status", _cuda_status, "infer"),
    ("POST", f"{_CUDA}/unregister", _cuda_unregister, "infer"),
    ("POST", f"{_CUDA}/region/{{region}}/unregister", _cuda_unregister, "infer"),
)
"""Method, path, handler, and the right that the client's key needs, of shared memory."""

REPOSITORY_ROUTES: Final[tuple[tuple[str, str, Any, Right], ...]] = (
    ("POST", f"{_MODEL}/load", _load, "repository"),
    ("POST", f"{_MODEL}/unload", _unload, "repository"),
    ("POST", f"{_MODEL}/exchange", _end_exchange, "repository"),
)
"""The same of loading and unloading models, and of ending an exchange."""
