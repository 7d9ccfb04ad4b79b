"""The inputs and outputs of a model's configuration, completed, and whether a response fits."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from headrace.errors import ContractError
from headrace_triton.python.tensors import NUMPY

if TYPE_CHECKING:
    from collections.abc import Mapping

    from headrace_triton.python.messages import InferenceResponse

__all__ = ["completed", "outputs_of"]


def completed(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return a configuration with the fields that Triton prints in any case.

    Raises:
        ValueError: It is no object, it has no name, or an input or output has none, or no datatype that is known.
    """
    if not isinstance(config, dict):
        raise ValueError("the configuration of a model is an object")  # noqa: TRY004 - pydantic reports it
    made = {"max_batch_size": 0, "input": [], "output": [], **config}
    if not isinstance(made.get("name"), str):
        raise ValueError("the configuration of a model has a name")  # noqa: TRY004 - pydantic reports it
    for side in ("input", "output"):
        made[side] = [{"dims": [], "optional": False, **one} for one in made[side]]
        for one in made[side]:
            if not one.get("name") or one.get("data_type") not in (*NUMPY, "TYPE_BF16"):
                raise ValueError(f"an {side} has a name and a data_type, got {one}")
            one["dims"] = [*map(int, one["dims"])]  # JSON may have them as text
    return made


def outputs_of(config: Mapping[str, Any], response: InferenceResponse) -> dict[str, Any]:
    """Return the arrays of a response by name.

    Raises:
        ContractError: One is not among the outputs, or has another datatype or shape.
    """
    ports, rows, found = (
        {one["name"]: one for one in config["output"]},
        config["max_batch_size"] > 0,
        {},
    )
    for tensor in response.output_tensors():
        name, array = tensor.name(), tensor.on_cpu()
        port = ports.get(name)
        if port is None:
            hint = f"The configuration has {', '.join(ports) or 'none'}."
            raise ContractError(f"the model gave an output {name!r}", hint=hint)
        dims = [*map(int, port["reshape"].get("shape", ()))] if "reshape" in port else port["dims"]
        wanted, kind = [-1] * rows + dims, NUMPY.get(port["data_type"])
        got = np.object_ if array.dtype.kind == "S" else array.dtype.type
        fits = len(wanted) == array.ndim and all(
            want in (-1, has) for want, has in zip(wanted, array.shape, strict=True)
        )
        if not fits or kind not in (None, got):
            what = f"the output {name!r} is {array.dtype} {[*array.shape]}"
            raise ContractError(what, hint=f"The configuration says {port['data_type']} {wanted}.")
        found[name] = array
    return found
