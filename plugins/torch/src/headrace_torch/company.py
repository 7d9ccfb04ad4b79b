"""Compares the results of rows alone with those of the same rows in the company of others, in the warm-up."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from headrace_tensors.company import company_warning, confirmed, find_dependence
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
    at = torch.arange(many, device=place.device) % same
    copies = [
        first[at] if port.batched else first
        for port, first in zip(signature.inputs, alone, strict=True)
    ]
    place.use()
    try:
        found = _dependence(runner, (alone, together, copies), (few, many), same)
        place.wait()
    except Exception as error:  # whatever the model raises; the warm-up before has told of it
        if is_lost(error) or is_out_of_memory(error):
            raise
        return
    for output, what in found.items():
        logger.warning("%s", company_warning(node, output, what))


def _dependence(
    runner: Runner,
    inputs: tuple[Sequence[torch.Tensor], Sequence[torch.Tensor], Sequence[torch.Tensor]],
    rows: tuple[int, int],
    same: int,
) -> dict[str, str]:
    """Return the outputs that depend on the other rows, with what differs; ``inputs`` alone, in company, beside copies."""
    (few, many), (first, mixed, copies) = rows, inputs
    outputs = runner.run(first, few)
    ports = [
        Port(name, tuple(one.shape), one.dtype, batched=one.ndim > 0)
        for name, one in outputs.items()
    ]
    coarse = any(
        one is not None and one.is_floating_point and one.itemsize < 4
        for one in (runner.likely_dtype, *(port.dtype for port in ports))
    )
    alone, together = _on_host(outputs), _on_host(runner.run(mixed, many))
    found = find_dependence(ports, alone, together, same, coarse=coarse)
    if not found:
        return {}
    again, beside = _on_host(runner.run(first, few)), _on_host(runner.run(copies, many))
    runs = (alone, together, again, beside)
    return {name: found[name] for name in confirmed(found, ports, runs, same, coarse=coarse)}


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
