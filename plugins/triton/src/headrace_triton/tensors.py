"""`TritonTensors`: tensors as a model takes them, where its configuration gives them to clients otherwise."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pydantic import Field

import headrace
from headrace.errors import InputError, SetupError
from headrace.words import Bracket, combine_ranges, run_child
from headrace_triton.ports import DTYPES, optional_names, ports_of
from headrace_triton.schema import DATATYPES

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from headrace.keys import Request

    Make = Callable[[Request], Any]

__all__ = ["SEQUENCE", "TritonTensors"]

SEQUENCE = "sequence_id"
"""The key of a request that names its sequence."""


class TritonTensors(headrace.Backend):
    """Give X its tensors as a configuration of Triton says: ``TritonTensors[X]``.

    Tensors with a ``reshape`` have their other shape inside. Of a model with ``sequence_batching`` the inputs of control
    and the first state of a sequence are added.

    Reads:
        The inputs of the configuration, arrays of their ``dims`` by their names. In front of these is the axis of the batch,
        where ``max_batch_size`` is above 0.
    Writes:
        result: What X gives, with the shapes of the configuration.
    Batch:
        The range of X.

    Raises:
        InputError: An input is missing, or has another number of elements.
        SetupError: A file with a first state has another size.
        RequestError: The errors of X.
    Source:
        own, by Triton's documentation of model configurations.
    """

    class Options(headrace.Options):
        """Options of `TritonTensors`.

        Attributes:
            config: The configuration of the model as Triton prints it, in JSON.
            first_states: Files with the first state of a sequence, by input, in row-major order.
        """

        config: str
        first_states: dict[str, headrace.FilePath] = Field({})

    takes = 1
    reads: tuple[str, ...] | type = ()
    bracket = Bracket(combine_ranges=combine_ranges)

    def init(self, options: Any, context: headrace.InitContext) -> None:
        """Read the configuration, and take over X."""
        (self._child,) = context.children
        self._pad = context.batch.pad
        self._config = config = json.loads(options.config)
        self._rows = config["max_batch_size"] > 0
        optional = optional_names(config)
        self.reads = tuple(port["name"] for port in config["input"] if port["name"] not in optional)
        self._inputs, self._outputs = (
            {
                port["name"]: (port["dims"], port["reshape"]["shape"])
                for port in config[side]
                if "reshape" in port
            }
            for side in ("input", "output")
        )
        self._only = [port["name"] for port in config["output"]]
        sequences = config.get("sequence_batching", {"control_input": [], "state": []})
        self._controls = {
            port["name"]: self._control(port["control"][0]) for port in sequences["control_input"]
        }
        self._states = {
            state["input_name"]: self._first(state, options.first_states.get(state["input_name"]))
            for state in sequences["state"]
        }
        self.bracket = replace(self.bracket, gives=(*self._controls, *self._states))

    def _control(self, control: Mapping[str, Any]) -> Make:
        """Return what makes an input of control for a request."""
        import numpy as np

        shape = (1, 1) if self._rows else (1,)
        if control["kind"] == "CONTROL_SEQUENCE_CORRID":
            named = DTYPES[DATATYPES.get(control["data_type"], "UINT64")]
            kind = object if named == "bytes" else named
            return lambda request: np.full(shape, request.get(SEQUENCE, 0), kind)
        values, kind = next(
            (control[f"{name}_false_true"], dtype)
            for name, dtype in (("int32", "int32"), ("fp32", "float32"), ("bool", "bool"))
            if control[f"{name}_false_true"] or name == "bool"
        )
        no, yes = (np.full(shape, value, kind) for value in values or (False, True))
        key = control["kind"].removeprefix("CONTROL_").lower()
        always = key == "sequence_ready"
        return lambda request: yes if always or _is_true(request.get(key)) else no

    def _first(self, state: Mapping[str, Any], file: Path | None) -> Any:
        """Return the state with which a sequence begins."""
        import numpy as np

        (about,) = state["initial_state"] or [state]
        shape = (1, *about["dims"]) if self._rows else tuple(about["dims"])
        dtype = np.dtype(DTYPES[DATATYPES[about["data_type"]]])
        if file is None:
            return np.zeros(shape, dtype)
        data = file.read_bytes()
        size = int(np.prod(shape)) * dtype.itemsize
        if len(data) != size:
            problem = f"{file} has {len(data)} bytes, and the state {list(shape)} {size}"
            raise SetupError(problem, hint="It has the numbers of one state, and nothing else.")
        return np.frombuffer(data, dtype).reshape(shape)

    def forward(self, batch: list[Request]) -> list[Exception | None]:
        """Run X on the tensors as it takes them."""
        outcomes: list[Exception | None] = [None] * len(batch)
        inside = [self._inside(request, outcomes, place) for place, request in enumerate(batch)]
        places = [place for place, error in enumerate(outcomes) if error is None]
        run_child(self._child, inside, places, outcomes, pad=self._pad)
        for place in places:
            if outcomes[place] is None:
                batch[place]["result"] = self._outside(inside[place]["result"])
        return outcomes

    def _inside(self, request: Request, outcomes: list[Exception | None], place: int) -> Request:
        inner = dict(request)
        for name, (dims, shape) in self._inputs.items():
            value = request.get(name)
            if value is None or outcomes[place] is not None:
                continue
            if not (hasattr(value, "shape") and hasattr(value, "reshape")):
                outcomes[place] = InputError(
                    key=name, expected="an array", got=type(value).__name__
                )
                continue
            try:
                inner[name] = self._reshaped(value, dims, shape)
            except ValueError:
                outcomes[place] = InputError(
                    key=name, expected=f"the shape {dims}", got=f"{list(value.shape)}"
                )
        for name, make in self._controls.items():
            inner[name] = make(request)
        for name, first in self._states.items():
            inner.setdefault(name, first)
        return inner

    def _outside(self, result: Any) -> Any:
        if not isinstance(result, dict):
            dims, shape = self._outputs.get(self._only[0], ([], None)) if self._only else ([], None)
            return result if shape is None else self._reshaped(result, shape, dims)
        changed = {
            name: self._reshaped(result[name], shape, dims)
            for name, (dims, shape) in self._outputs.items()
            if name in result
        }
        return {**result, **changed}

    def _reshaped(self, value: Any, before: list[int], after: list[int]) -> Any:
        """Return an array with another shape; lengths that are free stay as they are, in their order."""
        own = value.shape[1:] if self._rows else value.shape
        if len(own) != len(before):
            raise ValueError("another number of axes")
        free = [length for length, n in zip(own, before, strict=True) if n < 0]
        shape = [free.pop(0) if n < 0 else n for n in after]
        return value.reshape((value.shape[0], *shape) if self._rows else tuple(shape))

    def describe(self) -> dict[str, Any]:
        """Return the inputs and outputs as clients see them."""
        return ports_of(self._config)


def _is_true(value: Any) -> bool:
    return str(value).lower() in ("true", "1")
