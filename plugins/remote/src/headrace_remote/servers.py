"""The connections of a node: a channel of gRPC per server, and what is read from the servers at the start."""

from __future__ import annotations

import ipaddress
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

__all__ = ["Server", "connect", "look", "read_model", "takes_items", "warn_of_plain_text"]

_LOOK_S: Final = 2.0
"""How long a server may take to say whether it is ready, in seconds."""

_READ_S: Final = 10.0
"""How long a server may take to describe the model, in seconds."""

_CHANNEL: Final = (
    ("grpc.max_send_message_length", -1),
    ("grpc.max_receive_message_length", -1),
    # A call is sent a second time only where `rerun` allows it.
    ("grpc.enable_retries", 0),
    ("grpc.use_local_subchannel_pool", 1),
    # The times of reconnecting, in milliseconds; the first is also how long a connection may take to be made.
    ("grpc.min_reconnect_backoff_ms", 2000),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1000),
)

_NAMES: Final = (*("ModelInfer", "ModelReady", "ModelMetadata", "ModelConfig", "ServerMetadata"),)


class Server:
    """A server, and the calls that can be sent to it.

    Attributes:
        url: Its address.
        breaker: Whether it counts as there.
        infer: Sends the bytes of a ``ModelInferRequest`` and returns those of the response.
        calls: The calls by name; all but ``ModelInfer`` take and return messages.
    """

    def __init__(self, url: str, channel: grpc.Channel, breaker: Breaker) -> None:
        self.url = url
        self.breaker = breaker
        self._channel = channel
        self.calls: dict[str, Any] = {}
        for name in _NAMES:
            plain = name == "ModelInfer"
            self.calls[name] = channel.unary_unary(
                f"/{SERVICE}/{name}",
                None if plain else message(f"{name}Request").SerializeToString,
                None if plain else message(f"{name}Response").FromString,
            )
        self.infer = self.calls["ModelInfer"]

    def close(self) -> None:
        """End the connection, and every call on it."""
        self._channel.close()


def connect(options: RemoteOptions, breaker: Callable[[], Breaker]) -> list[Server]:
    """Make the channels; a connection is made when the first call is sent.

    Args:
        options: Addresses, certificates.
        breaker: Makes the breaker of a server.
    """
    credentials = None
    if options.encrypted:
        files = (options.tls_ca, options.tls_key, options.tls_cert)
        read = [None if one is None else one.read_bytes() for one in files]
        credentials = grpc.ssl_channel_credentials(*read)
    made = []
    for url in options.urls:
        if credentials is None:
            channel = grpc.insecure_channel(url, options=_CHANNEL)
        else:
            channel = grpc.secure_channel(url, credentials, options=_CHANNEL)
        made.append(Server(url, channel, breaker()))
    return made


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


def look(servers: Sequence[Server], asked: Any, metadata: Any) -> list[bool]:
    """Ask servers whether the model is ready, all at the same time.

    Args:
        servers: The servers.
        asked: The ``ModelReadyRequest``.
        metadata: The metadata of calls.
    """
    running: list[Any] = []
    for one in servers:
        try:
            future = one.calls["ModelReady"].future(asked, timeout=_LOOK_S, metadata=metadata)
        except ValueError:  # the channel was closed meanwhile
            future = None
        running.append(future)
    return [_is_ready(future) for future in running]


def _is_ready(future: Any) -> bool:
    try:
        return future is not None and bool(future.result().ready)
    except (grpc.RpcError, grpc.FutureCancelledError):
        return False


def read_model(
    servers: Sequence[Server], options: RemoteOptions, metadata: Any, logger: logging.Logger
) -> tuple[Any, Any, str]:
    """Read what the servers say of the model. Those that cannot be reached count as away.

    Returns:
        The ``ModelMetadataResponse``; the ``ModelConfig``, None where the server has no configurations; the name of
        the server's software.

    Raises:
        SetupError: No server has the model, or two servers describe it differently.
    """
    asked = {"name": options.model, "version": options.version}
    found: list[tuple[Server, Any]] = []
    why: dict[str, str] = {}
    calls = [
        one.calls["ModelMetadata"].future(
            message("ModelMetadataRequest")(**asked), timeout=_READ_S, metadata=metadata
        )
        for one in servers
    ]
    for one, call in zip(servers, calls, strict=True):
        try:
            found.append((one, call.result()))
        except grpc.RpcError as error:
            why[one.url] = f"{error.code().name}: {error.details()}"
            one.breaker.failed(at_once=True)
    if not found:
        reasons = "; ".join(f"{url}: {text}" for url, text in why.items())
        raise SetupError(
            f"no server describes the model {options.model!r}: {reasons}",
            hint="Start `headrace serve` with --grpc-port, and look at urls, model, key and the options of TLS.",
        )
    for url, text in why.items():
        logger.warning("%s counts as away: it does not describe %r: %s", url, options.model, text)
    first, model = found[0]
    for other, one in found[1:]:
        if _ports(one) != _ports(model):
            raise SetupError(
                f"{first.url} and {other.url} serve different models as {options.model!r}: "
                f"{_ports(model)} and {_ports(one)}",
                hint="All urls must serve the same model: use the option version, or two nodes.",
            )
    config = _answer(first, "ModelConfig", asked, metadata)
    if config is not None and config.config.model_transaction_policy.decoupled:
        raise SetupError(
            f"the model {options.model!r} on {first.url} is decoupled: it answers in any number of parts",
            hint="Remote takes one answer for each request: set decoupled to false in the model's configuration.",
        )
    about = _answer(first, "ServerMetadata", {}, metadata)
    found_config = None if config is None else config.config
    return model, found_config, "" if about is None else str(about.name)


def _ports(model: Any) -> list[tuple[str, str, list[int]]]:
    return [(one.name, one.datatype, list(one.shape)) for one in (*model.inputs, *model.outputs)]


def _answer(server: Server, name: str, asked: dict[str, str], metadata: Any) -> Any:
    """Return the answer to a call that not every server has; None where it has none."""
    request = message(f"{name}Request")(**asked)
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
