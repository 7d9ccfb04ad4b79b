"""A model on several servers: what the instances of a node share."""

from __future__ import annotations

import math
import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from headrace.errors import BackendError, RequestError
from headrace_remote.pool import Breaker, Pool
from headrace_remote.protocol import message
from headrace_remote.sending import Call, Sender, errors_of_rows
from headrace_remote.servers import (
    Server,
    connect,
    look,
    read_model,
    reconnect,
    takes_items,
    warn_of_plain_text,
)
from headrace_remote.signature import DTYPES, Signature, read_signature
from headrace_remote.values import Item, Sequenced, result_of
from headrace_remote.wire import Reader, Writer

if TYPE_CHECKING:
    import logging
    from collections.abc import Callable, Sequence

    from headrace_remote.options import RemoteOptions

__all__ = ["Presences", "RemoteModel", "open_model"]


_PROBED: Final = "headrace-remote"
"""The sequence of a call without elements."""
_TRACE: Final = ("traceparent", "tracestate", "baggage")
_MOST_TRACE_BYTES: Final = 2000
"""Of each: beyond 8 KiB of metadata in all a server of gRPC refuses some of the calls (``grpc.max_metadata_size``)."""


class Presences:
    """What ``stats()`` says of the servers of a node; any number of threads may use it."""

    def __init__(self) -> None:
        self._models: list[RemoteModel] = []
        self._lock = threading.Lock()

    def add(self, model: RemoteModel) -> None:
        """Show a model until it is closed."""
        with self._lock:
            others = [other for other in self._models if not other.closed and other is not model]
            self._models = [*others, model]

    def statistics(self) -> list[dict[str, Any]]:
        """Return `RemoteModel.presence` of each open model."""
        return [model.presence() for model in self._models if not model.closed]


class RemoteModel:
    """A model on several servers. Any number of threads may use it.

    Args:
        options: The options of the node.
        pool: The servers.
        signature: Inputs and outputs.
        partial: Whether the servers give an outcome per row.
        software: The name of the servers' software.
    """

    def __init__(
        self,
        options: RemoteOptions,
        pool: Pool[Server],
        signature: Signature,
        *,
        partial: bool,
        software: str,
    ) -> None:
        self.signature = signature
        self._options = options
        self._pool = pool
        self._partial = partial
        self._software = software
        self._metadata = metadata_of(options)
        self._writer = _writer(options, signature, partial=partial)
        self._reader = Reader(signature, text=options.text)
        waits, rerun = options.when_away == "wait", options.rerun
        self._sender = Sender(pool, rerun=rerun, retries=options.retries, waits=waits)

    def watch(self, function: Callable[[bool], object]) -> None:
        """Have ``function(away)`` called whenever the last server goes away, or a first one is back; see `Pool.watch`."""
        self._pool.watch(function)

    def unwatch(self, function: Callable[[bool], object]) -> None:
        """End what `watch` has begun."""
        self._pool.unwatch(function)

    def wait(self, until: float) -> bool:
        """Wait for a server where none is there and requests wait for one, at most until a time of the clock.

        Returns:
            Whether it has waited.
        """
        waits = self._pool.away and self._options.when_away == "wait"
        if waits:
            self._pool.wait(until)
        return waits

    def run(
        self,
        items: Sequence[Item],
        requests: Sequence[Mapping[str, Any]],
        until: float,
        *,
        whole: bool = True,
    ) -> list[Any]:
        """Send items of the same shapes in one call.

        Args:
            items: What the requests send.
            requests: The requests. ``request_id`` and ``context`` are read.
            until: The deadline, on the clock of ``time.monotonic()``.
            whole: Whether it is `timeout_ms` that ends then, and no request's own time.

        Returns:
            For each item its result, or its error.

        Raises:
            RequestError: The call failed as a whole.
        """
        data = self._writer.write(items, _identifier(requests))
        rows = sum([item.rows for item in items])
        sequence = items[0].sequence
        servers = self._pool.servers
        only = None if sequence is None else servers[sequence.choose(len(servers))]
        call = Call(data, until, self._with_trace(requests), rows, whole, only)
        answer, url = self._sender.send(call)
        try:
            outputs = self._reader.read(answer)
            failed = errors_of_rows(url, outputs.errors)
            return self._results(items, rows, outputs.arrays, failed)
        except BackendError as error:
            error.what += f" (from {url})"
            raise

    def _results(
        self, items: Sequence[Item], rows: int, arrays: list[Any], failed: dict[int, RequestError]
    ) -> list[Any]:
        for port, array in zip(self.signature.outputs, arrays, strict=True):
            sent = array.shape[0] if array.ndim else 0
            if port.batched and sent != rows - len(failed):
                raise BackendError(
                    f"the server sent {sent} rows of output {port.name!r} for {rows - len(failed)}",
                    hint="Name outputs without a batch axis in unbatched.",
                )
        results: list[Any] = []
        row = start = 0
        for item in items:
            lost = failed and [failed[i] for i in range(row, row + item.rows) if i in failed]
            results.append(lost[0] if lost else result_of(arrays, self.signature, start, item))
            row += item.rows
            start += item.rows - len(lost)
        return results

    def _with_trace(self, requests: Sequence[Mapping[str, Any]]) -> Any:
        for request in requests:
            context = request.get("context")
            if isinstance(context, Mapping):
                fields = {name: context.get(name) for name in _TRACE}
                sent = {name: str(value) for name, value in fields.items() if _may_travel(value)}
                if "traceparent" not in sent:
                    sent.pop("tracestate", None)
                if sent:
                    return (*self._metadata, *sent.items())
        return self._metadata

    @property
    def closed(self) -> bool:
        """Whether the connections were ended."""
        return self._pool.closed

    def presence(self) -> dict[str, Any]:
        """Return the name of the model, whether a server is there, and the servers with their state."""
        ready, servers = not self._pool.away, self._servers()
        return {"model": self._options.model, "ready": ready, "servers": servers}

    def _servers(self) -> list[dict[str, Any]]:
        return [
            {
                "url": server.url,
                "state": "away" if server.breaker.away else "there",
                "outstanding": self._pool.outstanding(server),
            }
            for server in self._pool.servers
        ]

    def describe(self) -> dict[str, Any]:
        """Return the servers with their state, the software, and the inputs and outputs."""
        inputs: dict[str, Any] = {}
        optional: dict[str, Any] = {}
        for port in self.signature.inputs:
            about = {"key": port.key, **port.describe()}
            (optional if port.optional else inputs)[port.name] = about
        return {
            "model": self._options.model,
            "servers": self._servers(),
            "software": self._software,
            "partial": self._partial,
            "inputs": inputs,
            **({"optional_inputs": optional} if optional else {}),
            "outputs": {port.name: port.describe() for port in self.signature.outputs},
        }

    def close(self) -> None:
        """End the connections, and the thread that looks at the servers."""
        self._pool.close()


def _may_travel(value: Any) -> bool:
    """Return whether gRPC takes a value as metadata: printable ASCII, and no more than servers accept."""
    fits = isinstance(value, str) and 0 < len(value) <= _MOST_TRACE_BYTES
    return fits and value.isascii() and value.isprintable()


def metadata_of(options: RemoteOptions) -> tuple[tuple[str, str], ...]:
    """Return the metadata of every call."""
    if options.key is None:
        return ()
    return (("authorization", f"Bearer {options.key.get_secret_value()}"),)


def open_model(options: RemoteOptions, logger: logging.Logger) -> RemoteModel:
    """Connect to the servers and read the model's metadata.

    Raises:
        SetupError: No server has the model, or the options do not fit it.
    """
    warn_of_plain_text(options, logger)
    metadata = metadata_of(options)
    ready = message("ModelReadyRequest")(name=options.model, version=options.version)
    servers = connect(options, lambda: Breaker(options.failures, options.health_ms / 1000))
    patience_s = options.health_timeout_ms / 1000
    pool = Pool(
        servers,
        lambda ones: look(ones, ready, metadata, patience_s),
        silent=lambda ones: reconnect(ones, patience_s),
    )
    try:
        described, config, software = read_model(servers, options, metadata, logger)
        about: dict[str, Any] = {"config": config, "keys": options.inputs}
        about |= {key: getattr(options, key) for key in ("outputs", "unbatched", "batched")}
        signature = read_signature(described, by_item=False, **about)
        partial = False
        if software == "headrace-serve" and options.batched is not False:
            items = read_signature(described, by_item=True, **about)
            there = next(server for server in servers if not server.breaker.away)
            writer = _writer(options, items, partial=True)
            sequences = None, Sequenced(_PROBED, start=True, end=True)
            heads = [writer.write([_nothing(items, sequence)]) for sequence in sequences]
            partial = takes_items(there, items, heads, metadata)
            signature = items if partial else signature
    except BaseException:
        pool.close()
        raise
    pool.start()
    return RemoteModel(options, pool, signature, partial=partial, software=software)


def _nothing(signature: Signature, sequence: Sequenced | None) -> Item:
    """Return an item without rows and optional inputs; its other axes of any length have one element."""
    sides = [port.sample_shape if port.batched else port.shape for port in signature.inputs]
    known = [tuple(1 if n is None else n for n in shape) for shape in sides]
    pairs = zip(signature.inputs, known, strict=True)
    shapes = tuple(None if port.optional else shape for port, shape in pairs)
    # Zeros are also BYTES elements without bytes, each with its length of four bytes.
    wide = {"BYTES": 4, "BF16": 2}
    parts = tuple(
        b""
        if port.batched or shape is None
        else bytes(math.prod(shape) * wide.get(port.datatype, DTYPES[port.datatype].itemsize))
        for port, shape in zip(signature.inputs, shapes, strict=True)
    )
    return Item(0, False, shapes, parts, sequence)


def _writer(options: RemoteOptions, signature: Signature, *, partial: bool) -> Writer:
    model, is_all = (options.model, options.version, signature), options.outputs is None
    return Writer(*model, all_outputs=is_all, partial=partial, priority=options.priority)


def _identifier(requests: Sequence[Mapping[str, Any]]) -> str:
    known = [str(request["request_id"]) for request in requests if "request_id" in request]
    return ",".join(known) if known else ""
