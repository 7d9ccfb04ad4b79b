"""Compares the results of rows alone with those of the same rows in the company of others, in the warm-up."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from headrace_tensors.company import company_warning, find_dependence
from headrace_torch.memory import is_lost, is_out_of_memory
from headrace_torch.signature import Port
from headrace_torch.warming import inputs_of

if TYPE_CHECKING:
    import logging
    from collections.abc import Sequence

    from headrace_tensors import Item
    from headrace_torch.place import Place
    from headrace_torch.running import Runner
    from headrace_torch.signature import Signature

__all__ = ["warn_of_company"]


def warn_of_company(
    runner: Runner,
    signature: Signature,
    place: Place,
    node: str,
    logger: logging.Logger,
    *,
    dtype: torch.dtype | None = None,
    real: Item | None = None,
) -> None:
    """Warn of outputs of which a row has other results beside other rows, by more than float noise.

    The rows are random, of a fixed seed, unless ``real`` has some; the floats of the other rows are from 4 to 8 in
    place of 0 to 1, so that a scale which a model takes from all rows is another one. What differs between two equal
    runs, too, is drawn at random by the model, and is no warning. A compiled model is not compared unless its batch is
    fixed, since each size would be compiled.

    Args:
        runner: Runs the model, which has been warmed up.
        signature: The inputs.
        place: Device and stream of the instance.
        node: The node, for the warning.
        logger: Gets the warning.
        dtype: The dtype to which floating inputs are cast; None: they are not cast.
        real: Inputs to run in place of random ones; the rows are repeated as needed.
    """
    few, many = signature.rows or signature.low_rows, signature.rows or signature.low_rows + 1
    if signature.rows is None and signature.low_rows == signature.high_rows:
        many = few
    same = few if few < many else 1
    compiled = runner.compiled and signature.rows is None
    if same == many or compiled or signature.one_at_a_time:
        return
    alone, drawn = (
        inputs_of(runner, signature, place, rows, seed=seed, dtype=dtype, real=real)
        for rows, seed in ((few, 1), (many, 2))
    )
    together = []
    for port, first, more in zip(signature.inputs, alone, drawn, strict=True):
        mixed = more.clone() if port.batched else first
        if port.batched:
            if real is None and mixed.is_floating_point():
                mixed[same:] = mixed[same:] * 4 + 4
            mixed[:same] = first[:same]
        together.append(mixed)
    place.use()
    try:
        found = _dependence(runner, (alone, together), (few, many), same)
        place.wait()
    except Exception as error:  # whatever the model raises; the warm-up before has told of it
        if is_lost(error) or is_out_of_memory(error):
            raise
        return
    for output, what in found.items():
        logger.warning("%s", company_warning(node, output, what))


def _dependence(
    runner: Runner,
    inputs: tuple[Sequence[torch.Tensor], Sequence[torch.Tensor]],
    rows: tuple[int, int],
    same: int,
) -> dict[str, str]:
    """Return the outputs of which the first rows differ between two runs, but not if one is repeated."""
    first, second = (runner.run(given, count) for given, count in zip(inputs, rows, strict=True))
    ports = [
        Port(name, tuple(one.shape), one.dtype, batched=one.ndim > 0) for name, one in first.items()
    ]
    coarse = any(
        one is not None and one.is_floating_point and one.itemsize < 4
        for one in (runner.likely_dtype, *(one.dtype for one in first.values()))
    )
    alone = _on_host(first)
    found = find_dependence(ports, alone, _on_host(second), same, coarse=coarse)
    if not found:
        return {}
    again = _on_host(runner.run(inputs[0], rows[0]))  # what differs here, too, is drawn at random
    drawn = find_dependence(ports, alone, again, same, coarse=coarse)
    return {name: what for name, what in found.items() if name not in drawn}


def _on_host(outputs: dict[str, torch.Tensor]) -> list[Any]:
    """Return outputs as numpy arrays; of one that is sparse or quantised, the shape alone."""
    known = (torch.float16, torch.float32, torch.float64)  # numpy has no others
    made: list[Any] = []
    for one in outputs.values():
        if one.layout is not torch.strided or one.is_quantized:
            made.append(tuple(one.shape))
            continue
        cast = one.float() if one.is_floating_point() and one.dtype not in known else one
        made.append(cast.detach().cpu().resolve_conj().resolve_neg().numpy())
    return made
