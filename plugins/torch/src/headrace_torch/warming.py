"""The warm-up of a model: each batch size is run once on inputs of zeros, and captured if graphs are used."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import torch

from headrace.errors import BackendError, SetupError
from headrace_torch.graphs import sizes_to_capture
from headrace_torch.loading import first_line
from headrace_torch.memory import is_out_of_memory, without_frames
from headrace_torch.signature import Port

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headrace_torch.place import Place
    from headrace_torch.running import Runner
    from headrace_torch.signature import Signature

__all__ = ["warm"]

_log = logging.getLogger("headrace.torch")


def warm(
    runner: Runner,
    signature: Signature,
    place: Place,
    *,
    sizes: tuple[Sequence[int] | None, int],
    dtype: torch.dtype | None = None,
    graphs: bool = False,
) -> dict[str, Any]:
    """Run each batch size once on zeros, and capture graphs if ``graphs`` asks for them.

    Args:
        runner: Runs the model.
        signature: The inputs. If a shape is not known, nothing is run.
        place: Device and stream of the instance.
        sizes: The node's `batch_sizes` or None, and the largest batch in rows.
        dtype: The dtype to which floating inputs are cast; None: they are not cast.
        graphs: Whether to capture a graph per size, on CUDA.

    Returns:
        For ``describe()``: the most memory that was in use, in bytes (CUDA only), the sizes that
        were captured, and shapes and dtypes of the outputs. Empty if nothing was run.

    Raises:
        SetupError: The model fails on inputs of a dtype that it declares, memory runs out, the model cannot be
            captured, or graphs are asked for while a shape is not known.
    """
    captured = graphs and runner.graphs is not None
    chosen = (signature.rows,) if signature.rows is not None else sizes_to_capture(*sizes)
    chosen = tuple(size for size in chosen if size >= signature.least) or (signature.least,)
    shapes = [port.shape for port in signature.inputs]
    if any(shape is None or None in shape[1:] for shape in shapes):
        if captured:
            raise SetupError(
                "cuda_graph needs the shape of every input, and the model does not declare it",
                hint="Give it in `shape`, as '3x224x224'.",
            )
        return {}
    all_known = all(port.dtype is not None for port in signature.inputs)

    def example(rows: int) -> tuple[torch.Tensor, ...]:
        zeros = [
            torch.zeros(
                (rows, *(n or 1 for n in (port.shape or ())[1:])),
                dtype=_dtype_of(port.dtype or runner.likely_dtype, dtype),
                device=place.device,
            )
            for port in signature.inputs
        ]
        return tuple(runner.laid_out(zeros))  # a graph runs on buffers of that layout, too

    if place.stream is not None:
        torch.cuda.reset_peak_memory_stats(place.device)
    place.use()
    outputs: dict[str, Any] = {}
    try:
        for rows in sorted(chosen, reverse=True):
            # Inputs and outputs are not bound to names here: the traceback of a failed capture would keep this frame,
            # and their memory with it.
            outputs = _described(runner.run(example(rows), rows), signature)
        if captured and runner.graphs is not None:
            runner.graphs.capture(runner.call, example, chosen)
        place.wait()
        runner.warmed_up()
    except SetupError:
        raise
    except Exception as error:  # noqa: BLE001 - whatever the model raises
        if all_known or captured or is_out_of_memory(error) or isinstance(error, BackendError):
            raise _setup_error(error) from without_frames(error)
        # The model declares no dtype, and the guess was wrong; the first request will have the right dtype.
        _log.info("no warm-up: the model fails on zeros of a guessed dtype: %s", first_line(error))
    peak = None if place.stream is None else torch.cuda.max_memory_allocated(place.device)
    done = runner.graphs.sizes if runner.graphs is not None else ()
    return {"warm_up_peak_bytes": peak, "cuda_graphs": list(done), "outputs": outputs or None}


def _described(given: dict[str, torch.Tensor], signature: Signature) -> dict[str, Any]:
    return {
        name: Port(name, (signature.rows, *one.shape[1:]), one.dtype).describe()
        for name, one in given.items()
    }


def _setup_error(error: Exception) -> SetupError:
    if isinstance(error, BackendError):  # the model ran, but its outputs are not what they must be
        return SetupError(error.what, hint=error.hint)
    name, text = type(error).__name__, first_line(error)
    return SetupError(f"the model fails on a batch of zeros: {name}: {text}")


def _dtype_of(known: torch.dtype | None, cast: torch.dtype | None) -> torch.dtype:
    if known is None:
        return cast or torch.float32
    return cast if cast is not None and known.is_floating_point else known
