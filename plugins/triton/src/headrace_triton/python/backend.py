"""TritonPython: runs a ``model.py`` that was written for Triton's Python backend."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import AfterValidator
from typing_extensions import NotRequired, TypedDict

import headrace
from headrace.errors import SetupError
from headrace_triton.ports import RESPONSE_PARAMETERS, optional_names, ports_of
from headrace_triton.python.calls import answers
from headrace_triton.python.configuration import completed

if TYPE_CHECKING:
    from collections.abc import Callable

    from headrace.keys import Request
    from headrace_process.asking import Question

__all__ = ["TritonPython"]

_OTHERS = ("request_id", "context", "sequence_id", "sequence_start", "sequence_end")
"""Keys of a request beside its inputs that a model is told."""


def _checked_config(text: str) -> str:
    """Check that a text is the JSON of a model's configuration."""
    try:
        config = json.loads(text)
    except json.JSONDecodeError as error:
        raise ValueError(f"it is no JSON: {error}") from error
    completed(config)
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
        result: A dict of arrays by output, without those that the model left out. None where a decoupled model has sent no
            last response.
        response_parameters: Those of the response by name, where it has some.
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
        """Options of TritonPython.

        Attributes:
            model: The file, `NAME/VERSION/model.py`.
            config: The configuration of the model as JSON, as Triton prints it.
        """

        positional = ("model",)

        model: headrace.FilePath
        config: Annotated[str, AfterValidator(_checked_config)]

    keeps = True
    writes = TypedDict("Writes", {"result": Any, RESPONSE_PARAMETERS: NotRequired[Any]})  # type: ignore[misc]
    reads: tuple[str, ...] | type = ()

    @classmethod
    def answerer(cls, options: Any, context: headrace.InitContext) -> Callable[[Question], object]:
        """Return what answers the questions of an instance in a process of its own."""
        return answers(context)

    def init(self, options: Any, context: headrace.InitContext) -> None:
        """Run the file, and let the model initialize itself.

        Raises:
            SetupError: Code may not be imported, the file has no such class, or ``initialize`` raised.
        """
        if not context.allow_import:
            raise SetupError("model.py runs code, and imports are refused here")
        from headrace_triton.python.instance import Instance

        config = completed(json.loads(options.config))
        self._instance = Instance(type(self).__name__, options.model, config, context)
        config = self._instance.config
        optional = optional_names(config)
        kinds: Any = dict.fromkeys(_OTHERS, NotRequired[Any])
        kinds |= {
            port["name"]: NotRequired[Any] if port["name"] in optional else Any
            for port in config["input"]
        }
        self.reads = TypedDict("Reads", kinds)  # type: ignore[misc]
        self.max = config["max_batch_size"] or 1

    def describe(self) -> dict[str, Any]:
        """Return the inputs and outputs."""
        config = self._instance.config
        return {"model": config["name"], **ports_of(config)}

    def forward(self, batch: list[Request]) -> list[Any]:
        """Let the model execute the batch. Wait for its responses, or let them come later."""
        return self._instance.run(batch)

    def close(self) -> None:
        """Let the model finalize itself."""
        self._instance.close()
