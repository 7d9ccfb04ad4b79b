"""The reserved keys of a request: what each means, who writes it and who reads it.

A request is a plain ``dict`` with ``str`` keys. Keys that are not listed here belong to the
backends that declare them in ``reads`` and ``writes``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Protocol

__all__ = [
    "BOX",
    "COLOR",
    "CONTEXT",
    "DATA",
    "NODE_NAME",
    "REQUEST_ID",
    "REQUEST_SIZE",
    "RESERVED",
    "RESTART",
    "RESULT",
    "DeviceStream",
    "Request",
]

Request = dict[str, Any]
"""A request: ``data`` in, ``result`` out, and the keys that its backends declare."""


class DeviceStream(Protocol):
    """The stream of an instance on a device, which backends of several plugins share.

    It is in ``context.store.instance`` under ``("cuda.stream", ordinal)``, where ``ordinal`` is the number of the CUDA
    device. The first backend of the instance that needs it makes it, by ``context.store.instance.get_or_create``. The others
    queue their work on it, so that it runs in their order without a wait. The store closes it with the instance. What
    is in the store is recognised by these two members, never by its class.

    Attributes:
        handle: The ``cudaStream_t`` as an int. 0 is the default stream.
    """

    @property
    def handle(self) -> int:
        """The ``cudaStream_t`` as an int."""

    def close(self) -> None:
        """Wait for what is queued, and destroy the stream. Called once, after the backends were closed."""


DATA: Final = "data"
"""Input of the current backend. Written by the caller, read by every backend. Between entry and
answer containers put the ``result`` of one backend here for the next. Before the answer it is the
caller's object again."""

RESULT: Final = "result"
"""Output. Removed on entry; written by backends, read by the caller. A failed request has none."""

REQUEST_SIZE: Final = "request_size"
"""Weight in batching, an int of at least 1 (default 1). 0 where an array of the request has no row, which weighs 1 too.
Written by the caller, read by the scheduler and by backends that take several rows in one request. A value that stands for an int (an
integer of numpy) is replaced by that int on entry."""

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
"""The node at which ``Restart`` of headrace-flow enters again. Written by a backend, read and removed by
``Restart``."""

COLOR: Final = "color"
"""Order of the channels of the image in ``data``: ``"rgb"``, ``"bgr"`` or ``"gray"``. Written by
decoders and colour conversion, read by colour conversion and encoders."""

BOX: Final = "box"
"""A box in the image: ``x1, y1, x2, y2`` in pixels. Written by detectors, read by cropping."""

RESERVED: Final[Mapping[str, str]] = {
    DATA: "input of the current backend",
    RESULT: "output of the current backend; the answer",
    REQUEST_SIZE: "weight in batching, an int of at least 1",
    REQUEST_ID: "identifier of the request",
    CONTEXT: "a mapping that travels with the request",
    NODE_NAME: "the node at which the request enters",
    RESTART: "the node at which Restart enters again",
    COLOR: "order of the channels of the image in data",
    BOX: "x1, y1, x2, y2 in pixels",
}
"""Every reserved key with its meaning in one line."""
