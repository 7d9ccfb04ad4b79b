"""Calls of other models by the code of one: what is asked, and what answers it beside the other models."""

from __future__ import annotations

import threading
import time
from concurrent.futures import Future
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from headrace.errors import ClosedError, ContractError
from headrace_models import call_model, models_here
from headrace_triton.python.metrics import Change, change

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import headrace
    from headrace_process.asking import Question

__all__ = ["UNWANTED", "Cancel", "IsReady", "ModelCall", "Readiness", "answers"]

UNWANTED = "unwanted"
"""Asks whether the caller of a request waits no more."""


class ModelCall(NamedTuple):
    """A call of a model.

    Attributes:
        name, version: The model. A version of -1 is the one that the name means.
        tensors: Its inputs by name.
        outputs: The outputs that are wanted. Empty for all.
        deadline: The end of its time (``time.monotonic()``, seconds). None for never.
        priority: A greater one goes first.
        fixed: Further keys of its request.
        number: Names the call, for `Cancel`.
    """

    name: str
    version: int
    tensors: Mapping[str, Any]
    outputs: Sequence[str]
    deadline: float | None
    priority: int
    fixed: Mapping[str, Any]
    number: str


class Cancel(NamedTuple):
    """Gives a call up."""

    number: str


class IsReady(NamedTuple):
    """Asks whether a model takes requests. Version ``""`` is any that the name means."""

    name: str
    version: str


class Readiness(NamedTuple):
    """Says whether an instance takes requests, as the ``is_ready`` of its model has said."""

    instance: int
    ready: bool


class _Node:
    """The instances of one node. While the model of one is not ready, all are away, and still get requests."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._places: list[Any] = []
        self._unready: set[int] = set()

    def add(self, place: Any) -> None:
        with self._lock:
            self._places.append(place)
            self._tell([place])

    def note(self, readiness: Readiness) -> None:
        with self._lock:
            (self._unready.discard if readiness.ready else self._unready.add)(readiness.instance)
            self._tell(self._places)

    def _tell(self, places: list[Any]) -> None:
        for place in places:
            if self._unready:
                place.away(takes_batches=True)
            else:
                place.back()


class _Open:
    """A call that goes on."""

    future: Future[Any]

    def __init__(self, question: Question) -> None:
        self._question, self._is_over = question, False

    def send(self, part: Any, _: bool) -> None:
        """Send a part of the answer, or let the request end with an error where nobody wants it."""
        if self._is_over:
            raise ClosedError("it was cancelled")
        self._question.send(part, False, None)

    def give_up(self) -> bool:
        """Cancel the request. One on which a backend works ends with its next part."""
        self._is_over = True
        return self.future.cancel()


def answers(context: headrace.InitContext) -> Callable[[Question], object]:
    """Return what answers the questions of an instance that is built right now: its calls reach the models beside it."""
    models, open_calls = models_here(), dict[str, _Open]()
    node = context.store.node.get_or_create("headrace_triton.readiness", _Node)
    node.add(context.health)

    def told(question: Question, item: Any) -> Any:
        """Return what is known at once."""
        if isinstance(item, Change):
            return change(item)
        if isinstance(item, Readiness):
            return node.note(item)
        if isinstance(item, Cancel):
            opened = open_calls.get(item.number)
            return None if opened is None else opened.give_up()
        if isinstance(item, IsReady) and models is not None:
            return _is_ready(models, item.name, item.version)
        return question.unwanted

    def answer(question: Question) -> None:
        call = question.content
        if models is None and isinstance(call, (IsReady, ModelCall)):
            problem = f"model {call.name!r} is asked for, and there are none beside this pipeline"
            raise ContractError(problem, hint="Serve it with the other models.")
        if not isinstance(call, ModelCall):
            question.send(told(question, call), True, None)
            return
        opened = _Open(question)
        left = None if call.deadline is None else max(0.0, call.deadline - time.monotonic())
        running = call_model(
            models,
            call.name,
            call.tensors,
            version=call.version,
            outputs=call.outputs,
            timeout=left,
            priority=call.priority,
            on_part=opened.send,
            thread=question.thread,
            **call.fixed,
        )
        opened.future, open_calls[call.number] = running, opened
        running.add_done_callback(lambda _: open_calls.pop(call.number))
        running.add_done_callback(partial(_end, question))

    return answer


def _is_ready(models: Any, name: str, version: str) -> bool:
    """Return whether a request for a model, or for an alias, would be served, also where that builds it first."""
    serving = models.versions().get(name)
    if serving is None:
        return not version and name in models
    return version in serving if version else bool(serving)


def _end(question: Question, done: Future[dict[str, Any]]) -> None:
    error: Any = ClosedError("it was cancelled") if done.cancelled() else done.exception()
    question.send(None if error else done.result(), True, error)
