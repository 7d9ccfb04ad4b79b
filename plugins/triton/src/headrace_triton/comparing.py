"""Compares the inputs and outputs of a configuration with those that its model has, once it is built."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from headrace_triton.ports import DTYPES
from headrace_triton.schema import DATATYPES

if TYPE_CHECKING:
    from collections.abc import Mapping

    from headrace_triton.pbtxt import Message
    from headrace_triton.reading import Model

__all__ = ["DESCRIBE_THEMSELVES", "check_built"]

_KINDS: Final = {
    **{DTYPES[datatype]: kind for kind, datatype in DATATYPES.items()},
    **dict.fromkeys(("str", "object"), "TYPE_STRING"),
}
"""The type of a configuration by the name of a dtype."""

DESCRIBE_THEMSELVES: Final = ("onnxruntime", "tensorrt", "pytorch")
"""The backends whose models say what their inputs and outputs are."""


def check_built(model: Model, built: Mapping[str, Any]) -> None:
    """Check that a model has the inputs and outputs that its configuration says, as Triton does when it loads one.

    A fixed length of the model has to stand in ``dims``, or in the shape of ``reshape``. Where its length is free, any may. The
    configuration names all inputs that the model needs, and may leave outputs out. What the model does not tell is not
    compared.

    Args:
        model: The model.
        built: What its backend says of itself: see `headrace.Backend.describe`.

    Raises:
        ConfigError: They contradict each other. It has all problems of the model with line and column.
    """
    if model.backend not in DESCRIBE_THEMSELVES:
        return
    sequences = model.config.one("sequence_batching")
    for side in ("input", "output"):
        has: dict[str, Any] = {**(built.get(f"{side}s") or {})}
        needed = {*has} if side == "input" else set()
        if side == "input":
            has = {**has, **(built.get("optional_inputs") or {})}
        ports = {port.one("name"): port for port in model.config.all(side)}
        state_of = {state.one(f"{side}_name"): state for state in sequences.all("state")}
        if len(ports) == len(has) == 1 and not state_of:  # perhaps it is named by its index
            has = dict(zip(ports, has.values(), strict=True))
            needed &= {*has} if side == "input" else set()
        for name, tensor in (ports | state_of).items():
            if name in has:
                _compare(model, tensor, f"{side} {name!r}", has[name])
        controls = {control.one("name") for control in sequences.all("control_input")}
        left = needed - {*ports} - {*state_of} - controls
        if ports and left:
            names = ", ".join(map(repr, sorted(left)))
            model.wrong(model.config.at(side), f"the model needs {names}, which is not among these")
    model.check()


def _compare(model: Model, tensor: Message, title: str, port: Mapping[str, Any]) -> None:
    kind, shape = _KINDS.get(str(port.get("dtype"))), port.get("shape")
    dtype = tensor.one("data_type")
    if kind is not None and kind != dtype:
        problem = f"{title} is {dtype} here, and {kind} in the model"
        model.wrong(tensor.at("data_type"), problem, f"Write data_type: {kind}.")
    if not shape or ("is_shape_tensor" in tensor and tensor.one("is_shape_tensor")):
        return  # a model may leave it open, and a shape has no axis of the batch
    own = [-1 if n is None else n for n in shape]
    reshaped = "reshape" in tensor
    dims = tensor.one("reshape").all("shape") if reshaped else tensor.all("dims")
    whole = [-1, *dims] if model.rows else [*dims]
    at = tensor.at("reshape") if reshaped else tensor.at("dims")
    if model.rows and own[0] != -1 and own[1:] == dims:
        problem = f"the first axis of {title} is {own[0]} in the model, so that it takes no batches"
        model.wrong(at, problem, "Export it with a free first axis, or write max_batch_size: 0.")
    elif len(own) != len(whole) or any(n not in (-1, m) for n, m in zip(own, whole, strict=True)):
        batch = f", with max_batch_size: {model.rows}" if model.rows else ""
        problem = f"{title} has the shape {whole} here{batch}, and {own} in the model"
        hint = f"Write dims: {own[1:] if model.rows else own}."
        model.wrong(at, problem, None if reshaped else hint)
