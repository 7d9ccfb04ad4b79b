"""The reserved keys of a request: what each means, who writes it and who reads it.

A request is a plain ``dict`` with ``str`` keys. Keys that are not listed here belong to the
backends that declare them in ``reads`` and ``writes``.
"""

from __future__ import annotations

from typing import Any, Final

__all__ = [
    "CONTEXT",
    "DATA",
    "NODE_NAME",
    "REQUEST_ID",
    "REQUEST_SIZE",
    "RESERVED",
    "RESTART",
    "RESULT",
    "Request",
]

Request = dict[str, Any]
"""A request: ``data`` in, ``result`` out, and the keys that its backends declare."""


DATA: Final = "data"
"""Input of the current backend. Written by the caller, read by every backend. Between entry and
answer containers put the ``result`` of one backend here for the next. Before the answer it is the
caller's object again."""

RESULT: Final = "result"
"""Output. Removed on entry; written by backends, read by the caller. A failed request has none."""

REQUEST_SIZE: Final = "request_size"
"""Weight in batching, an int of at least 1 (default 1). 0 where an array of the request has no
row, which weighs 1 too. Written by the caller, read by the scheduler and by backends that take
several rows in one request. A value that stands for an int (an integer of numpy) is replaced by
that int on entry."""

REQUEST_ID: Final = "request_id"
"""Identifier of the request, any text. Written by the caller. Kept by maps. Read by probes and by
backends that hold state per request."""

CONTEXT: Final = "context"
"""A mapping that travels with the request (``traceparent``, identifiers). Written by the caller,
kept by maps, read by probes."""

NODE_NAME: Final = "node_name"
"""The node at which a request enters a pipeline with several roots. Written by the caller, read
where the request enters. A pipeline of one node ignores it."""

RESTART: Final = "restart"
"""The node at which ``Restart`` of headrace-flow enters again. Written by a backend, read and
removed by ``Restart``. No server takes it from a client."""

RESERVED: Final = frozenset({DATA, RESULT, REQUEST_SIZE, REQUEST_ID, CONTEXT, NODE_NAME, RESTART})
"""All reserved keys."""
