"""Pipelines as a service: the Open Inference Protocol, which the clients of Triton speak.

`Server` listens in a thread of its own. `asgi` gives the same service as an ASGI application, for an HTTP server that
the user starts. `headrace_serve.errors` has a table of the status and text that a client gets for each error.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headrace_serve.http.rest import asgi
    from headrace_serve.keys import Keys
    from headrace_serve.limits import Limits
    from headrace_serve.models.manager import ModelManager
    from headrace_serve.operating.server import Server
    from headrace_serve.tls import Tls

__version__ = "0.1.0"

__all__ = ["Keys", "Limits", "ModelManager", "Server", "Tls", "__version__", "asgi"]

_HOMES = {
    "Keys": "keys",
    "Limits": "limits",
    "ModelManager": "models.manager",
    "Server": "operating.server",
    "Tls": "tls",
    "asgi": "http.rest",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(f"headrace_serve.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return __all__
