"""Requests and responses as a ``model.py`` sees them, and the sender of the responses of one request."""

from __future__ import annotations

import asyncio
import json
import threading
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

from headrace.errors import (
    BackendError,
    ClosedError,
    ContractError,
    DeadlineExceededError,
    InputError,
    OverloadedError,
)
from headrace_models import UnknownModelError, UnloadedError
from headrace_triton.python.tensors import Tensor, TritonModelException, as_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

__all__ = [
    "FINAL", "Incoming", "InferenceRequest", "InferenceResponse", "InferenceTrace",
    "ResponseIterator", "ResponseSender", "TritonError",
]  # fmt: skip

FINAL = 1
"""The flag of the last response."""
RELEASE_ALL = 1
"""The flag of a request that the model needs no more."""


class TritonError:
    """An error in place of the outputs of a request.

    Args:
        message: What has happened.
        code: One of the codes of this class.
    """

    UNKNOWN, INTERNAL, NOT_FOUND, INVALID_ARG, UNAVAILABLE, UNSUPPORTED = range(6)
    ALREADY_EXISTS, CANCELLED = 6, 7

    def __init__(self, message: Any = "", code: int = 1) -> None:
        self._message, self._code = str(message), code

    @classmethod
    def of(cls, error: BaseException) -> TritonError:
        """Return what a model is told of the error of a call."""
        known: list[tuple[Any, int]] = [
            (UnknownModelError, cls.NOT_FOUND),
            (InputError, cls.INVALID_ARG),
            ((OverloadedError, UnloadedError, DeadlineExceededError), cls.UNAVAILABLE),
            (ClosedError, cls.CANCELLED),
        ]
        code = next((code for kind, code in known if isinstance(error, kind)), cls.INTERNAL)
        return cls(error, code)

    def as_error(self) -> Exception:
        """Return the error of the request."""
        if self._code == self.INVALID_ARG:
            return InputError(self._message)
        if self._code == self.UNAVAILABLE:
            return OverloadedError(self._message)
        return BackendError(self._message)

    def message(self) -> str:
        """Return the text."""
        return self._message

    def code(self) -> int:
        """Return the code."""
        return self._code

    def __str__(self) -> str:
        return self._message


def _as_json(parameters: Mapping[str, Any] | None) -> str:
    """Return the parameters of a request or response as JSON.

    Raises:
        TritonModelException: A name is no text, or a value is neither text nor a whole number nor a truth value.
    """
    for name, value in (parameters or {}).items():
        if not isinstance(name, str) or not isinstance(value, (str, int)):
            got = f"{name!r}: {type(value).__name__}"
            raise TritonModelException(
                f"parameters are texts, whole numbers or booleans, got {got}"
            )
    return json.dumps(dict(parameters or {}))


class InferenceTrace:
    """The trace to which a request belongs.

    Args:
        context: What its caller has sent of it, by name: ``traceparent``, ``tracestate``, ``baggage``.
    """

    def __init__(self, context: Mapping[str, str] | None = None) -> None:
        self.context = dict(context or {})

    def get_context(self) -> str | None:
        """Return this as JSON. None where the caller traces nothing."""
        return json.dumps(self.context) if self.context else None


class InferenceResponse:
    """The outputs of a request, or its error.

    Raises:
        TritonModelException: An output is no tensor.
    """

    def __init__(
        self,
        output_tensors: Sequence[Tensor] = (),
        error: TritonError | str | None = None,
        parameters: Mapping[str, Any] | None = None,
    ) -> None:
        self._tensors = [*output_tensors]
        for tensor in self._tensors:
            if not isinstance(tensor, Tensor):
                got = type(tensor).__name__
                raise TritonModelException(f"outputs of a response are tensors, got {got}")
        self._error = error if isinstance(error, TritonError | None) else TritonError(error)
        self._parameters = _as_json(parameters)

    def output_tensors(self) -> list[Tensor]:
        """Return the outputs."""
        return self._tensors

    def has_error(self) -> bool:
        """Return whether it is an error."""
        return self._error is not None

    def error(self) -> TritonError | None:
        """Return the error."""
        return self._error

    def parameters(self) -> str:
        """Return its parameters as JSON."""
        return self._parameters


class Incoming:
    """One request that the model is to answer: its end, which comes once.

    Args:
        owner: The instance of the model.

    Attributes:
        request: The request.
        handle: Its handle, of ``context.request.keep``.
        limits: The end of its time (``time.monotonic()``, seconds, None for never), and its priority.
        over: Whether it has ended.
        result, error: Its outcome.
        parameters: Those of its response.
        kept: Whether its end has to be told, since the batch went on without it.
        taken: Whether the model has asked for its sender.
        turn: Held while it ends, or sends. What the collector drops may come back to the same thread.
    """

    def __init__(
        self, owner: Any, request: Any, handle: Any, limits: tuple[float | None, int]
    ) -> None:
        self.owner, self.request, self.handle, self.limits = owner, request, handle, limits
        self.over = self.kept = self.taken = False
        self.result: dict[str, Any] | None = None
        self.error: Exception | None = None
        self.parameters: dict[str, Any] = {}
        self.turn = threading.RLock()

    def end(self, result: dict[str, Any] | None, error: Exception | None = None) -> None:
        """End it. A second end changes nothing."""
        with self.turn:
            if self.over:
                return
            self.result, self.error, self.over = result, error, True
            is_kept = self.kept
        if self.owner.waits:  # it was set before the thread that waits looked at `over`
            with self.owner.ended:
                self.owner.ended.notify_all()
        if is_kept:
            self.owner.finish(self)

    def answer(self, response: Any) -> None:
        """End it with a response."""
        if not isinstance(response, InferenceResponse):
            problem = f"execute gave {type(response).__name__} in place of an InferenceResponse"
            return self.end(None, ContractError(problem))
        if (error := response.error()) is not None:
            return self.end(None, error.as_error())
        self.parameters = json.loads(response.parameters())
        try:
            return self.end(self.owner.outputs_of(response))
        except Exception as wrong:  # noqa: BLE001 - also of an array elsewhere that cannot be copied
            return self.end(None, wrong)


class ResponseSender:
    """Sends the responses of one request, from any thread."""

    def __init__(self, incoming: Incoming, *, decoupled: bool) -> None:
        self._incoming, self._decoupled = incoming, decoupled
        self._count, self._closed = 0, False

    def send(self, response: InferenceResponse | None = None, flags: int = 0) -> None:
        """Send a response, or end the request, or both.

        Args:
            response: The response. One with an error ends the request.
            flags: 0, or `FINAL` with the last response or in place of one.

        Raises:
            TritonModelException: It comes after the final flag, or is no response.
        """
        if self._closed:
            raise TritonModelException(
                "the sender was used after the final flag, or after its model"
            )
        if flags not in (0, FINAL):
            raise TritonModelException(f"unknown flags {flags}: 0 or FINAL is expected")
        if response is None and not flags:
            raise TritonModelException("a response is needed unless the final flag is set")
        if response is not None and not isinstance(response, InferenceResponse):
            got = type(response).__name__
            raise TritonModelException(f"an InferenceResponse is expected, got {got}")
        self._count += response is not None
        if not self._decoupled and self._count > 1:
            raise TritonModelException("a model that is not decoupled sends one response")
        self._closed = bool(flags)
        incoming = self._incoming
        if response is None:
            incoming.end(None)
        elif flags or response.has_error() or not self._decoupled:
            incoming.answer(response)
        elif not incoming.over:
            incoming.owner.emit(incoming, response)

    def close(self) -> None:
        """Let nothing be sent any more: the model is closed."""
        self._closed = True

    def is_cancelled(self) -> bool:
        """Return whether nobody waits for the request any more."""
        return self._incoming.over or self._incoming.owner.is_unwanted(self._incoming)

    def __del__(self) -> None:
        if self._incoming.over:
            return
        problem = "the model has dropped a request without an answer"
        hint = "Send the final flag, or return a response."
        self._incoming.end(None, ContractError(problem, hint=hint))


class ResponseIterator:
    """The responses to a call, as they come.

    Attributes:
        give_up: Gives the call up.
        told: Called with each response that comes: whether it is the last.
    """

    give_up: Callable[[], object]

    def __init__(self) -> None:
        self._came: SimpleQueue[tuple[Any, bool, Exception | None]] = SimpleQueue()
        self._over = False
        self.told: Callable[[bool], object] = bool

    def take(self, value: Any, is_last: bool, error: Exception | None) -> None:
        """Take what a model has answered."""
        self._came.put((value, is_last, error))
        self.told(is_last)

    def __iter__(self) -> Iterator[InferenceResponse]:
        return self

    def __next__(self) -> InferenceResponse:
        while not self._over:
            value, self._over, error = self._came.get()
            if error is not None:
                return InferenceResponse(error=TritonError.of(error))
            if value:
                return InferenceResponse(
                    [Tensor(name, as_bytes(array)) for name, array in value.items()]
                )
        raise StopIteration

    def cancel(self) -> None:
        """Give the call up. The error CANCELLED is its last response then, unless it has ended."""
        self.give_up()

    def only(self) -> InferenceResponse:
        """Wait for all, and return the one that a model gives which is not decoupled."""
        responses: list[InferenceResponse] = [*self]
        if len(responses) == 1 or (responses and responses[-1].has_error()):
            return responses[-1]
        problem = f"the model gave {len(responses)} responses: call exec(decoupled=True)"
        return InferenceResponse(error=TritonError(problem, TritonError.UNSUPPORTED))


class InferenceRequest:
    """A request: one that a model gets, or one that it makes for another model.

    Attributes:
        begin: Begins the call, of the instance whose code runs here, with what takes its responses. Returns what gives it up.
        ready: Tells that instance whether a model of a name and version takes requests.
    """

    begin: Any = None
    ready: Callable[[str, str], bool]

    def __init__(  # noqa: PLR0913, PLR0917 - the names and the order by which models know them
        self,
        request_id: str = "",
        correlation_id: int | str = 0,
        inputs: Sequence[Tensor] = (),
        requested_output_names: Sequence[str] = (),
        model_name: str | bytes = "",
        model_version: int = -1,
        flags: int = 0,
        timeout: int = 0,
        preferred_memory: Any = None,
        trace: InferenceTrace | None = None,
        parameters: Mapping[str, Any] | None = None,
        *,
        priority: int = 0,
        sender: ResponseSender | None = None,
        incoming: Incoming | None = None,
    ) -> None:
        self._id, self._correlation, self._inputs = request_id, correlation_id, [*inputs]
        self._outputs = [*requested_output_names]
        self.model = model_name.decode() if isinstance(model_name, bytes) else model_name
        self.version, self._flags, self._timeout = model_version, flags, timeout
        self._trace = InferenceTrace() if trace is None else trace
        self._memory, self._parameters, self._priority = preferred_memory, parameters, priority
        self._sender, self._incoming = sender, incoming

    def inputs(self) -> list[Tensor]:
        """Return the inputs."""
        return self._inputs

    def request_id(self) -> str:
        """Return the id, ``""`` without one."""
        return self._id

    def correlation_id(self) -> int | str:
        """Return the id of the sequence, 0 without one."""
        return self._correlation

    def requested_output_names(self) -> list[str]:
        """Return the names of the outputs that are wanted."""
        return self._outputs

    def model_name(self) -> str:
        """Return the name of the model."""
        return self.model

    def model_version(self) -> int:
        """Return the version, -1 for the one that the name means."""
        return self.version

    def parameters(self) -> str:
        """Return the parameters as JSON."""
        return json.dumps(dict(self._parameters or {}))

    def priority(self) -> int:
        """Return the priority."""
        return self._priority

    def timeout(self) -> int:
        """Return the time that the request has (microseconds), 0 for any."""
        return self._timeout

    def flags(self) -> int:
        """Return the flags: the first and the last request of a sequence."""
        return self._flags

    def set_flags(self, flags: int) -> None:
        """Set the flags."""
        self._flags = flags

    def set_release_flags(self, flags: int) -> None:
        """Say that the model has done with the request, as `RELEASE_ALL` means.

        Raises:
            TritonModelException: They ask for the request once more.
        """
        if flags != RELEASE_ALL:
            raise TritonModelException(
                "a request is released once: TRITONSERVER_REQUEST_RELEASE_RESCHEDULE is not here"
            )

    def trace(self) -> InferenceTrace:
        """Return the trace to which it belongs. A call that gets it is a part of that."""
        return self._trace

    def preferred_memory(self) -> Any:
        """Return what was given as the preferred memory."""
        return self._memory

    def get_response_sender(self) -> ResponseSender:
        """Return what sends the responses of this request.

        Raises:
            TritonModelException: The model has made this request itself.
        """
        if self._sender is None or self._incoming is None:
            raise TritonModelException("a request that a model has made has no sender")
        self._incoming.taken = True
        return self._sender

    def is_cancelled(self) -> bool:
        """Return whether nobody waits for it any more."""
        return self._sender is not None and self._sender.is_cancelled()

    def exec(self, decoupled: bool = False) -> Any:
        """Call the model, and wait.

        Args:
            decoupled: Whether any number of responses may come.

        Returns:
            The response, which may be an error. For a decoupled call an iterator of responses as they come.
        """
        responses = ResponseIterator()
        responses.give_up = self.begin(responses.take)
        return responses if decoupled else responses.only()

    def async_exec(self, decoupled: bool = False) -> asyncio.Future[Any]:
        """Call the model, and return at once.

        Returns:
            To be awaited: what `exec` returns, for a decoupled call once the first response has come.
        """
        loop, responses = asyncio.get_running_loop(), ResponseIterator()
        answer = loop.create_future()

        def give() -> None:
            if not answer.done():
                answer.set_result(responses if decoupled else responses.only())

        def told(is_last: bool) -> None:
            if is_last or decoupled:
                loop.call_soon_threadsafe(give)

        responses.told = told
        responses.give_up = self.begin(responses.take)
        return answer
