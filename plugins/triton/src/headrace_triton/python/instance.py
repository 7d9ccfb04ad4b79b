"""An instance of a ``model.py``: its requests and their responses, its event loop, its calls of other models."""

from __future__ import annotations

import asyncio
import inspect
import json
import logging
import sys
import threading
import time
from contextlib import suppress
from contextvars import ContextVar, copy_context
from functools import partial
from math import inf
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any
from uuid import uuid4
from weakref import WeakSet

import headrace
from headrace import PENDING
from headrace.errors import (
    ClosedError,
    ContractError,
    DeadlineExceededError,
    InputError,
    SetupError,
)
from headrace_process.asking import Question, ask, is_elsewhere, limits_of
from headrace_triton.ports import RESPONSE_PARAMETERS
from headrace_triton.python import calls, interface, metrics
from headrace_triton.python.children import end_children_with_this
from headrace_triton.python.configuration import completed
from headrace_triton.python.messages import (
    Incoming,
    InferenceRequest,
    InferenceTrace,
    ResponseSender,
)
from headrace_triton.python.tensors import TritonModelException, outputs_of, ports_seen, tensors_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import Future
    from pathlib import Path

    from headrace.keys import Request
    from headrace_triton.python.messages import InferenceResponse

__all__ = ["Instance"]

_logger = logging.getLogger("headrace.triton")

_LOOK_S = 0.25
"""How often a batch that waits for responses looks whether anybody still waits for it."""

_TRACE = ("traceparent", "tracestate", "baggage")
"""Keys of the context of a request that say to which trace it belongs."""

_READY_S = 1.0
"""How often a model is asked whether it is ready, where it has ``is_ready``."""

_RESPONSES = "It returns a list with an InferenceResponse for each request."

_running: ContextVar[Instance | None] = ContextVar("headrace_triton_running", default=None)
_instances: WeakSet[Instance] = WeakSet()
"""The instances in this process. In a process of its own there is one."""


class Instance:
    """An instance of a model.

    Args:
        name: The name of the backend, which asks in the process that started this one.
        file: The model.py.
        config: The configuration of the model.
        context: What the backend was given.

    Attributes:
        config: The configuration, as the model has completed it.
        ended: Notified as a request ends, where the thread of the batch ``waits`` for it.

    Raises:
        SetupError: The file has no class TritonPythonModel.
    """

    def __init__(
        self, name: str, file: Path, config: dict[str, Any], context: headrace.InitContext
    ) -> None:
        sys.modules.setdefault("triton_python_backend_utils", interface)
        self._name, self._context, self._answer = name, context, calls.answers(context)
        self._open: set[Incoming] = set()
        self._senders: WeakSet[ResponseSender] = WeakSet()
        self._thread = 0
        self.ended, self.waits = threading.Condition(), False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._closed = threading.Event()
        if is_elsewhere():
            end_children_with_this()
        module = headrace.plugins.import_file(file)
        model: Any = getattr(module, "TritonPythonModel", None)
        if not hasattr(model, "execute"):
            raise SetupError(f"{file} has no class TritonPythonModel with a method `execute`")
        if hasattr(model, "auto_complete_config"):
            initial = interface.ModelConfig(json.dumps(config))
            config = completed(model.auto_complete_config(initial).as_dict())
        self.config = config
        self._decoupled = interface.using_decoupled_model_transaction_policy(config)
        self._inputs, self._outputs = ports_seen(config, "input"), ports_seen(config, "output")
        _instances.add(self)
        before = _running.set(self)
        try:
            self._model = model()
            if hasattr(self._model, "initialize"):
                self._model.initialize(self._arguments(file))
            if hasattr(self._model, "is_ready"):
                self._follow_readiness()
        finally:
            _running.reset(before)

    def _follow_readiness(self) -> None:
        """Tell the node whether the model is ready, now and at each change, until the instance is closed."""
        index, is_ready = self._context.instance_index, self._told_ready()
        self.asked(calls.Readiness(index, is_ready))

        def follow() -> None:
            before = is_ready
            while not self._closed.wait(_READY_S):
                now = self._told_ready()
                if now is not before:
                    before = now
                    self.asked(calls.Readiness(index, now))

        name = f"headrace-{self.config['name']}-ready"
        threading.Thread(target=copy_context().run, args=(follow,), name=name, daemon=True).start()

    def _told_ready(self) -> bool:
        """Return what ``is_ready`` of the model says. An error is False, as in Triton."""
        try:
            return bool(self._model.is_ready())
        except Exception:
            _logger.warning("is_ready of model %r failed", self.config["name"], exc_info=True)
            return False

    def _arguments(self, file: Path) -> dict[str, str]:
        device, _, ordinal = (self._context.device or "cpu").partition(":")
        name, version = self.config["name"], file.parent
        return {
            "model_config": json.dumps(self.config),
            "model_name": name,
            "model_version": version.name,
            "model_repository": str(version.parent),
            "model_instance_name": f"{name}_0_{self._context.instance_index}",
            "model_instance_kind": "GPU" if device == "cuda" else "CPU",
            "model_instance_device_id": ordinal or "0",
        }

    def run(self, batch: list[Request]) -> list[Any]:
        """Let the model execute the batch. Wait for its responses, or let them come later."""
        incoming = [self._received(request) for request in batch]
        self._open |= {*incoming}
        self._thread = threading.get_ident()
        before = _running.set(self)
        try:
            requests = [*filter(None, map(self._asked, incoming))]
            if requests:
                self._execute([arrival for arrival in incoming if not arrival.over], requests)
            del requests  # a request that the model has dropped as well ends by its sender
            if is_elsewhere() and not all(arrival.over for arrival in incoming):
                self.waits = True
                self._wait_for(incoming)
        except BaseException:  # as of sys.exit: the batch has its outcome
            for arrival in incoming:
                self._forget(arrival)
            raise
        finally:
            self._thread, self.waits = 0, False
            _running.reset(before)
        return [*map(self._outcome, incoming)]

    def _received(self, request: Request) -> Incoming:
        limits = (
            limits_of(request) if is_elsewhere() else (self._context.request.deadline(request), 0)
        )
        return Incoming(self, request, self._context.request.keep(request), limits)

    def _asked(self, arrival: Incoming) -> InferenceRequest | None:
        """Return a request as the model sees it. None for one that has ended, since an input is wrong."""
        request, (deadline, priority) = arrival.request, arrival.limits
        try:
            tensors = tensors_of(self._inputs, request)
        except InputError as error:
            arrival.end(None, error)
            return None
        sender = ResponseSender(arrival, decoupled=self._decoupled)
        self._senders.add(sender)
        context = request.get("context") or {}
        return InferenceRequest(
            str(request.get("request_id", "")),
            request.get("sequence_id", 0),
            tensors,
            [*self._outputs],
            self.config["name"],
            timeout=0 if deadline is None else max(1, int((deadline - time.monotonic()) * 1e6)),
            flags=bool(request.get("sequence_start")) + 2 * bool(request.get("sequence_end")),
            parameters=context.get("parameters"),
            priority=priority,
            trace=InferenceTrace({name: context[name] for name in _TRACE if name in context}),
            sender=sender,
            incoming=arrival,
        )

    def _execute(self, incoming: list[Incoming], requests: list[InferenceRequest]) -> None:
        """Call ``execute``, and give the requests the responses that it returns."""
        try:
            answer = self._model.execute([*requests])  # it may empty the list
            if inspect.iscoroutine(answer):
                future = asyncio.run_coroutine_threadsafe(answer, self._running_loop())
                if self._decoupled and not is_elsewhere():
                    future.add_done_callback(partial(self._take_later, incoming, requests))
                    return
                answer = future.result()
        except Exception as error:  # noqa: BLE001 - it is the outcome of each request that has none
            for arrival in incoming:
                arrival.end(None, error)
        else:
            self._take(incoming, answer)

    def _take_later(self, incoming: list[Incoming], _: Any, done: Future[Any]) -> None:
        """Take what a coroutine has returned. Until then its requests are held: one that is dropped ends by its sender."""
        error: Any = ClosedError("the model was closed") if done.cancelled() else done.exception()
        if error is None:
            return self._take(incoming, done.result())
        for arrival in incoming:
            arrival.end(None, error)
        return None

    def _take(self, incoming: list[Incoming], answers: Any) -> None:
        """Give requests what ``execute`` has returned."""
        if answers is None:
            for arrival in incoming:
                if not self._decoupled and not arrival.taken:
                    arrival.end(None, ContractError("execute gave None", hint=_RESPONSES))
            return
        count = len(answers) if isinstance(answers, (list, tuple)) else type(answers).__name__
        if count != len(incoming):
            problem = f"execute gave {count} for {len(incoming)} requests"
            for arrival in incoming:
                arrival.end(None, ContractError(problem, hint=_RESPONSES))
            return
        for arrival, answer in zip(incoming, answers, strict=True):
            arrival.answer(answer)

    def _running_loop(self) -> asyncio.AbstractEventLoop:
        """Return the event loop of this instance, which runs in a thread of its own."""
        if self._loop is None:
            self._loop = loop = asyncio.new_event_loop()
            name = f"headrace-{self.config['name']}-loop"
            threading.Thread(target=self._run_loop, args=(loop,), name=name, daemon=True).start()
        return self._loop

    def _run_loop(self, loop: asyncio.AbstractEventLoop) -> None:
        """Run the event loop until the instance is closed, whatever code of the model does to it."""
        while not (self._closed.is_set() or loop.is_closed()):
            with suppress(
                BaseException
            ):  # as of sys.exit in a coroutine, which is the outcome of its batch
                loop.run_forever()

    def _wait_for(self, incoming: list[Incoming]) -> None:
        """Wait until all requests of a batch have ended, or nobody waits for them."""
        for arrival in incoming:
            while not arrival.over:
                until = arrival.limits[0]
                left = _LOOK_S if until is None else min(_LOOK_S, until - time.monotonic())
                with self.ended:
                    self.ended.wait_for(partial(getattr, arrival, "over"), left)
                if until is not None and time.monotonic() >= until:
                    problem = "the model sent no last response in time"
                    arrival.end(None, DeadlineExceededError(problem))
                elif not arrival.over and self.is_unwanted(arrival):
                    arrival.end(None, ClosedError("nobody waits for the request any more"))

    def _outcome(self, arrival: Incoming) -> Any:
        """Return the outcome of a request: None, an error, or PENDING."""
        with arrival.turn:
            arrival.kept = not arrival.over
        if arrival.kept:
            if not self._context.request.on_end(arrival.handle, lambda _: self._forget(arrival)):
                self._forget(arrival)
            return PENDING
        self._open.discard(arrival)
        if arrival.error is None:
            arrival.request["result"] = arrival.result
            self._tell_parameters(arrival)
        return arrival.error

    def _tell_parameters(self, arrival: Incoming) -> None:
        if arrival.parameters:
            arrival.request[RESPONSE_PARAMETERS] = arrival.parameters

    def _forget(self, arrival: Incoming) -> None:
        arrival.end(None, ClosedError("the request has ended"))
        self._open.discard(arrival)

    # What requests and their senders ask of their instance, from any thread.

    def emit(self, incoming: Incoming, response: InferenceResponse) -> None:
        """Give a part of an answer."""
        try:
            outputs = self.outputs_of(response)
        except ContractError as wrong:
            incoming.end(None, wrong)
        else:
            self._context.request.emit(incoming.handle, outputs)

    def finish(self, incoming: Incoming) -> None:
        """End a request that is kept."""
        outcome = incoming.result if incoming.error is None else incoming.error
        if not self._context.request.unwanted(incoming.handle):  # else the dict is its caller's
            self._tell_parameters(incoming)
        self._context.request.finish(incoming.handle, outcome)

    def outputs_of(self, response: InferenceResponse) -> dict[str, Any]:
        """Return the arrays of a response by name; ContractError where they are not those of the configuration."""
        return outputs_of(self._outputs, response.output_tensors())

    def is_unwanted(self, incoming: Incoming) -> bool:
        """Return whether nobody waits for a request any more."""
        if not is_elsewhere():
            return self._context.request.unwanted(incoming.handle)
        try:
            return bool(self.asked(calls.UNWANTED, incoming.request))
        except ContractError:  # in a place that takes no questions
            return False

    def asked(self, content: Any, request: Request | None = None) -> Any:
        """Ask what answers this instance, where the models of the server are, and wait for the answer."""
        came: SimpleQueue[tuple[Any, Any]] = SimpleQueue()

        def take(answer: Any, _: bool, error: Exception | None) -> None:
            came.put((answer, error))

        self._ask(content, request, take)
        answer, error = came.get()
        if error is not None:
            raise error
        return answer

    def _ask(self, content: Any, request: Request | None, take: Any, thread: int = 0) -> None:
        if is_elsewhere():
            ask(self._name, content, request, take)
        else:
            self._answer(Question(content, take, thread))

    def call(self, query: InferenceRequest, take: Any) -> Callable[[], object]:
        """Begin a call of another model. Return what gives it up."""
        running = [*self._open]
        ends = [arrival.limits[0] for arrival in running]
        until = max([inf if end is None else end for end in ends], default=inf)
        if query.timeout():
            until = min(until, time.monotonic() + query.timeout() / 1e6)
        fixed: dict[str, Any] = {"request_id": query.request_id()} if query.request_id() else {}
        context = dict(query.trace().context)
        if parameters := json.loads(query.parameters()):
            context["parameters"] = parameters
        if context:
            fixed["context"] = context
        if query.correlation_id():
            flags = {"sequence_start": query.flags() & 1, "sequence_end": query.flags() & 2}
            fixed |= {"sequence_id": query.correlation_id()}
            fixed |= {key: True for key, is_set in flags.items() if is_set}
        content = calls.ModelCall(
            query.model_name(),
            query.model_version(),
            {tensor.name(): tensor.on_cpu() for tensor in query.inputs()},
            query.requested_output_names(),
            until if until < inf else None,
            max([arrival.limits[1] for arrival in running], default=0),
            fixed,
            number := uuid4().hex,
        )
        here = threading.get_ident() == self._thread or not self._decoupled
        try:
            request = running[0].request if running else None
            self._ask(content, request, take, self._thread if here else 0)
        except Exception as error:  # noqa: BLE001 - a model gets it as the response
            take(None, True, error)
        return partial(self.asked, calls.Cancel(number))

    def close(self) -> None:
        """Let the model finalize itself. Threads that it has left can send nothing any more."""
        _instances.discard(self)
        try:
            if hasattr(self._model, "finalize"):
                self._model.finalize()
        finally:
            for sender in [*self._senders]:
                sender.close()
            self._closed.set()
            if self._loop is not None:
                self._loop.call_soon_threadsafe(self._loop.stop)


def _change(change: metrics.Change) -> float:
    """Change a number of a model, where the numbers are."""
    try:
        return float(_current().asked(change) if is_elsewhere() else metrics.change(change))
    except ValueError as error:
        raise TritonModelException(str(error)) from None


metrics.MetricFamily.send = staticmethod(_change)


def _current() -> Instance:
    """Return the instance whose code runs here."""
    instance, every = _running.get(), [*_instances]
    if instance is None:
        if len(every) != 1:
            problem = "this thread belongs to no model: several run in this process"
            hint = "Start it by contextvars.copy_context().run, or let the model live in Process."
            raise TritonModelException(f"{problem}. {hint}")
        instance = every[0]
    return instance


def _ready(name: str, version: str) -> bool:
    """Return whether a model takes requests."""
    try:
        return bool(_current().asked(calls.IsReady(name, version)))
    except ContractError as error:
        raise TritonModelException(str(error)) from None


InferenceRequest.begin = lambda request, take: _current().call(request, take)
InferenceRequest.ready = staticmethod(_ready)
