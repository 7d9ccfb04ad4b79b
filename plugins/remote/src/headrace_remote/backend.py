"""`Remote`: its contract. gRPC, protobuf and numpy are first imported in `init`."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from typing_extensions import NotRequired, TypedDict

import headrace
from headrace.errors import DeadlineExceededError, RequestError
from headrace_remote.options import RemoteOptions

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headrace.keys import Request
    from headrace_remote.remote_model import RemoteModel
    from headrace_remote.values import Item

__all__ = ["Remote"]


class _Reads(TypedDict):
    """The keys that are read where the model has one input and the option ``inputs`` is not set."""

    data: NotRequired[Any]
    request_id: NotRequired[Any]
    context: NotRequired[Any]
    sequence_id: NotRequired[Any]
    sequence_start: NotRequired[Any]
    sequence_end: NotRequired[Any]


class Remote(headrace.Backend):
    """Run a batch on another server of the Open Inference Protocol: ``headrace serve``, Triton or KServe.

    Requests with the same inputs, of the same shapes, are one ``ModelInfer`` over gRPC. The arrays travel as raw
    bytes, and nothing is pickled.

    Reads:
        data: The input of a model with one required input; with several, the keys with their names; the option
            ``inputs`` names other keys. An array of the input's dtype: one sample, without the batch axis, or
            ``request_size`` rows, with it. For BYTES: bytes or text, or lists of them. Optional inputs of the
            server's model configuration have the keys with their names, and are sent for requests that bring them.
        request_id: Travels as ``id``, with commas between the ids of a batch.
        context: Its ``traceparent``, ``tracestate`` and ``baggage`` travel in the metadata, up to 2,000 bytes each; of a
            batch those of the first request that has some.
        sequence_id: The sequence with state on the server: a number other than 0, or a text. The request travels
            alone, always to the same server of ``urls``.
        sequence_start: Whether it is the first request of its sequence.
        sequence_end: Whether it is the last request of its sequence.
    Writes:
        result: The array of the only output, or a dict of arrays by output name; without batch axis if the request
            brought one sample. Of BYTES outputs bytes, with ``text`` str, or the value of JSON text. New memory.
    Batch:
        1 or more if the tensors have a batch axis, up to the ``max_batch_size`` of the server's model, else 1.

    Raises:
        InputError: A key is missing, dtype, shape or number of rows do not fit, or the server says so.
        OverloadedError: Every server refused it, because it has too much to do.
        DeadlineExceededError: The time of the request or ``timeout_ms`` is over, or the server says so.
        ServersAwayError: No server could be reached.
        ConnectionLostError: The connection broke after the request was sent, and ``rerun`` is not set.
        BackendError: The server failed.
    Source:
        own. The Open Inference Protocol (KServe's "Open Inference Protocol", version 2), with the configuration
        of models and the parameters of Triton.
    """

    Options = RemoteOptions
    max = None
    reads: tuple[str, ...] | type = _Reads
    writes = ("result",)

    _model: RemoteModel
    _options: RemoteOptions
    _context: headrace.InitContext

    @classmethod
    def auto_instances(cls, options: RemoteOptions, device: str | None, threads: int) -> int | None:
        """Return ``threads``: an instance waits for its server, and computes nothing here."""
        return threads

    def init(self, options: RemoteOptions, context: headrace.InitContext) -> None:
        """Connect to the servers, once for all instances of the node, and read the model's metadata.

        Raises:
            SetupError: No server has the model, or the options do not fit it.
        """
        from headrace_remote import remote_model, sending, values

        self._options, self._context = options, context
        key = options.key and options.key.get_secret_value()  # which the dump hides
        name = ("headrace_remote", options.model_dump_json(), key)
        self._model = context.store.node.get_or_create(
            name, lambda: remote_model.open_model(options, context.logger)
        )
        shown = ("remote", context.node_name)
        context.store.pipeline.get_or_create(shown, remote_model.Presences).add(self._model)
        self._read = values.read_item
        self._group_of = values.group_of
        self._may_go_alone = sending.may_go_alone
        known = ("request_id", "context", *values.SEQUENCE)
        keys: dict[str, Any] = dict.fromkeys(known, NotRequired[Any])
        for port in self._model.signature.inputs:
            keys[port.key] = NotRequired[Any] if port.optional else Any
        typed_dict: Any = TypedDict
        self.reads = typed_dict("_Reads", keys)
        self.max = self._model.signature.max_rows
        self._model.watch(self._say)

    def _say(self, away: bool) -> None:
        """Say whether no server is there; batches come all the same, since requests wait or are refused here."""
        if away:
            self._context.health.away(takes_batches=True)
        else:
            self._context.health.back()

    def close(self) -> None:
        """Say nothing more of the servers."""
        if "_model" in vars(self):
            self._model.unwatch(self._say)

    def forward(self, batch: list[Request]) -> list[Exception | None] | None:
        """Send all valid requests, those that may share a call in one.

        A call may take as long as its request with the most time. Expired requests are not sent. After a wait for a
        server, requests without a waiting caller are not sent either.
        """
        ours = time.monotonic() + self._options.timeout_ms / 1000
        times = [self._until(request, ours) for request in batch]
        waited = self._model.wait(max(times))
        outcomes: list[Exception | None] = [None] * len(batch)
        groups: dict[Any, list[tuple[int, Item]]] = {}
        for place, request in enumerate(batch):
            # Whether it is wanted is asked where it has waited alone: it costs more than all else here.
            if _is_late(times[place], ours) or (waited and self._is_unwanted(request)):
                outcomes[place] = _over()
                continue
            try:
                item = self._read(request, self._model.signature)
            except RequestError as error:
                outcomes[place] = error
            else:
                groups.setdefault(self._group_of(item, self._model.signature), []).append(
                    (place, item)
                )
        for members in groups.values():
            self._run(batch, members, outcomes, times, ours)
        return outcomes if any(outcomes) else None

    def _is_unwanted(self, request: Request) -> bool:
        asks = self._context.request
        return asks.unwanted(asks.keep(request))

    def _until(self, request: Request, ours: float) -> float:
        """Return when a request must have its answer: at its own deadline, or at the end of ``timeout_ms``."""
        own = self._context.request.deadline(request)
        return ours if own is None or own > ours else own

    def _run(
        self,
        batch: Sequence[Request],
        members: Sequence[tuple[int, Item]],
        outcomes: list[Exception | None],
        times: Sequence[float],
        ours: float,
    ) -> None:
        """Send items that share a call, and write their results and errors."""
        requests = [batch[place] for place, _ in members]
        until = max([times[place] for place, _ in members])
        try:
            results = self._model.run(
                [item for _, item in members], requests, until, whole=until == ours
            )
        except RequestError as error:
            if len(members) > 1 and self._options.rerun and self._may_go_alone(error):
                for member in members:
                    place = member[0]
                    if _is_late(times[place], ours) or self._is_unwanted(batch[place]):
                        outcomes[place] = _over()
                    else:
                        self._run(batch, [member], outcomes, times, ours)
                return
            results = [error] * len(members)
        now = time.monotonic()
        for (place, _), result in zip(members, results, strict=True):
            if times[place] <= now and times[place] < ours:
                outcomes[place] = _over()
            elif isinstance(result, RequestError):
                outcomes[place] = result
            else:
                batch[place]["result"] = result

    def describe(self) -> dict[str, Any]:
        """Return the servers with their state, the software, and the inputs and outputs."""
        return self._model.describe()


def _is_late(until: float, ours: float) -> bool:
    """Return whether the own time of a request is over."""
    return until < ours and until <= time.monotonic()


def _over() -> DeadlineExceededError:
    return DeadlineExceededError("the time of the request is over, or its caller no longer waits")
