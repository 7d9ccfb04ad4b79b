"""Runs batches of plain samples, the most frequent case, with little Python code."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from headrace_tensors import joined, numpy_dtype, rows_apart

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from headrace.keys import Request
    from headrace_tensors import Signature

__all__ = ["runner_of_samples"]


def runner_of_samples(
    signature: Signature, keys: Mapping[str, str], run: Callable[..., Any], run_options: Any
) -> Callable[[list[Request]], bool] | None:
    """Return a fast function for batches of plain samples. None if the model is not suited to it.

    The model must have one input and one output, with the batch axis first in both, and fix the shape of samples.

    Args:
        signature: Inputs and outputs of the model.
        keys: The key of the request for each input name.
        run: Runs the session. Called with the names of the outputs, the inputs by name and ``run_options``.
        run_options: The options of a run.

    Returns:
        A function that runs a batch and returns whether it has done so. False: a request is no plain sample, or the
        output does not have the rows of the batch. The caller then runs the batch the general way.
    """
    needed = [port for port in signature.inputs if not port.optional]
    one_each = len(needed) == len(signature.outputs) == 1
    if not one_each or signature.rows is not None or signature.passed:
        return None
    (port,), (result,) = needed, signature.outputs
    shape, dtype = port.exact, numpy_dtype(port.dtype)
    others = frozenset(keys.values()) - {keys[port.name]}
    # The elements of an array of objects would have to be checked one by one.
    if shape is None or port.axis or result.axis or not result.batched or dtype.kind == "O":
        return None
    filled = signature.filled if signature.sizes else int
    key, name, names, kind = keys[port.name], port.name, [result.name], np.ndarray

    def run_samples(batch: list[Request]) -> bool:
        samples = []
        for request in batch:
            sample = request.get(key)
            if type(sample) is not kind or sample.shape != shape or sample.dtype != dtype:
                return False
            if "request_size" in request or (others and not others.isdisjoint(request)):
                return False
            samples.append(sample[None])
        samples += samples[-1:] * (filled(len(samples)) - len(samples))
        whole = samples[0] if len(samples) == 1 else joined(samples)
        (output,) = run(names, {name: whole}, run_options)
        if output.shape[:1] != whole.shape[:1]:
            return False
        if len(samples) == 1:
            batch[0]["result"] = output.reshape(output.shape[1:])
            return True
        for request, result in zip(batch, rows_apart(output[: len(batch)]), strict=True):
            request["result"] = result
        return True

    return run_samples
