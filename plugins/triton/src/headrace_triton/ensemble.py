"""Ensembles: models one after the other, by the names of tensors."""

from __future__ import annotations

import json
import threading
import time
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import headrace
from headrace.errors import BackendError, ClosedError, OverloadedError, SetupError
from headrace_models import UnloadedError, call_model, models_here
from headrace_triton.ports import optional_names, ports_of

if TYPE_CHECKING:
    from concurrent.futures import Future

    from headrace.keys import Request

__all__ = ["TritonEnsemble"]


class Step(NamedTuple):
    """A model of an ensemble.

    Attributes:
        model, version: The model. -1: the version that its name means.
        inputs, outputs: The names of the ensemble's tensors, by those of the model.
    """

    model: str
    version: int
    inputs: dict[str, str]
    outputs: dict[str, str]

    @property
    def title(self) -> str:
        """Its name, and its version where it is said."""
        return self.model if self.version == -1 else f"{self.model}:{self.version}"


def _steps_of(config: dict[str, Any]) -> list[Step]:
    return [
        Step(step["model_name"], step["model_version"], step["input_map"], step["output_map"])
        for step in config["ensemble_scheduling"]["step"]
    ]


class TritonEnsemble(headrace.Backend):
    """Call models as soon as their tensors are there, as an ensemble of Triton does.

    They are the models beside this one, with their queues and batches. So the pipeline is one of `headrace_models.Models`,
    or is served by ``headrace serve``. A request holds no thread while its models run. Its time is theirs too.

    Reads:
        The inputs of the ensemble, arrays by their names. An optional one may be missing, and with it the optional inputs of
        models that it is for.
    Writes:
        result: A dict of arrays by output, without those that no model gave.
    Batch:
        1 or more. Items are independent.

    Raises:
        InputError: An input is missing.
        BackendError: A model gave no answer, or several parts of one, or no model gave any output.
        OverloadedError: A model is unloaded.
        RequestError: The error of a model.
    Source:
        own, by Triton's documentation of ensembles.
    """

    class Options(headrace.Options):
        """Options of `TritonEnsemble`.

        Attributes:
            config: The configuration of the model as Triton prints it, in JSON.
        """

        config: str

    keeps = True
    reads: tuple[str, ...] | type = ()
    writes = ("result",)

    def init(self, options: Any, context: headrace.InitContext) -> None:
        """Read the steps, and find the models."""
        models = models_here()
        if models is None:
            hint = "Serve the repository, or give it to headrace_models.Models."
            raise SetupError(
                "an ensemble calls the models beside it, and there are none", hint=hint
            )
        self._models, self._context = models, context.request
        self._config = config = json.loads(options.config)
        self._steps = _steps_of(config)
        self._optional = optional_names(config)
        self._inputs = [port["name"] for port in config["input"]]
        self._outputs = [port["name"] for port in config["output"]]
        self.reads = tuple(name for name in self._inputs if name not in self._optional)

    @staticmethod
    def called_models(options: Any) -> set[str]:
        """Return the models that it calls, which count with it in a budget of memory."""
        return {step.title for step in _steps_of(json.loads(options.config))}

    def forward(self, batch: list[Request]) -> list[Any]:
        """Begin each request. Its last model ends it."""
        return [self._begin(request) for request in batch]

    def _begin(self, request: Request) -> Any:
        tensors = {name: request[name] for name in self._inputs if name in request}
        run = _Run(self, request, tensors)
        if not self._context.on_end(run.handle, lambda _: run.end()):
            run.end()
        run.go_on()
        return headrace.PENDING

    def describe(self) -> dict[str, Any]:
        """Return the inputs and outputs, and the models that it calls."""
        return {**ports_of(self._config), "models": sorted({step.title for step in self._steps})}


class _Run:
    """One request on its way through the models. Its steps end in any threads."""

    def __init__(self, ensemble: TritonEnsemble, request: Request, tensors: dict[str, Any]) -> None:
        self._of, self._tensors = ensemble, tensors
        self.handle = ensemble._context.keep(request)
        self._until = ensemble._context.deadline(request)
        self._fixed = {key: request[key] for key in ("request_id", "context") if key in request}
        self._waiting = list(ensemble._steps)
        self._running: dict[int, Future[Any]] = {}
        self._begun = self._over = 0
        self._lock = threading.Lock()

    def go_on(self) -> None:
        """Begin the steps whose tensors are there; end the request when none runs."""
        with self._lock:
            ready = [step for step in self._waiting if self._has_all(step)]
            self._waiting = [step for step in self._waiting if step not in ready]
            self._begun += len(ready)
            is_last = self._begun == self._over
        if is_last:
            outputs, tensors = self._of._outputs, self._tensors
            values = {name: tensors[name] for name in outputs if name in tensors}
            error = BackendError(f"no model gave the output {outputs[0]!r}")
            self._finish(values or error if outputs else {})
        for step in ready:
            try:
                self._call(step)
            except Exception as error:  # noqa: BLE001 - it is the outcome of the request
                self._finish(error)
                return

    def _has_all(self, step: Step) -> bool:
        """Return whether the tensors of a step are there, but optional inputs that the request lacks."""
        missing = {*step.inputs.values()}.difference(self._tensors)
        return missing <= self._of._optional

    def _call(self, step: Step) -> None:
        inputs = {key: self._tensors.get(name) for key, name in step.inputs.items()}
        parts: list[dict[str, Any]] = []
        future = call_model(
            self._of._models,
            step.model,
            {key: value for key, value in inputs.items() if value is not None},
            version=step.version,
            outputs=[*step.outputs],
            timeout=None if self._until is None else max(0.0, self._until - time.monotonic()),
            on_part=lambda part, _: parts.append(part),
            **self._fixed,
        )
        with self._lock:
            self._running[id(future)] = future
        future.add_done_callback(partial(self._took, step, parts))

    def _took(self, step: Step, parts: list[dict[str, Any]], done: Future[Any]) -> None:
        """Take the outputs of a step."""
        with self._lock:
            self._running.pop(id(done), None)
        error = ClosedError("it was cancelled") if done.cancelled() else done.exception()
        if error is not None:
            self._finish(error)
            return
        answers = [*parts, *([done.result()] if done.result() or not parts else [])]
        if len(answers) != 1:
            problem = f"model {step.title!r} gave {len(answers)} answers to an ensemble"
            self._finish(BackendError(f"{problem}, which takes one"))
            return
        with self._lock:
            for key, name in step.outputs.items():
                if key in answers[0]:
                    self._tensors[name] = answers[0][key]
            self._over += 1
        self.go_on()

    def _finish(self, outcome: Any) -> None:
        if isinstance(outcome, UnloadedError):
            outcome = OverloadedError(str(outcome))  # it may be back soon
        self._of._context.finish(self.handle, outcome)

    def end(self) -> None:
        """Give up what still runs: the request has its outcome."""
        with self._lock:
            left, self._waiting = [*self._running.values()], []
        for future in left:
            future.cancel()
