"""Pipelines as a service: the Open Inference Protocol, which the clients of Triton speak.

`Server` listens in a thread of its own. `asgi` gives the same service as an ASGI application, for an HTTP server that
the user starts. `headrace_serve.errors` has a table of the status and text that a client gets for each error.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.lazy import lazy_names

if TYPE_CHECKING:
    from headrace_serve.admission.keys import Keys
    from headrace_serve.admission.limits import Limits
    from headrace_serve.http.rest import asgi
    from headrace_serve.models.manager import ModelManager
    from headrace_serve.operating.server import Server
    from headrace_serve.operating.tls import Tls

__version__ = "0.1.0"

__all__ = ["Keys", "Limits", "ModelManager", "Server", "Tls", "__version__", "asgi"]

_HOMES = {
    "admission.keys": "Keys",
    "admission.limits": "Limits",
    "http.rest": "asgi",
    "models.manager": "ModelManager",
    "operating.server": "Server",
    "operating.tls": "Tls",
}

if not TYPE_CHECKING:  # with these a type checker would accept every name
    __getattr__, __dir__ = lazy_names(__name__, _HOMES)
