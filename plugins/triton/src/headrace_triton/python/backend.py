"""TritonPython: runs a ``model.py`` that was written for Triton's Python backend."""

from __future__ import annotations

import asyncio
import inspect
import json
import sys
import threading
import time
from contextvars import ContextVar
from functools import partial
from math import inf
from queue import SimpleQueue
from typing import TYPE_CHECKING, Annotated, Any
from weakref import WeakSet

from pydantic import AfterValidator, Field
from typing_extensions import NotRequired, TypedDict

import headrace
from headrace import PENDING
from headrace.errors import ClosedError, ContractError, DeadlineExceededError, SetupError
from headrace_triton.ports import optional_names, ports_of
from headrace_triton.python import calls
from headrace_triton.python.messages import Incoming, InferenceRequest, ResponseSender
from headrace_triton.python.ports import completed, outputs_of
from headrace_triton.python.tensors import Tensor, TritonModelException, as_bytes
from headrace_workers.asking import Question, ask, is_elsewhere, limits_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import Future

    from headrace.keys import Request
    from headrace_triton.python.messages import InferenceResponse

__all__ = ["TritonPython"]

_LOOK_S = 0.25
"""How often a batch that waits for responses looks whether anybody still waits for it."""

_SEQUENCE = ("sequence_id", "sequence_start", "sequence_end")
"""Keys of a request that say where it stands in its sequence."""

_RESPONSES = "It returns a list with an InferenceResponse for each request."

_running: ContextVar[TritonPython | None] = ContextVar("headrace_triton_running", default=None)
_instances: WeakSet[TritonPython] = WeakSet()
"""The instances in this process. In a process of its own there is one."""


def _checked_config(text: str) -> str:
    """Check that a text is the JSON of a model's configuration."""
    try:
        found = json.loads(text)
    except json.JSONDecodeError as error:
        raise ValueError(f"it is no JSON: {error}") from error
    completed(found)
    return text


class TritonPython(headrace.Backend):
    """Run a ``model.py`` of Triton's Python backend as it is: ``Process[TritonPython]``.

    The file finds the module ``triton_python_backend_utils``. Its class ``TritonPythonModel`` has ``execute``, which may be
    ``async``, and perhaps ``initialize`` and ``finalize``. In ``Process`` it has a process of its own, as there: a crash costs
    its batch, and the instance goes on once all requests of the batch have ended. Without ``Process`` the instances share a
    process and the globals of the file, and a request whose responses come later holds no instance.

    A response with a decoupled model is a part of the answer. One that is sent with the final flag is its result.
    ``exec`` and ``async_exec`` call each model of the server, with the deadline of their request, and in ``Process`` with its
    priority. A call out of a batch of several requests has the latest deadline and the greatest priority of them.

    Reads:
        The inputs of the configuration, arrays by their names. request_id, ``parameters`` in context, and sequence_id,
        sequence_start, sequence_end, where a request has them.
    Writes:
        result: A dict of arrays by output. None where a decoupled model has sent no last response.
    Batch:
        1 or more, in rows where the configuration has a max_batch_size.

    Raises:
        ContractError: ``execute`` gave another number of responses, none, or outputs that are not those of the
            configuration. InputError, OverloadedError, BackendError: the model answered with an error of code INVALID_ARG,
            UNAVAILABLE, or another one.
    Source:
        own, after the interface of https://github.com/triton-inference-server/python_backend
    """

    class Options(headrace.Options):
        """Options of TritonPython."""

        positional = ("model",)

        model: headrace.FilePath = Field(description="The file, `NAME/VERSION/model.py`.")
        config: Annotated[str, AfterValidator(_checked_config)] = Field(
            description="The configuration of the model as JSON, as Triton prints it."
        )

    keeps = True
    reads = ()

    @classmethod
    def answerer(cls, options: Any, context: headrace.InitContext) -> Callable[[Question], object]:
        """Return what answers the questions of an instance in a process of its own."""
        return calls.answers()

    def init(self, options: Any, context: headrace.InitContext) -> None:
        """Run the file, and let the model initialize itself.

        Raises:
            SetupError: Code may not be imported, the file has no such class, or ``initialize`` raised.
        """
        if not context.allow_import:
            raise SetupError("model.py runs code, and imports are refused here")
        from headrace_triton.python import interface

        sys.modules.setdefault("triton_python_backend_utils", interface)
        self._context, self._answer = context, calls.answers()
        self._open: set[Incoming] = set()
        self._senders: WeakSet[ResponseSender] = WeakSet()
        self._thread = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        module = headrace.plugins.import_file(options.model)
        made = getattr(module, "TritonPythonModel", None)
        if made is None:
            raise SetupError(f"{options.model} has no class TritonPythonModel")
        config = interface.ModelConfig(json.dumps(completed(json.loads(options.config))))
        if hasattr(made, "auto_complete_config"):
            config = made.auto_complete_config(config)
        self._config = completed(config.as_dict())
        self._decoupled = interface.using_decoupled_model_transaction_policy(self._config)
        self._inputs, self._outputs = (
            [one["name"] for one in self._config[side]] for side in ("input", "output")
        )
        optional = optional_names(self._config)
        kinds: Any = dict.fromkeys(_SEQUENCE, NotRequired[Any])
        kinds |= {one: NotRequired[Any] if one in optional else Any for one in self._inputs}
        self.reads = TypedDict("Reads", kinds)  # type: ignore[misc]
        if not self._config["max_batch_size"]:
            self.max = 1
        _instances.add(self)
        before = _running.set(self)
        try:
            self._model = made()
            if hasattr(self._model, "initialize"):
                self._model.initialize(self._arguments(options, context))
        finally:
            _running.reset(before)

    def _arguments(self, options: Any, context: headrace.InitContext) -> dict[str, str]:
        device, _, ordinal = (context.device or "cpu").partition(":")
        name, version = self._config["name"], options.model.parent
        return {
            "model_config": json.dumps(self._config),
            "model_name": name,
            "model_version": version.name,
            "model_repository": str(version.parent),
            "model_instance_name": f"{name}_0_{context.instance_index}",
            "model_instance_kind": "GPU" if device == "cuda" else "CPU",
            "model_instance_device_id": ordinal or "0",
        }

    def describe(self) -> dict[str, Any]:
        """Return the inputs and outputs."""
        return {"model": self._config["name"], **ports_of(self._config)}

    def forward(self, batch: list[Request]) -> list[Any]:
        """Let the model execute the batch. Wait for its responses, or let them come later."""
        incoming = [self._received(request) for request in batch]
        self._open |= {*incoming}
        self._thread = threading.get_ident()
        _running.set(self)
        try:
            self._execute(incoming)
            if is_elsewhere():
                self._wait_for(incoming)
        finally:
            self._thread = 0
        return [*map(self._outcome, incoming)]

    def _received(self, request: Request) -> Incoming:
        limits = (
            limits_of(request) if is_elsewhere() else (self._context.request.deadline(request), 0)
        )
        return Incoming(self, request, limits)

    def _asked(self, one: Incoming) -> InferenceRequest:
        """Return a request as the model sees it."""
        request, (deadline, priority) = one.request, one.limits
        tensors = [
            Tensor(name, as_bytes(request[name])) for name in self._inputs if name in request
        ]
        sender = ResponseSender(one, decoupled=self._decoupled)
        self._senders.add(sender)
        context = request.get("context") or {}
        return InferenceRequest(
            str(request.get("request_id", "")),
            request.get("sequence_id", 0),
            tensors,
            self._outputs,
            self._config["name"],
            timeout=0 if deadline is None else max(1, int((deadline - time.monotonic()) * 1e6)),
            flags=bool(request.get("sequence_start")) + 2 * bool(request.get("sequence_end")),
            parameters=context.get("parameters"),
            priority=priority,
            sender=sender,
            incoming=one,
        )

    def _execute(self, incoming: list[Incoming]) -> None:
        """Call ``execute``, and give the requests the responses that it returns."""
        asked = [*map(self._asked, incoming)]
        try:
            given = self._model.execute(asked)
            if inspect.iscoroutine(given):
                future = asyncio.run_coroutine_threadsafe(given, self._running_loop())
                if self._decoupled and not is_elsewhere():
                    future.add_done_callback(partial(self._take_later, incoming, asked))
                    return
                given = future.result()
        except Exception as error:  # noqa: BLE001 - it is the outcome of each request that has none
            for one in incoming:
                one.end(None, error)
        else:
            self._take(incoming, given)

    def _take_later(self, incoming: list[Incoming], _: Any, done: Future[Any]) -> None:
        """Take what a coroutine has returned. Until then its requests are held: one that is dropped ends by its sender."""
        error: Any = ClosedError("the model was closed") if done.cancelled() else done.exception()
        if error is None:
            return self._take(incoming, done.result())
        for one in incoming:
            one.end(None, error)
        return None

    def _take(self, incoming: list[Incoming], answers: Any) -> None:
        """Give requests what ``execute`` has returned."""
        if answers is None:
            for one in incoming:
                if not self._decoupled and not one.taken:
                    one.end(None, ContractError("execute gave None", hint=_RESPONSES))
            return
        count = len(answers) if isinstance(answers, (list, tuple)) else type(answers).__name__
        if count != len(incoming):
            what = f"execute gave {count} for {len(incoming)} requests"
            for one in incoming:
                one.end(None, ContractError(what, hint=_RESPONSES))
            return
        for one, answer in zip(incoming, answers, strict=True):
            one.answer(answer)

    def _running_loop(self) -> asyncio.AbstractEventLoop:
        """Return the event loop of this instance, which runs in a thread of its own."""
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
            name = f"headrace-{self._config['name']}-loop"
            threading.Thread(target=self._loop.run_forever, name=name, daemon=True).start()
        return self._loop

    def _wait_for(self, incoming: list[Incoming]) -> None:
        """Wait until all requests of a batch have ended, or nobody waits for them."""
        for one in incoming:
            until = one.limits[0]
            left = _LOOK_S
            while not one.changed.wait(left):
                left = (
                    _LOOK_S if until is None else max(0.0, min(_LOOK_S, until - time.monotonic()))
                )
                if left == 0.0:
                    one.end(None, DeadlineExceededError("the model sent no last response in time"))
                elif self.is_unwanted(one):
                    one.end(None, ClosedError("nobody waits for the request any more"))

    def _outcome(self, one: Incoming) -> Any:
        """Return the outcome of a request: None, an error, or PENDING."""
        with one.turn:
            one.kept = not one.over
        if one.kept:
            self._context.request.on_end(one.request, lambda _: self._forget(one))
            return PENDING
        self._open.discard(one)
        if one.error is None:
            one.request["result"] = one.result
        return one.error

    def _forget(self, one: Incoming) -> None:
        one.end(None, ClosedError("the request has ended"))
        self._open.discard(one)

    # What requests and their senders ask of their instance, from any thread.

    def emit(self, incoming: Incoming, response: InferenceResponse) -> None:
        """Give a part of an answer."""
        try:
            outputs = self.outputs_of(response)
        except ContractError as wrong:
            incoming.end(None, wrong)
        else:
            self._context.request.emit(incoming.request, outputs)

    def finish(self, incoming: Incoming) -> None:
        """End a request that is kept."""
        outcome = incoming.result if incoming.error is None else incoming.error
        self._context.request.finish(incoming.request, outcome)

    def outputs_of(self, response: InferenceResponse) -> dict[str, Any]:
        """Return the arrays of a response by name; ContractError where they are not those of the configuration."""
        return outputs_of(self._config, response)

    def is_unwanted(self, incoming: Incoming) -> bool:
        """Return whether nobody waits for a request any more."""
        if not is_elsewhere():
            return self._context.request.unwanted(incoming.request)
        came: SimpleQueue[bool] = SimpleQueue()
        name = type(self).__name__
        try:
            ask(name, calls.UNWANTED, incoming.request, lambda found, *_: came.put(bool(found)))
        except ContractError:  # in a place that takes no questions
            return False
        return came.get()

    def call(self, asked: InferenceRequest, take: Any) -> None:
        """Begin a call of another model."""
        running = [*self._open]
        ends = [one.limits[0] for one in running]
        until = max([inf if one is None else one for one in ends], default=inf)
        if asked.timeout():
            until = min(until, time.monotonic() + asked.timeout() / 1e6)
        fixed: dict[str, Any] = {"request_id": asked.request_id()} if asked.request_id() else {}
        if parameters := json.loads(asked.parameters()):
            fixed["context"] = {"parameters": parameters}
        if asked.correlation_id():
            flags = {"sequence_start": asked.flags() & 1, "sequence_end": asked.flags() & 2}
            fixed |= {
                "sequence_id": asked.correlation_id(),
                **{k: True for k, v in flags.items() if v},
            }
        content = calls.ModelCall(
            asked.model_name(),
            asked.model_version(),
            {one.name(): one.on_cpu() for one in asked.inputs()},
            asked.requested_output_names(),
            until if until < inf else None,
            max([one.limits[1] for one in running], default=0),
            fixed,
        )
        try:
            if is_elsewhere():
                ask(type(self).__name__, content, running[0].request if running else None, take)
            else:
                here = threading.get_ident() == self._thread or not self._decoupled
                self._answer(Question(content, take, self._thread if here else 0))
        except Exception as error:  # noqa: BLE001 - a model gets it as the response
            take(None, True, error)

    def close(self) -> None:
        """Let the model finalize itself. Threads that it has left can send nothing any more."""
        _instances.discard(self)
        try:
            if hasattr(self._model, "finalize"):
                self._model.finalize()
        finally:
            for sender in [*self._senders]:
                sender.close()
            if self._loop is not None:
                self._loop.call_soon_threadsafe(self._loop.stop)


def _begin(asked: InferenceRequest, take: Any) -> None:
    """Begin a call of another model, out of the instance whose code runs here."""
    instance, every = _running.get(), [*_instances]
    if instance is None:
        if len(every) != 1:
            what = "this thread belongs to no model: several run in this process"
            hint = "Start it by contextvars.copy_context().run, or let the model live in Process."
            raise TritonModelException(f"{what}. {hint}")
        instance = every[0]
    instance.call(asked, take)


InferenceRequest.begin = _begin
