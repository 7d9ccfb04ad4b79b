"""Calls of other models by the code of one: what is asked, and what answers it beside the other models."""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from headrace.errors import ContractError
from headrace_models import call_model, models_here
from headrace_triton.python.metrics import Change, change

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from concurrent.futures import Future

    from headrace_process.asking import Question

__all__ = ["UNWANTED", "ModelCall", "answers"]

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
    """

    name: str
    version: int
    tensors: Mapping[str, Any]
    outputs: Sequence[str]
    deadline: float | None
    priority: int
    fixed: Mapping[str, Any]


def answers() -> Callable[[Question], object]:
    """Return what answers the questions of an instance that is built right now: its calls reach the models beside it."""
    models = models_here()

    def answer(question: Question) -> None:
        call = question.content
        if call == UNWANTED:
            question.send(question.unwanted, True, None)
            return
        if isinstance(call, Change):
            question.send(change(call), True, None)
            return
        if models is None:
            what = (
                f"the model {call.name!r} is called, and there are no models beside this pipeline"
            )
            raise ContractError(what, hint="Serve it with the other models.")
        left = None if call.deadline is None else max(0.0, call.deadline - time.monotonic())
        running = call_model(
            models,
            call.name,
            call.tensors,
            version=call.version,
            outputs=call.outputs,
            timeout=left,
            priority=call.priority,
            on_part=lambda part, _: question.send(part, False, None),
            thread=question.thread,
            **call.fixed,
        )
        running.add_done_callback(partial(_end, question))

    return answer


def _end(question: Question, done: Future[dict[str, Any]]) -> None:
    error: Any = done.exception()
    question.send(None if error else done.result(), True, error)
