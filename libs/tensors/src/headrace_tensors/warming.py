"""Warm-up: runs a model on one and on two rows, and compares the outputs with the rows and with each other."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final

from headrace.errors import InputError, InstanceLostError, SetupError
from headrace_tensors.company import Comparison
from headrace_tensors.host_arrays import host_array, numpy_dtype
from headrace_tensors.ports import counted_rows, refuse_unknown
from headrace_tensors.reading import read_item

if TYPE_CHECKING:
    import logging
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from headrace_tensors.ports import Port, Signature
    from headrace_tensors.reading import Item

__all__ = ["check_followed", "invented_inputs", "read_warm_up", "warm_up_rows"]

_LENGTH: Final = 64
"""The length of free axes in invented inputs: a multiple of what most networks divide the axes of an image by."""

_MOST_ELEMENTS: Final = 1 << 22
_OUT_OF_MEMORY: Final = ("out of memory", "failed to allocate", "bad_alloc", "not enough memory")


def invented_inputs(
    ports: Sequence[Port], rows: int, seed: int, *, free_axes: bool = True
) -> dict[str, NDArray[Any]] | None:
    """Return random inputs of a fixed seed for a run; the batch axis is in front.

    Floats are from 0 to 1, integers 0 or 1. Free axes have 64 elements, 8 where an input would become large.

    Args:
        ports: The inputs; optional ones are left out.
        rows: The length of the batch axis.
        seed: Other values for another number.
        free_axes: Whether to invent lengths for axes whose length is not known.

    Returns:
        The inputs by name; None if one holds strings, or has a free axis and ``free_axes`` is False.
    """
    import numpy as np

    made: dict[str, NDArray[Any]] = {}
    generator = np.random.default_rng(seed)
    needed = [port for port in ports if not port.optional]
    batches = {port.names[port.axis] for port in needed if port.batched and port.names} - {None}
    length = _LENGTH
    for port in needed:
        axes = port.sample_shape if port.batched else port.shape
        size = math.prod(_LENGTH if n is None else n for n in axes)
        length = 8 if None in axes and size > _MOST_ELEMENTS else length
    for port in needed:
        dtype = numpy_dtype(port.dtype)
        if dtype.kind == "O" or (None in port.sample_shape and not free_axes):
            return None
        shape = [
            n if n is not None else rows if name in batches else _within(port, axis, length)
            for axis, (n, name) in enumerate(
                zip(port.shape, port.names or [None] * len(port.shape), strict=True)
            )
        ]
        if port.batched:
            del shape[port.axis]
            shape.insert(0, rows)
        whole = dtype.kind in "iu"
        drawn = generator.integers(0, 2, shape) if whole else generator.random(shape)
        made[port.name] = (drawn > 0.5 if dtype.kind == "b" else drawn).astype(dtype)
    return made


def _within(port: Port, axis: int, length: int) -> int:
    """Return a length that an axis may have, as near to ``length`` as can be."""
    least, most = port.limits(axis) or (0, None)
    return max(least, length if most is None else min(length, most))


def read_warm_up(
    path: Path, signature: Signature, read: Callable[[Any, Any, str], Any] = host_array
) -> Item:
    """Read the inputs of a warm-up from a file.

    Args:
        path: An ``.npz`` file of arrays by input name, or an ``.npy`` file for a model with one needed input.
        signature: Inputs and outputs of the model; the arrays are one sample, or rows. They are one sample where the
            model does not declare the rank.
        read: Makes a tensor of an array; called with the array, the port and its name.

    Raises:
        SetupError: The file cannot be read, or does not hold what the model takes.
    """
    import numpy as np

    needed = [port.name for port in signature.inputs if not port.optional]
    try:
        found = np.load(path, allow_pickle=False)
    except (OSError, ValueError) as error:
        raise SetupError(f"warm_up_input = {str(path)!r} cannot be read: {error}") from error
    if isinstance(found, np.ndarray):
        if len(needed) != 1:
            raise SetupError(
                f"warm_up_input = {str(path)!r} is one array, and the model has the inputs {', '.join(needed)}",
                hint="numpy.savez writes several arrays by name into one .npz file.",
            )
        arrays: dict[str, Any] = {needed[0]: found}
    else:
        with found:
            arrays = {name: found[name] for name in found.files}
    refuse_unknown("warm_up_input", arrays, [port.name for port in signature.inputs])
    request: dict[str, Any] = {"data": arrays}
    for port in signature.inputs:
        known = port.batched and port.name in arrays and port.shape is not None
        if known and arrays[port.name].ndim == len(port.shape):
            request["request_size"] = arrays[port.name].shape[port.axis]
    try:
        return read_item(
            request,
            signature,
            {name: name for name in arrays},
            read,
            from_data=True,
            is_sample=lambda request, tensor: True,
        )
    except InputError as error:
        raise SetupError(f"warm_up_input = {str(path)!r} does not fit: {error}") from error


def warm_up_rows(
    run: Callable[[Mapping[str, NDArray[Any]], int], Sequence[Sequence[int] | NDArray[Any]]],
    signature: Signature,
    logger: logging.Logger | logging.LoggerAdapter[Any],
    *,
    real: Item | None = None,
    told: Sequence[str] = (),
    free_axes: bool = True,
    node: str | None = None,
) -> None:
    """Run a model with one row and with two, and refuse it if an output does not follow the rows.

    The inputs are random, of fixed seeds, unless ``real`` has some. Where the batch is fixed it runs twice with that
    many rows. A run that raises on random inputs is a warning, for they may be no inputs of that model. The first row
    is the same in a run of one row and in one of two, or in both of a fixed batch; results that differ by more than
    float noise are a warning.

    Args:
        run: Runs inputs by name, whose batch axis is in front, of a number of rows; returns each wanted output, which
            may change once the next run begins, or only its shape where the values are not on the host.
        signature: Inputs and outputs of the model.
        logger: Gets the warnings.
        real: Inputs to run in place of random ones; the rows are repeated as needed.
        told: Outputs of which the user has said that they have no batch axis.
        free_axes: Whether to invent lengths for axes whose length is not known.
        node: The node, for the warning that results depend on other rows; None: its requests never share a run, and
            nothing is compared.

    Raises:
        SetupError: An output does not follow the rows.
        Exception: What ``run`` raises on ``real``; out of memory and a lost device always.
    """
    least, most = signature.rows or signature.low_rows, signature.most_rows
    more = least if signature.rows or least == most else least + 1
    batched = any(port.batched for port in signature.inputs)
    shapes: dict[int, Sequence[Any]] = {}
    compared = Comparison(signature, node, least, more, invented=real is None)
    for rows, seed in ((least, 0), (more, 0), (more, 1)) if batched else ((1, 0), (1, 1)):
        if real is not None:
            feeds: Mapping[str, Any] | None = _repeated(real, signature, rows)
        else:
            feeds = invented_inputs(signature.inputs, rows, seed, free_axes=free_axes)
        if feeds is None:
            break
        feeds = compared.inputs(feeds)
        try:
            found = run(feeds, rows)
        except Exception as error:
            if real is not None or _is_of_the_device(error):
                raise
            logger.warning(
                "the warm-up ran the model on random inputs, and it refused them: %s. If it takes real ones, all is"
                " well; warm_up_input = FILE brings some",
                " ".join(str(error).split())[:300],
            )
            break
        shapes[rows] = [one.shape if hasattr(one, "shape") else one for one in found]
        compared.keep(feeds, found)
        if batched and more in shapes:
            check_followed(signature, shapes, told)
    if batched and shapes:
        check_followed(signature, shapes, told)
    compared.warn(run, logger)


def _is_of_the_device(error: Exception) -> bool:
    """Return whether an error tells of the memory or the device, and not of the inputs."""
    said = str(error).lower()
    lost = isinstance(error, (InstanceLostError, MemoryError))
    return lost or any(word in said for word in _OUT_OF_MEMORY)


def _repeated(item: Item, signature: Signature, rows: int) -> dict[str, Any]:
    import numpy as np

    batched = {port.name for port in signature.inputs if port.batched}
    return {
        name: np.resize(tensor, (rows, *tensor.shape[1:])) if name in batched else tensor
        for name, tensor in item.tensors.items()
    }


def check_followed(
    signature: Signature,
    shapes: Mapping[int, Sequence[Sequence[int]]],
    told: Sequence[str] = (),
) -> None:
    """Refuse outputs whose batch axis is not as long as the batch, and outputs with a batch axis that is not known.

    Args:
        signature: Inputs and outputs of the model.
        shapes: The shapes of all outputs, by the rows that went in.
        told: Outputs of which the user has said that they have no batch axis.

    Raises:
        SetupError: An output's axis does not follow the rows; the error names it and `unbatched`.
    """
    rows = max(shapes)
    for place, port in enumerate(signature.outputs):
        lengths = {count: tuple(found[place]) for count, found in shapes.items()}
        rank = min(map(len, lengths.values()))
        follows = [
            axis
            for axis in range(rank)
            if all(shape[axis] == count for count, shape in lengths.items())
        ]
        if port.batched and port.axis in follows:
            continue
        known = len(shapes) > 1 and bool(follows)
        if not port.batched and (port.name in told or not known):
            continue
        where = (
            f"`batch_axis = {{{port.name} = {follows[0]}}}` says where it is, if that is it; "
            if known
            else ""
        )
        raise SetupError(
            f"output {port.name!r} is {list(lengths[rows])} for a batch of {counted_rows(rows)}: its"
            f" {'first axis' if not port.axis else f'axis {port.axis}'} does not follow the rows",
            hint=f"{where}{'n' if where else 'N'}ame it in `unbatched` if it belongs to the whole run.",
        )
