"""The connections of a node: a channel of gRPC per server, and what is read from the servers at the start."""

from __future__ import annotations

import ipaddress
import threading
import time
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import grpc

from headrace.errors import SetupError
from headrace_remote.protocol import SERVICE, message

if TYPE_CHECKING:
    import logging
    from collections.abc import Callable, Sequence

    from headrace_remote.options import RemoteOptions
    from headrace_remote.pool import Breaker
    from headrace_remote.signature import Signature

__all__ = [
    *("Server", "connect", "look", "read_model", "reconnect", "takes_items", "warn_of_plain_text"),
]

_READ_S: Final = 10.0
"""How long a server may take to describe the model, in seconds."""

_CHANNEL: Final = (
    ("grpc.max_send_message_length", -1),
    # A call is sent a second time only where `rerun` allows it.
    ("grpc.enable_retries", 0),
    ("grpc.use_local_subchannel_pool", 1),
    # Requests go to the addresses that are named, whatever http_proxy in the environment says.
    ("grpc.enable_http_proxy", 0),
    # The times of reconnecting, in milliseconds; the first is also how long a connection may take to be made.
    ("grpc.min_reconnect_backoff_ms", 2000),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1000),
    # A ping that is not answered for so long ends the connection: gRPC takes the second one, and gives the first to the kernel.
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.http2.ping_timeout_ms", 10_000),
)

_KEEPALIVE_MS: Final = 20_000
"""After how long without a byte from a server that has calls it is pinged at the earliest, in milliseconds."""

_LARGEST: Final = 2**31 - 1
"""The largest number of a setting of gRPC."""

_NAMES: Final = (*("ModelInfer", "ModelReady", "ModelMetadata", "ModelConfig", "ServerMetadata"),)


class Server:
    """A server, and the calls that can be sent to it.

    Args:
        url: Its address.
        channel: Makes a channel to it.
        breaker: Whether it counts as there.

    Attributes:
        url: Its address.
        breaker: Whether it counts as there.
        infer: Sends the bytes of a ``ModelInferRequest`` and returns those of the response.
        calls: The calls by name. All but ``ModelInfer`` take and return messages.
    """

    def __init__(self, url: str, channel: Callable[[], grpc.Channel], breaker: Breaker) -> None:
        self.url = url
        self._make = channel
        self.breaker = breaker
        self._lock = threading.Lock()
        self._closed = False
        self._connecting: Any = None
        self._use(channel())

    def _use(self, channel: grpc.Channel) -> None:
        self._channel = channel
        calls: dict[str, Any] = {}
        for name in _NAMES:
            plain = name == "ModelInfer"
            calls[name] = channel.unary_unary(
                f"/{SERVICE}/{name}",
                None if plain else message(f"{name}Request").SerializeToString,
                None if plain else message(f"{name}Response").FromString,
            )
        self.calls = calls
        self.infer = calls["ModelInfer"]

    def connect(self) -> tuple[grpc.Channel, Any]:
        """Begin another connection; return its channel, and a future that ends when it is made, or by `close`."""
        channel = self._make()
        connected = grpc.channel_ready_future(channel)
        with self._lock:
            self._connecting = connected
            if self._closed:
                connected.cancel()
        return channel, connected

    def replace(self, channel: grpc.Channel) -> None:
        """Use another channel from now on, and end every call on the one before."""
        with self._lock:
            self._end_connecting()
            before = channel if self._closed else self._channel
            if not self._closed:
                self._use(channel)
        before.close()

    def close(self) -> None:
        """End the connection, and every call on it."""
        with self._lock:
            self._closed = True
            self._end_connecting()
        self._channel.close()

    def _end_connecting(self) -> None:
        if self._connecting is not None and not self._connecting.cancelled():
            self._connecting.cancel()  # which may be called only once


def connect(options: RemoteOptions, breaker: Callable[[], Breaker]) -> list[Server]:
    """Make the channels. A connection is made when the first call is sent.

    Args:
        options: Addresses, certificates, limits.
        breaker: Makes the breaker of a server.
    """
    # gRPC's servers, Triton too, allow two pings that come within 300 s of the one before, and then end the connection, unless
    # they send something in between. No call lasts for more than three pings.
    keepalive_ms = int(min(max(_KEEPALIVE_MS, options.timeout_ms / 3), _LARGEST))
    longest = ("grpc.max_receive_message_length", options.max_message_bytes)
    settings = (*_CHANNEL, longest, ("grpc.keepalive_time_ms", keepalive_ms))
    make: Callable[[str], grpc.Channel] = partial(grpc.insecure_channel, options=settings)
    if options.encrypted:
        files = (options.tls_ca, options.tls_key, options.tls_cert)
        read = [None if file is None else file.read_bytes() for file in files]
        credentials = grpc.ssl_channel_credentials(*read)
        make = partial(grpc.secure_channel, credentials=credentials, options=settings)
    return [Server(url, partial(make, url), breaker()) for url in options.urls]


def warn_of_plain_text(options: RemoteOptions, logger: logging.Logger) -> None:
    """Warn once of connections beyond this machine that are not encrypted."""
    far = [url for url in options.urls if not _is_near(url)]
    if far and not options.encrypted:
        logger.warning(
            "requests%s travel to %s in plain text, which everyone on the way can read and change; "
            "tls = true or tls_ca encrypts them",
            "" if options.key is None else " and the key",
            ", ".join(far),
        )


def _is_near(url: str) -> bool:
    if url.startswith("unix:"):
        return True
    host = url.rpartition(":")[0].strip("[]")
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def look(
    servers: Sequence[Server], request: Any, metadata: Any, timeout_s: float
) -> list[bool | None]:
    """Ask servers whether the model is ready, all at the same time.

    Args:
        servers: The servers.
        request: The ``ModelReadyRequest``.
        metadata: The metadata of calls.
        timeout_s: How long they may take to answer, in seconds.

    Returns:
        Whether it is, for each. None for one that has not answered in time.
    """
    running: list[Any] = []
    for server in servers:
        try:
            ready = server.calls["ModelReady"]
            future = ready.future(request, timeout=timeout_s, metadata=metadata)
        except ValueError:  # the channel was closed meanwhile
            future = None
        running.append(future)
    return [_is_ready(future) for future in running]


def _is_ready(future: Any) -> bool | None:
    try:
        return future is not None and bool(future.result().ready)
    except grpc.RpcError as error:
        return None if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED else False
    except grpc.FutureCancelledError:
        return False


def reconnect(servers: Sequence[Server], timeout_s: float) -> None:
    """Give up the calls of servers that do not take a new connection either.

    One that takes it is alive and busy, such as one whose only thread runs a model: its calls go on.

    Args:
        servers: Servers that have not answered.
        timeout_s: How long a new connection may take, in seconds.
    """
    until = time.monotonic() + timeout_s
    connections = [server.connect() for server in servers]
    for server, (channel, connected) in zip(servers, connections, strict=True):
        try:
            connected.result(max(0.0, until - time.monotonic()))
        except (grpc.FutureTimeoutError, grpc.FutureCancelledError):
            server.replace(channel)
        else:
            channel.close()


def read_model(
    servers: Sequence[Server], options: RemoteOptions, metadata: Any, logger: logging.Logger
) -> tuple[Any, Any, str]:
    """Read what the servers say of the model. Those that cannot be reached count as away.

    Returns:
        The ``ModelMetadataResponse``. The ``ModelConfig``, None where the server has no configurations. The name of
        the server's software.

    Raises:
        SetupError: No server has the model, or two servers describe it differently.
    """
    names = {"name": options.model, "version": options.version}
    answers: list[tuple[Server, Any]] = []
    why: dict[str, str] = {}
    request = message("ModelMetadataRequest")(**names)
    terms = {"timeout": _READ_S, "metadata": metadata}
    calls = [server.calls["ModelMetadata"].future(request, **terms) for server in servers]
    for server, call in zip(servers, calls, strict=True):
        try:
            answers.append((server, call.result()))
        except grpc.RpcError as error:
            why[server.url] = f"{error.code().name}: {error.details()}"
            server.breaker.failed(at_once=True)
    if not answers:
        reasons = "; ".join(f"{url}: {text}" for url, text in why.items())
        raise SetupError(
            f"no server describes the model {options.model!r}: {reasons}",
            hint="Start `headrace serve` with --grpc-port, and look at urls, model, key and the options of TLS.",
        )
    for url, text in why.items():
        logger.warning("%s counts as away: it does not describe %r: %s", url, options.model, text)
    first, model = answers[0]
    for other, theirs in answers[1:]:
        if _ports(theirs) != _ports(model):
            raise SetupError(
                f"{first.url} and {other.url} serve different models as {options.model!r}: "
                f"{_ports(model)} and {_ports(theirs)}",
                hint="All urls must serve the same model: use the option version, or two nodes.",
            )
    config = _answer(first, "ModelConfig", names, metadata)
    if config is not None and config.config.model_transaction_policy.decoupled:
        raise SetupError(
            f"the model {options.model!r} on {first.url} is decoupled: it answers in any number of parts",
            hint="Remote takes one answer for each request: set decoupled to false in the model's configuration.",
        )
    about = _answer(first, "ServerMetadata", {}, metadata)
    found_config = None if config is None else config.config
    return model, found_config, "" if about is None else str(about.name)


def _ports(model: Any) -> list[tuple[str, str, list[int]]]:
    ports = (*model.inputs, *model.outputs)
    return [(port.name, port.datatype, list(port.shape)) for port in ports]


def _answer(server: Server, name: str, names: dict[str, str], metadata: Any) -> Any:
    """Return the answer to a call that not every server has; None where it has none."""
    request = message(f"{name}Request")(**names)
    try:
        return server.calls[name](request, timeout=_READ_S, metadata=metadata)
    except grpc.RpcError as error:
        if error.code() in (grpc.StatusCode.UNIMPLEMENTED, grpc.StatusCode.PERMISSION_DENIED):
            return None
        raise SetupError(f"{server.url} does not answer {name}: {error.details()}") from error


def takes_items(
    server: Server, signature: Signature, heads: Sequence[bytes], metadata: Any
) -> bool:
    """Return whether ``headrace serve`` takes each element of the first axis as a request of its own.

    The server is sent a call with no elements, which runs nothing: a model without items refuses its parameter
    ``partial``.

    Args:
        server: A server of ``headrace serve``.
        signature: The signature that the model has if it takes items.
        heads: A ``ModelInferRequest`` with that parameter and no elements: outside of any sequence, and in one, which
            a model that keeps the state of sequences wants.
        metadata: The metadata of calls.
    """
    if not any(port.batched and not port.optional for port in signature.inputs):
        return False
    for head in heads:
        try:
            server.infer(head, timeout=_READ_S, metadata=metadata)
        except grpc.RpcError:
            continue
        return True
    return False
