"""The warm-up of a model: each batch size is run once on random inputs, and captured if graphs are used."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import torch

from headrace.errors import BackendError, SetupError, is_out_of_memory
from headrace_tensors import refuse_two_batches
from headrace_torch.devices.memory import (
    give_back_memory,
    is_lost,
    without_frames,
)
from headrace_torch.models.graphs import sizes_to_capture
from headrace_torch.models.loading import first_line
from headrace_torch.requests.signature import Port

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from headrace_tensors import Item
    from headrace_torch.devices.place import Place
    from headrace_torch.models.running import Runner
    from headrace_torch.requests.signature import Signature

__all__ = ["inputs_of", "warm"]

_log = logging.getLogger("headrace.torch")

_TOO_MANY = (
    "memory runs out for a batch of %d rows: %s. Such a batch will be tried again in halves, which takes longer; lower"
    " max"
)


def warm(  # noqa: C901, PLR0913
    runner: Runner,
    signature: Signature,
    place: Place,
    *,
    sizes: tuple[Sequence[int] | None, int],
    dtype: torch.dtype | None = None,
    graphs: bool = False,
    halve: bool = False,
    real: Item | None = None,
    logger: logging.Logger = _log,
    shared: bool = False,
) -> dict[str, Any]:
    """Run each batch size once, and capture graphs if ``graphs`` asks for them.

    A model that is not compiled also runs one row and two, on different inputs, since an output that does not follow
    the rows shows in both only by accident. Inputs are random, of fixed seeds, unless ``real`` has some.

    Args:
        runner: Runs the model.
        signature: The inputs. If a shape is not known, nothing is run.
        place: Device and stream of the instance.
        sizes: The node's `batch_sizes` or None, and the largest batch in rows.
        dtype: The dtype to which floating inputs are cast. None: they are not cast.
        graphs: Whether to capture a graph per size, on CUDA.
        halve: Whether batches for which memory runs out will run in halves: here they are left out, with a warning.
        real: Inputs to run in place of random ones. The rows are repeated as needed.
        logger: Gets a warning if the model raises on random inputs.
        shared: Whether requests may share a run, so that an output with the batch on two axes is refused.

    Returns:
        For ``describe()``: the most memory that was in use, in bytes (CUDA only), the sizes that
        were captured, shapes and dtypes of the outputs, and the largest size for which memory suffices. Empty if
        nothing was run.

    Raises:
        SetupError: An output does not follow the rows, memory runs out, the model fails on ``real`` or cannot be
            captured, or graphs are asked for while a shape is not known.
    """
    captured = graphs and runner.graphs is not None
    chosen = (signature.rows,) if signature.rows is not None else sizes_to_capture(*sizes)
    chosen = tuple(size for size in chosen if size >= signature.low_rows) or (signature.low_rows,)
    shapes = [
        port.shape[1:] if port.shape and port.batched else port.shape for port in signature.inputs
    ]
    if real is None and any(shape is None or None in shape for shape in shapes):
        if captured:
            raise SetupError(
                "cuda_graph needs the shape of every input, and the model does not declare it",
                hint="Give it in `shape`, as '3x224x224'.",
            )
        return {}
    checked: tuple[tuple[int, int], ...] = ()
    if signature.rows is not None:
        checked = ((signature.rows, 1),)
    elif not runner.compiled:  # each further size would be compiled anew
        least = signature.low_rows
        more = least if least == signature.high_rows else least + 1
        checked = ((least, 1), (more, 2), (more, 3))

    def example(rows: int, seed: int = 0) -> tuple[torch.Tensor, ...]:
        return inputs_of(runner, signature, place, rows, seed=seed, dtype=dtype, real=real)

    if place.stream is not None:
        torch.cuda.reset_peak_memory_stats(place.device)
    place.use()
    outputs: dict[str, Any] = {}
    largest = 0
    try:
        halve = halve and not captured
        outputs, largest = _run_sizes(runner, signature, place, chosen, example, halve, logger)
        # Shapes alone: the traceback of a failed capture keeps this frame, and would keep outputs with it.
        by_rows = {
            rows: {
                name: list(output.shape)
                for name, output in runner.run(example(rows, seed), rows).items()
            }
            for rows, seed in checked
            if rows <= (largest or rows)
        }
        _refuse_two_batches(by_rows if shared and not signature.one_at_a_time else {})
        if captured and runner.graphs is not None:
            runner.graphs.capture(runner.call, example, chosen)
        place.wait()
        runner.warmed_up()
    except SetupError:
        raise
    except Exception as error:  # noqa: BLE001 - whatever the model raises
        is_clear = real is not None or isinstance(error, BackendError)
        if is_clear or captured or is_lost(error) or is_out_of_memory(error):
            raise _setup_error(error) from without_frames(error)
        logger.warning(
            "the warm-up ran the model on random inputs, and it refused them: %s: %s. If it takes real ones, all is"
            " well; warm_up_input = FILE brings some",
            type(error).__name__,
            first_line(error),
        )
    peak = None if place.stream is None else torch.cuda.max_memory_allocated(place.device)
    done = runner.graphs.sizes if runner.graphs is not None else ()
    return {
        "warm_up_peak_bytes": peak,
        "cuda_graphs": list(done),
        "outputs": outputs or None,
        "warm_up_rows": largest,
    }


def _refuse_two_batches(by_rows: Mapping[int, Mapping[str, list[int]]]) -> None:
    """Refuse an output that has the rows of runs of several sizes on a second axis too."""
    for name, first in next(iter(by_rows.values())).items() if len(by_rows) > 1 else ():
        shapes = [(rows, outputs[name]) for rows, outputs in by_rows.items()]
        if any(
            all(rows in shape[at : at + 1] for rows, shape in shapes) for at in range(1, len(first))
        ):
            refuse_two_batches(name, first)


def _run_sizes(
    runner: Runner,
    signature: Signature,
    place: Place,
    sizes: Sequence[int],
    example: Callable[[int], tuple[torch.Tensor, ...]],
    halve: bool,
    logger: logging.Logger,
) -> tuple[dict[str, Any], int]:
    """Run each size, the largest first. Return the outputs, described, and the largest size for which memory suffices.

    Inputs and outputs are not bound to names here: the traceback of a failed capture would keep this frame, and their
    memory with it.
    """
    outputs, largest = {}, 0
    for rows in sorted(sizes, reverse=True):
        try:
            outputs = _described(runner.run(example(rows), rows), signature)
            largest = largest or rows
        except Exception as error:
            if not (halve and rows > min(sizes) and is_out_of_memory(error)):
                raise
            logger.warning(_TOO_MANY, rows, first_line(error))
            without_frames(error)
        if not largest:
            give_back_memory(place.device)
    return outputs, largest


def inputs_of(
    runner: Runner,
    signature: Signature,
    place: Place,
    rows: int,
    *,
    seed: int = 0,
    dtype: torch.dtype | None = None,
    real: Item | None = None,
) -> tuple[torch.Tensor, ...]:
    """Return inputs for a run of a number of rows; see `warm` for the arguments."""
    generator = torch.Generator().manual_seed(seed)
    tensors = [
        _random(port, rows, _dtype_of(port.dtype or runner.likely_dtype, dtype), generator)
        if real is None
        else _repeated(real.tensors[port.name], rows if port.batched else None, dtype)
        for port in signature.inputs
    ]
    # a graph runs on buffers of that layout, too
    return tuple(runner.laid_out([tensor.to(place.device) for tensor in tensors]))


def _described(outputs: dict[str, torch.Tensor], signature: Signature) -> dict[str, Any]:
    return {
        name: Port(name, (signature.rows, *output.shape[1:]), output.dtype).describe()
        for name, output in outputs.items()
    }


def _setup_error(error: Exception) -> SetupError:
    if isinstance(error, BackendError):  # the model ran, but its outputs are not what they must be
        return SetupError(error.what, hint=error.hint)
    name, text = type(error).__name__, first_line(error)
    return SetupError(f"the model fails in the warm-up: {name}: {text}")


def _random(port: Port, rows: int, dtype: torch.dtype, generator: torch.Generator) -> torch.Tensor:
    """Return floats from 0 to 1, or integers 0 and 1, in the shape of an input of a number of rows."""
    lengths = [n or 1 for n in port.shape or ()]
    shape = (rows, *lengths[1:]) if port.batched else tuple(lengths)
    if dtype.is_floating_point or dtype.is_complex:
        return torch.rand(shape, generator=generator).to(dtype)
    return torch.randint(0, 2, shape, generator=generator).to(dtype)


def _repeated(tensor: torch.Tensor, rows: int | None, dtype: torch.dtype | None) -> torch.Tensor:
    """Return rows of a tensor, repeated as often as needed; all of one without batch axis."""
    cast = tensor.to(dtype) if dtype is not None and tensor.is_floating_point() else tensor
    if rows is None:
        return cast
    return cast[torch.arange(rows) % len(cast)]


def _dtype_of(known: torch.dtype | None, cast: torch.dtype | None) -> torch.dtype:
    if known is None:
        return cast or torch.float32
    return cast if cast is not None and known.is_floating_point else known
