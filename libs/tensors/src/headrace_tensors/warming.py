"""Warm-up: runs a model on few rows, and compares the outputs with the rows and with each other."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from headrace.errors import InputError, InstanceLostError, SetupError, is_out_of_memory
from headrace_tensors.comparing import compare_rows, sizes_to_compare
from headrace_tensors.host_arrays import host_array, numpy_dtype
from headrace_tensors.ports import batch_axis_hint, counted_rows, refuse_two_batches, refuse_unknown
from headrace_tensors.reading import read_item

if TYPE_CHECKING:
    import logging
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from numpy.typing import NDArray

    from headrace_tensors.comparing import RowVerdict
    from headrace_tensors.ports import Port, Signature
    from headrace_tensors.reading import Item

__all__ = ["check_followed", "invented_inputs", "is_of_the_device", "read_warm_up", "warm_up_rows"]

_LENGTH: Final = 64
"""The length of free axes in invented inputs: a multiple of what most networks divide the axes of an image by."""

_MOST_ELEMENTS: Final = 1 << 22


def invented_inputs(
    ports: Sequence[Port], rows: int, seed: int, *, free_axes: bool = True
) -> dict[str, NDArray[Any]] | None:
    """Return random inputs of a fixed seed for a run. The batch axis is in front.

    Floats are from 0 to 1, integers 0 or 1. Free axes have 64 elements, 8 where an input would become large.

    Args:
        ports: The inputs. Optional ones are left out.
        rows: The length of the batch axis.
        seed: Other values for another number.
        free_axes: Whether to invent lengths for axes whose length is not known.

    Returns:
        The inputs by name. None if one holds strings, or has a free axis and ``free_axes`` is False.
    """
    import numpy as np

    invented: dict[str, NDArray[Any]] = {}
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
        invented[port.name] = (drawn > 0.5 if dtype.kind == "b" else drawn).astype(dtype)
    return invented


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
        signature: Inputs and outputs of the model. The arrays are one sample, or rows. They are one sample where the
            model does not declare the rank.
        read: Makes a tensor of an array. Called with the array, the port and its name.

    Raises:
        SetupError: The file cannot be read, or does not hold what the model takes.
    """
    import numpy as np

    needed = [port.name for port in signature.inputs if not port.optional]
    try:
        loaded = np.load(path, allow_pickle=False)
    except (OSError, ValueError) as error:
        raise SetupError(f"warm_up_input = {str(path)!r} cannot be read: {error}") from error
    if isinstance(loaded, np.ndarray):
        if len(needed) != 1:
            raise SetupError(
                f"warm_up_input = {str(path)!r} is one array, and the model has the inputs {', '.join(needed)}",
                hint="numpy.savez writes several arrays by name into one .npz file.",
            )
        arrays: dict[str, Any] = {needed[0]: loaded}
    else:
        with loaded:
            arrays = {name: loaded[name] for name in loaded.files}
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


def warm_up_rows(  # noqa: PLR0913 - all but three by name
    run: Callable[[Mapping[str, NDArray[Any]], int], Sequence[Sequence[int] | NDArray[Any]]],
    signature: Signature,
    logger: logging.Logger | logging.LoggerAdapter[Any],
    *,
    real: Item | None = None,
    told: Sequence[str] = (),
    free_axes: bool = True,
    node: str | None = None,
    most: int | None = None,
    sizes: Sequence[int] | None = None,
    bounded: bool = True,
    shared: bool = False,
) -> None:
    """Run a model with few rows, refuse it if an output does not follow them, and compare the rows with each other.

    The inputs are random, of fixed seeds, unless ``real`` has some. Where the batch is fixed all runs have that many
    rows. A run that raises on random inputs is a warning, for they may be no inputs of that model. With ``node`` the
    rows run once in the two least batches and in each of ``sizes``, three times in the largest one, and `compare_rows`
    judges: an output of a row that depends on other rows, on its place or on the size of the batch is a warning.

    Args:
        run: Runs inputs by name, whose batch axis is in front, of a number of rows. Returns each wanted output, which
            may change once the next run begins, or only its shape where the values are not on the host.
        signature: Inputs and outputs of the model.
        logger: Gets the warnings.
        real: Inputs to run in place of random ones. Where the comparison needs further rows, the values of these
            come in another order.
        told: Outputs of which the user has said that they have no batch axis.
        free_axes: Whether to invent lengths for axes whose length is not known.
        node: The node, for the warning that results depend on other rows. None: its requests never share a run, and
            nothing is compared.
        most: The largest batch of the node, in rows. None: it is not known.
        sizes: The node's `batch_sizes`.
        bounded: Whether the engine refuses an index out of range, so that other integers than 0 and 1 may be tried.
        shared: Whether requests may share a run, so that an output with the batch on two axes is refused.

    Raises:
        SetupError: An output does not follow the rows, or follows them on two axes.
        Exception: What ``run`` raises on ``real``. Out of memory and a lost device always.
    """
    warm_up = _WarmUp(
        run, signature, told, real=real, free_axes=free_axes, shared=shared and not _tied(signature)
    )
    if not warm_up.can_run:
        return
    least = signature.rows or signature.low_rows
    more = least if signature.rows or least == signature.most_rows else least + 1
    compared = (
        sizes_to_compare(least, _least_of(most, signature.most_rows), sizes)
        if node is not None and _comparable(signature)
        else (1,)
    )
    for wider in (True, False) if max(compared) > 1 else (False,):
        try:
            if max(compared) > 1:
                rows = _Rows(signature, real, free_axes=free_axes, wider=wider, bounded=bounded)
                verdicts = compare_rows(warm_up.run_rows, rows, compared)
                _warn(verdicts, signature, node or "", logger, fixed=compared[0] > 1)
            else:
                warm_up.run_without((least, more) if warm_up.batched else (1, 1))
        except Exception as error:
            if isinstance(error, SetupError) or is_of_the_device(error):
                raise
            if wider:
                continue  # they may be none that the model takes
            if real is not None:
                raise
            logger.warning(
                "the warm-up ran the model on random inputs, and it refused them: %s. If it takes real ones, all is"
                " well; warm_up_input = FILE brings some",
                " ".join(str(error).split())[:300],
            )
        break
    warm_up.check()


def _warn(
    verdicts: Mapping[str, RowVerdict],
    signature: Signature,
    node: str,
    logger: logging.Logger | logging.LoggerAdapter[Any],
    *,
    fixed: bool,
) -> None:
    sequences = [port.name for port in (*signature.inputs, *signature.outputs) if _leads(port)]
    axes = ", ".join(f"{name} = 1" for name in sequences)
    or_axis = f". Or are its axes [steps, rows, ...]? Then batch_axis = {{{axes}}}" if axes else ""
    for name, verdict in verdicts.items():
        if verdict.verdict == "dependent":
            logger.warning("%s", verdict.warning(node, name, fixed=fixed) + or_axis)


def _leads(port: Any) -> bool:
    """Return whether the first axis is the batch axis of samples with several axes, as of a sequence model."""
    return port.batched and not port.axis and len(port.shape) == 3


def _comparable(signature: Signature) -> bool:
    """Return whether rows may share a run, and no other axis of theirs is as long as the batch."""
    batched = any(port.batched for port in signature.inputs)
    return batched and not (signature.one_at_a_time or _tied(signature))


def _tied(signature: Signature) -> bool:
    """Return whether another axis of an input has the name of the batch axis, and so its length."""
    batched = [port for port in signature.inputs if port.batched and port.names]
    batches = {port.names[port.axis] for port in batched} - {None}
    return any(batches & set(port.sample_names) for port in batched)


def _least_of(*known: int | None) -> int | None:
    return min((n for n in known if n is not None), default=None)


class _WarmUp:
    """Runs rows as one batch, and refuses outputs that do not follow them."""

    def __init__(
        self,
        run: Callable[[Mapping[str, NDArray[Any]], int], Sequence[Any]],
        signature: Signature,
        told: Sequence[str],
        *,
        real: Item | None,
        free_axes: bool,
        shared: bool,
    ) -> None:
        self._run, self._signature, self._told = run, signature, told
        self._shared = shared
        self._free_axes, self._real = free_axes, real
        self._shapes: dict[int, Sequence[Any]] = {}
        self.batched = any(port.batched for port in signature.inputs)
        self.can_run = self._whole(1, 0) is not None

    def _whole(self, rows: int, seed: int) -> Mapping[str, Any] | None:
        """Return all inputs of a run, as `invented_inputs` does; of real ones the rows are repeated as needed."""
        import numpy as np

        ports = self._signature.inputs
        if self._real is None:
            return invented_inputs(ports, rows, seed, free_axes=self._free_axes)
        batched = {port.name for port in ports if port.batched}
        return {
            name: np.resize(tensor, (rows, *tensor.shape[1:])) if name in batched else tensor
            for name, tensor in self._real.tensors.items()
        }

    def run_rows(self, rows: Sequence[Mapping[str, NDArray[Any]]]) -> list[dict[str, Any]]:
        """Run rows; return for each the outputs that have a batch axis, where their values are on the host."""
        import numpy as np

        count = len(rows)
        whole = [port.name for port in self._signature.inputs if not port.batched]
        values = (self._whole(count, 0) or {}) if whole else {}
        feeds = {name: np.stack([row[name] for row in rows]) for name in rows[0]}
        feeds.update((name, values[name]) for name in whole if name in values)
        results = [
            (port.name, np.moveaxis(out, port.axis, 0))
            for port, out in zip(self._signature.outputs, self._ran(feeds, count), strict=True)
            if port.batched and isinstance(out, np.ndarray) and count in out.shape[port.axis :][:1]
        ]
        return [{name: out[place] for name, out in results} for place in range(count)]

    def run_without(self, counts: tuple[int, int]) -> None:
        """Run as many rows as ``counts`` says, the second time also others, and compare nothing."""
        for count, seed in ((counts[0], 0), (counts[1], 0), (counts[1], 1)):
            self._ran(self._whole(count, seed) or {}, count)

    def _ran(self, feeds: Mapping[str, Any], count: int) -> Sequence[Any]:
        outputs = self._run(feeds, count)
        self._shapes[count] = [out.shape if hasattr(out, "shape") else out for out in outputs]
        if len(self._shapes) > 1 or self._signature.rows:
            self.check()
        return outputs

    def check(self) -> None:
        """Refuse outputs that did not follow the rows of the runs so far."""
        if self.batched and self._shapes:
            check_followed(self._signature, self._shapes, self._told, shared=self._shared)


class _Rows(Sequence[Any]):
    """Rows to compare, made as they are asked for: one mapping of the inputs with a batch axis for each.

    Of random ones, row 0 has floats from 0 to 1 and integers 0 and 1. Where ``wider``, each second of the others has
    floats from 4 to 8, so that a scale which a model takes from all rows is another one, and all have integers 2 and
    9, as the tokens of another text, where the engine refuses what it does not know (``bounded``). Of real ones, those
    behind the last are copies with the values in another order.
    """

    def __init__(
        self,
        signature: Signature,
        real: Item | None,
        *,
        free_axes: bool,
        wider: bool,
        bounded: bool,
    ) -> None:
        self._ports = [port for port in signature.inputs if port.batched]
        self._all = signature.inputs
        self._real, self._free_axes, self._wider = real, free_axes, wider
        self._bounded = bounded

    def __len__(self) -> int:
        if self._real is not None and not self._wider:
            return self._real.rows
        return sys.maxsize

    def __getitem__(self, number: Any) -> Any:
        import numpy as np

        if self._real is None:
            inputs = invented_inputs(self._all, 1, number, free_axes=self._free_axes) or {}
            values = {p.name: inputs[p.name][0] for p in self._ports if p.name in inputs}
            return {name: self._widened(row, number) for name, row in values.items()}
        turn, place = divmod(number, self._real.rows)
        tensors = self._real.tensors
        rows = {
            port.name: tensors[port.name][place] for port in self._ports if port.name in tensors
        }
        return {
            name: np.random.default_rng(turn).permutation(tensor.ravel()).reshape(tensor.shape)
            if turn
            else tensor
            for name, tensor in rows.items()
        }

    def _widened(self, row: NDArray[Any], number: int) -> NDArray[Any]:
        if not number or not self._wider or row.dtype.kind == "b":
            return row
        if row.dtype.kind in "iu":
            return row * row.dtype.type(7) + row.dtype.type(2) if self._bounded else row
        return row * row.dtype.type(4) + row.dtype.type(4) if number % 2 else row


def is_of_the_device(error: Exception) -> bool:
    """Return whether an error tells of the memory or the device, and not of the inputs."""
    return isinstance(error, InstanceLostError) or is_out_of_memory(error)


def check_followed(
    signature: Signature,
    shapes: Mapping[int, Sequence[Sequence[int]]],
    told: Sequence[str] = (),
    *,
    shared: bool = False,
) -> None:
    """Refuse outputs whose batch axis is not as long as the batch, and outputs with a batch axis that is not known.

    Args:
        signature: Inputs and outputs of the model.
        shapes: The shapes of all outputs, by the rows that went in.
        told: Outputs of which the user has said that they have no batch axis.
        shared: Whether requests may share a run, so that no output may follow the rows on a second axis.

    Raises:
        SetupError: An output's axis does not follow the rows. The error names it and `unbatched`.
    """
    rows = max(shapes)
    for place, port in enumerate(signature.outputs):
        lengths = {count: tuple(outputs[place]) for count, outputs in shapes.items()}
        rank = min(map(len, lengths.values()))
        follows = [
            axis
            for axis in range(rank)
            if all(shape[axis] == count for count, shape in lengths.items())
        ]
        if port.batched and port.axis in follows:
            if shared and len(shapes) > 1 and len(follows) > 1:
                refuse_two_batches(port.name, lengths[rows])
            continue
        known = len(shapes) > 1 and bool(follows)
        if not port.batched and (port.name in told or not known):
            continue
        raise SetupError(
            f"output {port.name!r} is {list(lengths[rows])} for a batch of {counted_rows(rows)}: its"
            f" {'first axis' if not port.axis else f'axis {port.axis}'} does not follow the rows",
            hint=batch_axis_hint(port.name, follows),
        )
