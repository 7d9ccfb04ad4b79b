"""Bounds on what one client, and all clients together, may use of the server."""

from __future__ import annotations

import time
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING

from headrace_serve.option_fields import BYTES, REQUESTS, SECONDS, option

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["Limits"]

_ENDLESS = 1 << 53
"""Every bound must be smaller than this, so infinity is refused."""

_CONNECTIONS = "Connections"


@dataclass(frozen=True)
class Limits:
    """Bounds of the server. A request that exceeds one is refused with an answer that says so.

    Attributes:
        max_body_bytes: The most bytes of one request's body, both as sent and as decompressed.
        max_json_bytes: The most bytes of one request's JSON, where each of ``[``, ``{``, ``,`` and ``:`` counts 56 bytes
            more, also inside of texts: about as many as the objects take that it becomes. A body of JSON has at most
            ``max_body_bytes`` bytes, too.
        max_inflight_bytes: The most bytes of the bodies of all requests that are being received or answered, of the objects
            of their JSON, of the parts of answers that wait for clients, which take at most half, and of answers that clients
            have not received yet. While whole answers take half, new requests are refused, and large answers that would not
            fit. An HTTP connection with an eighth gets no further answer meanwhile.
        max_header_bytes: The most bytes of the URL and of names and values of the headers of one HTTP request, and
            of the metadata of one gRPC call.
        max_items: The most elements of an input of items, and the most files of a multipart body: each is a request of
            the pipeline.
        max_elements: The most elements of all inputs of BYTES of one request together, and of all outputs of BYTES of
            its answer: each is an object of Python, which takes more memory and time than its bytes.
        max_timeout_ms: The most milliseconds that a request may take in the pipeline. None: no limit.
        receive_timeout_s: Seconds in which a request must have arrived. For HTTP they count from its first byte. A
            new connection must send its first byte, for gRPC its preface, within the same time.
        min_rate_bytes_s: Bytes per second that an HTTP client must send of a body, and receive of an answer,
            in every window of ``rate_window_s``.
        rate_window_s: Seconds over which ``min_rate_bytes_s`` is measured.
        max_connections: The most HTTP connections that are open at a time, and also the most gRPC connections. One
            more HTTP connection is answered with 503, one more gRPC connection is closed.
        max_streams: The most gRPC calls that are open on one connection at a time.
        keep_alive_s: Seconds that an HTTP connection may be idle between two requests.
        max_connection_age_s: Seconds after which a client must reconnect by gRPC once its calls have ended, so that
            clients spread over processes. None: no limit.
        grpc_keepalive_s: Seconds without a byte after which gRPC pings a client, also one without calls. None: never.
        grpc_keepalive_timeout_s: Seconds in which it must answer a ping, else its connection ends.
        grpc_min_ping_interval_s: The least seconds between the pings of a client of gRPC. The connection of one that pings
            more often ends.
    """

    max_body_bytes: int = option(
        64 << 20, REQUESTS, **BYTES, help="The most bytes of a body, also decompressed."
    )
    max_json_bytes: int = option(
        64 << 20,
        REQUESTS,
        **BYTES,
        help="The same of JSON, where each of [ { , : counts 56 bytes more.",
    )
    max_inflight_bytes: int = option(
        1 << 30,
        REQUESTS,
        **BYTES,
        help="The most bytes of all bodies in flight, and of answers that wait.",
    )
    max_header_bytes: int = 64 << 10
    max_items: int = 4096
    max_elements: int = 1 << 20
    max_timeout_ms: float | None = option(
        None, REQUESTS, metavar="MS", min=0.001, help="Milliseconds for any request."
    )
    receive_timeout_s: float = option(
        60.0,
        _CONNECTIONS,
        "--receive-timeout",
        **SECONDS,
        min=0.001,
        help="Seconds for a request to arrive.",
    )
    min_rate_bytes_s: int = option(
        256,
        REQUESTS,
        "--min-rate",
        min=1,
        help="The least bytes per second of a client.",
        last=True,
    )
    rate_window_s: float = 10.0
    max_connections: int = option(
        4096, _CONNECTIONS, min=1, help="The most connections at a time, of each protocol."
    )
    max_streams: int = 1024
    keep_alive_s: float = 75.0
    max_connection_age_s: float | None = option(
        None,
        _CONNECTIONS,
        "--max-connection-age",
        **SECONDS,
        min=1,
        help="Seconds until gRPC reconnects; 300 with --workers.",
    )
    grpc_keepalive_s: float | None = option(
        None,
        _CONNECTIONS,
        "--grpc-keepalive",
        **SECONDS,
        min=0.001,
        help="Idle seconds until gRPC pings; default: never.",
    )
    grpc_keepalive_timeout_s: float = option(
        20.0,
        _CONNECTIONS,
        "--grpc-keepalive-timeout",
        **SECONDS,
        min=0.001,
        help="Seconds to answer such a ping.",
    )
    grpc_min_ping_interval_s: float = option(
        300.0,
        _CONNECTIONS,
        "--grpc-min-ping-interval",
        **SECONDS,
        min=0.001,
        help="The least seconds between a client's pings.",
    )

    def narrowed(self, own: Mapping[str, float]) -> Limits:
        """Return these limits, replaced by those of one model where the model's are smaller.

        Args:
            own: Limits of the model, by the names of the attributes.
        """
        if not own:
            return self
        now = {name: getattr(self, name) for name in own}
        least = {name: v if now[name] is None else min(v, now[name]) for name, v in own.items()}
        return replace(self, **least)  # type: ignore[arg-type]  # each keeps its own kind

    def until(self, end_s: float) -> Limits:
        """Return these limits for a request that has to end at a time of `time.monotonic`."""
        return self.narrowed({"max_timeout_ms": max(1e-3, 1e3 * (end_s - time.monotonic()))})

    @classmethod
    def of(cls, limits: Limits | None) -> Limits:
        """Return the limits for an argument ``limits``: these, or the default ones for None.

        Raises:
            TypeError: The argument is neither.
        """
        if limits is not None and not isinstance(limits, cls):
            raise TypeError(f"expected headrace_serve.Limits, got {limits!r}")
        return limits or cls()

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if value is None and field.default is None:
                continue
            number = isinstance(value, (int, float)) and not isinstance(value, bool)
            if not number or not 0 < value < _ENDLESS:
                raise ValueError(
                    f"{field.name} is a number above 0 and below {_ENDLESS}, got {value!r}"
                )
            if type(field.default) is int and not isinstance(value, int):
                raise ValueError(f"{field.name} is a whole number, got {value!r}")
