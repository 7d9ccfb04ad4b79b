"""The inputs and outputs of a model's configuration: what is described of them, and whether a response fits."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from headrace.errors import ContractError
from headrace_triton.python.tensors import NUMPY

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from headrace_triton.python.messages import InferenceResponse

__all__ = ["Ports"]


class Ports:
    """The inputs and outputs of a model.

    Attributes:
        rows: Whether the first axis of each is the batch of one request.
        output_names: The names of the outputs.

    Raises:
        ValueError: An input or output has no name, or no datatype that is known.
    """

    def __init__(self, config: Mapping[str, Any]) -> None:
        self.rows = int(config.get("max_batch_size", 0)) > 0
        self._inputs, self._outputs = (
            {_name(p): p for p in config.get(s, ())} for s in ("input", "output")
        )
        self.output_names = [*self._outputs]
        for name, port in {**self._inputs, **self._outputs}.items():
            if port.get("data_type") not in (*NUMPY, "TYPE_BF16"):
                raise ValueError(f"{name!r}: {port.get('data_type')!r} is no datatype")

    def inputs(self) -> Iterator[tuple[str, bool]]:
        """Return the names of the inputs, and whether requests must have them."""
        return ((name, not port.get("optional", False)) for name, port in self._inputs.items())

    def describe(self) -> dict[str, Any]:
        """Return the ports as `headrace.Pipeline.describe` shows them."""
        needed = {name for name, is_needed in self.inputs() if is_needed}
        about = {name: {"key": name, **self._about(port)} for name, port in self._inputs.items()}
        found = {
            "inputs": {name: one for name, one in about.items() if name in needed},
            "outputs": {name: self._about(port) for name, port in self._outputs.items()},
        }
        optional = {name: one for name, one in about.items() if name not in needed}
        return {**found, "optional_inputs": optional} if optional else found

    def _about(self, port: Mapping[str, Any]) -> dict[str, Any]:
        kind = NUMPY.get(port["data_type"])
        shape = [None if one < 0 else one for one in _dims(port)]
        dtype = "bfloat16" if kind is None else np.dtype(kind).name
        return {"dtype": dtype, "shape": [None] * self.rows + shape, "batched": self.rows}

    def shaped(self, name: str, array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """Return an input in the shape that the model wants: its ``reshape``."""
        port = self._inputs[name]
        return array.reshape(self._wanted(array, _inner(port))) if "reshape" in port else array

    def _wanted(self, array: np.ndarray[Any, Any], dims: list[int]) -> list[int]:
        return [*(array.shape[:1] if self.rows else ()), *dims]

    def outputs(self, response: InferenceResponse) -> dict[str, Any]:
        """Return the arrays of a response by name.

        Raises:
            ContractError: One is not among the outputs, or has another datatype or shape.
        """
        found = {}
        for tensor in response.output_tensors():
            name, array = tensor.name(), tensor.on_cpu()
            port = self._outputs.get(name)
            if port is None:
                hint = f"The configuration has {', '.join(self._outputs) or 'none'}."
                raise ContractError(f"the model gave an output {name!r}", hint=hint)
            kind, dims = NUMPY.get(port["data_type"]), _inner(port)
            got = np.object_ if array.dtype.kind == "S" else array.dtype.type
            axes = array.shape[self.rows :]
            fits = len(axes) == len(dims) and all(
                want in (-1, has) for want, has in zip(dims, axes, strict=True)
            )
            if (kind is not None and got is not kind) or not fits or array.ndim < self.rows:
                wanted = f"{port['data_type']} {[-1] * self.rows + dims}"
                what = f"the output {name!r} is {array.dtype} {[*array.shape]}"
                raise ContractError(what, hint=f"The configuration says {wanted}.")
            found[name] = (
                array.reshape(self._wanted(array, _dims(port))) if "reshape" in port else array
            )
        return found


def _name(port: Mapping[str, Any]) -> str:
    name = port.get("name")
    if not isinstance(name, str) or not name:
        raise ValueError("an input or output has no name")
    return name


def _dims(port: Mapping[str, Any]) -> list[int]:
    return [*map(int, port.get("dims", ()))]


def _inner(port: Mapping[str, Any]) -> list[int]:
    """Return the dims that the model sees."""
    return [*map(int, port["reshape"].get("shape", ()))] if "reshape" in port else _dims(port)
