"""Calls of one model by the code of another: by name and version, with tensors by the names of inputs and outputs."""

from __future__ import annotations

import threading
import time
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from headrace import keys
from headrace.errors import InputError
from headrace.futures import RelayFuture

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from headrace import Pipeline, PipelineConfig
    from headrace.futures import RequestFuture

    Ports = tuple[dict[str, Any], list[str]]
    Models = Any
    """Of `headrace_models.models`, which imports this module."""

__all__ = ["call_model", "models_here", "outputs_of", "ports_of"]

_here = threading.local()
_known: WeakKeyDictionary[Pipeline, Ports] = WeakKeyDictionary()


def models_here() -> Models | None:
    """Return the models of which one is built right now in this thread, for ``init`` of a backend. None: it is no model.

    A backend whose options name the models that it calls may have a static method ``called_models(options)``, which returns
    their names. Then they count with it in a budget of memory before its first call.
    """
    return getattr(_here, "models", None)


class Beside:
    """The models as one of them calls them.

    Args:
        models: The models.
        note: Called with the name of each model that it leases, before, and the most seconds for which it may wait.
    """

    def __init__(self, models: Models, note: Callable[[str, float | None], None]) -> None:
        self._models, self._note = models, note

    def lease(self, name: str, *, timeout: float | None = None, **settings: Any) -> Any:
        """Lease a model as `headrace_models.Models.lease` does."""
        until = None if timeout is None else time.monotonic() + timeout
        self._note(name, timeout)
        left = None if until is None else max(0.0, until - time.monotonic())
        return self._models.lease(name, timeout=left, **settings)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._models, name)


def called_by(config: PipelineConfig) -> set[str]:
    """Return the models that the options of a configuration name: see `models_here`."""
    todo = [node.tree for node in config.plan().nodes.values()]
    names: set[str] = set()
    while todo:
        element = todo.pop()
        todo += element.children
        names.update(getattr(element.cls, "called_models", lambda _: ())(element.options))
    return names


@contextmanager
def building_for(models: Models | None) -> Iterator[None]:
    """Let `models_here` return some models while the block builds a pipeline of one."""
    before, _here.models = models_here(), models
    try:
        yield
    finally:
        _here.models = before


def call_model(  # noqa: PLR0913 - all that a request brings, each by its name
    models: Models,
    name: str,
    tensors: Mapping[str, Any],
    *,
    version: int | str | None = None,
    outputs: Sequence[str] = (),
    timeout: float | None = None,
    priority: int = 0,
    on_part: Callable[[dict[str, Any], bool], object] | None = None,
    thread: int = 0,
    **fixed: Any,
) -> RequestFuture:
    """Let a model run, and return at once, unless a request builds the model or its queue is full.

    Args:
        models: The models.
        name: The model, or an alias.
        tensors: Its inputs by name, as the pipeline describes them. One that describes none takes a single input as ``data``,
            and of several each under its name.
        version: The version. None, -1 and the empty text: the one that the name means.
        outputs: The outputs that are wanted. None: all. A result that is no dict has the name of the only one.
        timeout: Seconds from now.
        priority: A greater one goes first.
        on_part: Called with the outputs of each part of the answer, and whether that thread may wait.
        thread: The thread that holds an instance until the answer comes. So circles of calls are found. 0: none does.
        fixed: Further keys of the request, such as ``request_id``.

    Returns:
        A future of the outputs by name, ``{}`` for a result that is None. It raises as `headrace.Pipeline.submit` says.

    Raises:
        InputError: The model has no such input or output.
        HeadraceError: As `headrace_models.Models.lease` raises them.
    """
    until = None if timeout is None else time.monotonic() + timeout
    title = name if version in (None, -1, "", "-1") else f"{name}:{version}"
    with models.lease(title, timeout=timeout) as pipe:
        inputs, given = _known.get(pipe) or _known.setdefault(pipe, ports_of(pipe))
        _check(title, "output", outputs, given)
        _check(title, "input", tensors, inputs)
        request = dict(fixed)
        for key, value in tensors.items():
            port = inputs.get(
                key, {"key": key if len(tensors) > 1 else keys.DATA, "batched": False}
            )
            request[port.get("key", keys.DATA)] = value
            if port.get("batched", True):
                request[keys.REQUEST_SIZE] = value.shape[port.get("batch_axis", 0)]
        read = partial(outputs_of, outputs or given)
        take = None if on_part is None else lambda part, waits: on_part(read(part), waits)
        left = None if until is None else max(0.0, until - time.monotonic())
        running = pipe.submit(request, timeout=left, priority=priority, on_part=take)
    answer = RelayFuture()
    answer.note_waiting(thread)
    answer.follow(running, partial(_read, answer, read))
    return answer


def ports_of(pipe: Pipeline) -> Ports:
    """Return the inputs of the first backend that describes any, and the names of the outputs of the last one."""
    inputs: dict[str, Any] = {}
    outputs: list[str] = []
    todo = [node["tree"] for node in pipe.describe()["nodes"].values()][::-1]
    while todo:
        tree = todo.pop()
        built = tree["built"] if isinstance(tree["built"], dict) else {}
        inputs = inputs or {**(built.get("inputs") or {}), **(built.get("optional_inputs") or {})}
        outputs = [*(built.get("outputs") or outputs)]
        todo += tree["children"][::-1]
    return inputs, outputs


def _check(title: str, kind: str, asked: Any, known: Any) -> None:
    for name in asked if known else ():
        if name not in known:
            hint = f"It has {', '.join(known)}."
            raise InputError(f"model {title!r} has no {kind} {name!r}", hint=hint)


def outputs_of(names: Sequence[str], result: Any) -> dict[str, Any]:
    """Return the outputs of a result by name."""
    if result is None:
        return {}
    if isinstance(result, dict):
        return {name: result[name] for name in names or result if name in result}
    return {names[0] if names else keys.RESULT: result}


def _read(answer: RelayFuture, read: Callable[[Any], dict[str, Any]], done: RequestFuture) -> None:
    answer.finish(done.exception() or read(done.result()[keys.RESULT]))
