"""Headrace backend on another server of the Open Inference Protocol: `Remote`, and its errors.

Nothing is imported until it is used: ``import headrace_remote`` loads neither grpc nor numpy.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.lazy import lazy_names

if TYPE_CHECKING:
    from headrace_remote.backend import Remote
    from headrace_remote.errors import ConnectionLostError, ServersAwayError

__version__ = "0.1.0"

__all__ = ["ConnectionLostError", "Remote", "ServersAwayError", "__version__"]

_HOME = {
    "backend": "Remote",
    "errors": "ConnectionLostError ServersAwayError",
}

if not TYPE_CHECKING:  # with these a type checker would accept every name
    __getattr__, __dir__ = lazy_names(__name__, _HOME)
