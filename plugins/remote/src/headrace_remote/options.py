"""The options of `Remote`."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from pydantic import Field, SecretStr, field_validator, model_validator

import headrace

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["RemoteOptions"]

_URL = re.compile(r"unix:.+|(\[[0-9A-Fa-f:.]+\]|[^\s:/\[\]]+):(\d{1,5})")

Name = Annotated[str, Field(min_length=1)]


class RemoteOptions(headrace.Options):
    """Options of `Remote`.

    Attributes:
        model: The name of the model on the servers.
        urls: The servers' addresses of gRPC, `host:port` or `unix:/path`; all serve the same model.
        version: The version of the model; default: the server chooses.
        inputs: Key of the request per input name; default: `data` for the only input that a request must bring, else
            the input's name.
        outputs: Names of the outputs to ask for; default: all.
        unbatched: Names of inputs and outputs whose first axis is not the batch axis; requests are then sent one at a
            time, but for optional inputs.
        batched: Whether the first axis of the tensors is the batch axis; default: as the server's model configuration
            says, or where it has none, if all first axes are of any length.
        text: Whether BYTES outputs come as str, read as UTF-8, and not as bytes.
        timeout_ms: How long a batch may take with all its attempts at most, in milliseconds, where its requests have no
            less time; it travels as the deadline of each call.
        priority: The protocol's parameter `priority` of each call: 1 is the most urgent, 0 is the server's default and
            is not sent.
        rerun: Whether the server may run a request twice: batches that broke after sending go to another server, and
            batches that failed as a whole are sent again item by item.
        retries: With `rerun`, how often a batch that broke after sending is sent again at most.
        when_away: What happens while no server can be reached: requests wait for one until their time is over, or are
            refused at once.
        failures: A server counts as away after this many timeouts in a row. A server that refuses connections, or is
            not ready, counts as away at once.
        health_ms: How often each server is asked whether the model is ready, in milliseconds. A server that is away is
            asked less and less often, down to once in 30 s.
        health_timeout_ms: How long a server may take to answer that, in milliseconds. A later server counts as away. If
            it takes no new connection in the same time either, its calls are given up.
        max_message_bytes: The most bytes of an answer. A longer answer fails its batch, and is not received.
        key: The key for the servers, sent as `authorization: Bearer KEY`; write it as `${NAME}` to take it from the
            environment.
        tls: Whether connections are encrypted; also by naming one of the files below.
        tls_ca: The roots that sign the servers' certificates, PEM; default: gRPC's own.
        tls_cert: The certificate that this client shows, PEM; goes with `tls_key`.
        tls_key: The private key of `tls_cert`, PEM.
    """

    positional: ClassVar[tuple[str, ...]] = ("model",)

    model: Name
    urls: Annotated[tuple[str, ...], Field(min_length=1)]
    version: str = ""
    inputs: dict[str, Name] = Field({})
    outputs: Annotated[tuple[str, ...], Field(min_length=1)] | None = None
    unbatched: tuple[str, ...] = ()
    batched: bool | None = None
    text: bool = False
    timeout_ms: float = Field(60_000, gt=0)
    priority: int = Field(0, ge=0)
    rerun: bool = False
    retries: int = Field(1, ge=0)
    when_away: Literal["wait", "refuse"] = "wait"
    failures: int = Field(3, ge=1)
    health_ms: float = Field(1000, ge=1)
    health_timeout_ms: float = Field(2000, ge=1)
    max_message_bytes: int = Field(1 << 30, ge=1, lt=1 << 31)
    key: SecretStr | None = None
    tls: bool = False
    tls_ca: headrace.FilePath | None = None
    tls_cert: headrace.FilePath | None = None
    tls_key: headrace.FilePath | None = None

    @property
    def encrypted(self) -> bool:
        """Whether connections are encrypted."""
        return self.tls or self.tls_ca is not None or self.tls_cert is not None

    @field_validator("urls")
    @classmethod
    def _addresses(cls, urls: tuple[str, ...]) -> tuple[str, ...]:
        for url in urls:
            match = _URL.fullmatch(url)
            if match is None or (match[2] is not None and not 0 < int(match[2]) < 65536):
                hint = " (without http:// or grpc://)" if "://" in url else ""
                raise ValueError(f"{url!r} is no address host:port{hint}, such as gpu1:8001")
        return urls

    @field_validator("key")
    @classmethod
    def _printable(cls, key: SecretStr | None) -> SecretStr | None:
        text = None if key is None else key.get_secret_value()
        if text is not None and not (text and text.isascii() and text.isprintable()):
            raise ValueError("a key has printable ASCII characters only, and at least one")
        return key

    @field_validator("urls", "outputs", "unbatched")
    @classmethod
    def _once(cls, names: tuple[str, ...] | None) -> tuple[str, ...] | None:
        twice = sorted({name for name in names or () if (names or ()).count(name) > 1})
        if twice:
            raise ValueError(f"{', '.join(map(repr, twice))} is listed twice")
        return names

    @model_validator(mode="after")
    def _fit(self) -> Self:
        if (self.tls_cert is None) is not (self.tls_key is None):
            raise ValueError("tls_cert and tls_key go together: name both files, or none")
        if self.batched and self.unbatched:
            raise ValueError("batched = true and unbatched exclude each other: leave one out")
        return self
