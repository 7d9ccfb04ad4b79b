"""Compares the results of a row beside other rows, at other places and in other sizes of batch, in the warm-up."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import torch

from headrace.errors import is_out_of_memory
from headrace_tensors import compare_rows, sizes_to_compare
from headrace_torch.devices.memory import is_lost
from headrace_torch.models.warming import inputs_of

if TYPE_CHECKING:
    import logging
    from collections.abc import Callable, Sequence

    from headrace_tensors import Item
    from headrace_torch.devices.place import Place
    from headrace_torch.models.running import Runner
    from headrace_torch.requests.signature import Signature

    Row = tuple[torch.Tensor, ...]

__all__ = ["warn_of_batch_dependence"]


def warn_of_batch_dependence(
    runner: Runner,
    signature: Signature,
    place: Place,
    node: str,
    logger: logging.Logger,
    *,
    sizes: tuple[Sequence[int] | None, int],
    dtype: torch.dtype | None = None,
    real: Item | None = None,
) -> None:
    """Warn of outputs of a row that depend on other rows, on its place or on the size of the batch.

    The rows come from ``real``, or are random, of fixed seeds. Each second random row has floats from 4 to 8 in place of
    0 to 1, to change any scale that the model takes from all rows. A compiled model is compared only if its batch is
    fixed, since each size would be compiled.

    Args:
        runner: Runs the model after its warm-up.
        signature: The inputs.
        place: Device and stream of the instance.
        node: The node, for the warning.
        logger: Gets the warning.
        sizes: The node's `batch_sizes` or None, and the largest batch in rows.
        dtype: The dtype to which floating inputs are cast. None: they are not cast.
        real: Inputs to run in place of random inputs. If there are too few rows, they are repeated with their values in
            another order.
    """
    least = signature.rows or signature.low_rows
    most = signature.rows or min(sizes[1], signature.high_rows or sizes[1])
    chosen = sizes_to_compare(least, most, sizes[0])
    compiled = runner.compiled and signature.rows is None
    if chosen[-1] == 1 or compiled or signature.one_at_a_time:
        return
    batched = [port.batched for port in signature.inputs]

    def gathered(some: Sequence[Row]) -> list[torch.Tensor]:
        return [
            torch.stack([row[at] for row in some]) if follows else rows[0][at]
            for at, follows in enumerate(batched)
        ]

    def run(some: Sequence[Row]) -> list[dict[str, Any]]:
        outputs = _on_host(runner.run(gathered(some), len(some)))
        return [{name: rows[at] for name, rows in outputs.items()} for at in range(len(some))]

    place.use()
    try:
        inputs = functools.partial(inputs_of, runner, signature, place, dtype=dtype, real=real)
        count = chosen[-1] + chosen[-1] // 2 + 1
        rows = [_row(inputs, batched, number, real) for number in range(count)]
        outputs = runner.run(gathered(rows[:least]), least).values()
        coarse = any(
            kind is not None and kind.is_floating_point and kind.itemsize < 4
            for kind in (runner.likely_dtype, *(output.dtype for output in outputs))
        )
        verdicts = compare_rows(run, rows, chosen, coarse=coarse, nudge=_nudged)
        place.wait()
    except Exception as error:  # whatever the model raises; the warm-up before has told of it
        if is_lost(error) or is_out_of_memory(error):
            raise
        return
    for output, verdict in verdicts.items():
        if verdict.verdict == "dependent":
            logger.warning("%s", verdict.warning(node, output, fixed=chosen[0] > 1))


def _row(
    inputs: Callable[..., Row], batched: Sequence[bool], number: int, real: Item | None
) -> Row:
    """Return a row by its number; of an input without batch axis the whole."""
    turn, at = (0, 0) if real is None else divmod(number, real.rows)
    row = []
    for tensor, follows in zip(inputs(at + 1, seed=number + 1), batched, strict=True):
        sample = tensor[at] if follows else tensor
        if follows and real is None and number % 2 and tensor.is_floating_point():
            sample = sample * 4 + 4
        elif follows and turn:
            order = torch.randperm(sample.numel(), generator=_drawing(turn))
            sample = sample.flatten()[order.to(sample.device)].reshape(sample.shape)
        row.append(sample)
    return tuple(row)


def _drawing(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def _nudged(row: Row, part: float, seed: int) -> Row:
    """Return a row whose floats are changed at random by up to a part of themselves."""
    generator = _drawing(seed)
    nudged = []
    for tensor in row:
        if tensor.is_floating_point():
            least = 4 * torch.finfo(tensor.dtype).eps
            drawn = 2 * torch.rand(tensor.shape, generator=generator).to(tensor) - 1
            tensor = (tensor * (1 + drawn * max(part, least))).to(tensor.dtype)
        nudged.append(tensor)
    return tuple(nudged)


def _on_host(outputs: dict[str, torch.Tensor]) -> dict[str, Any]:
    """Return outputs as numpy arrays, without those that are sparse or quantised."""
    known = (torch.float16, torch.float32, torch.float64)  # numpy has no others
    arrays: dict[str, Any] = {}
    for name, out in outputs.items():
        if out.layout is torch.strided and not out.is_quantized and out.ndim:
            cast = out.float() if out.is_floating_point() and out.dtype not in known else out
            arrays[name] = cast.detach().cpu().resolve_conj().resolve_neg().numpy()
    return arrays
