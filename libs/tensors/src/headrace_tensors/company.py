"""Compares the results of rows alone with those of the same rows in the company of others."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from headrace.errors import InstanceLostError

if TYPE_CHECKING:
    import logging
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from numpy.typing import NDArray

    from headrace_tensors.ports import Port, Signature

    Outputs = Sequence[NDArray[Any] | Sequence[int]]

__all__ = ["Comparison", "company_warning", "confirmed", "find_dependence"]

_NOISE: Final = 1e-3
"""What float noise may be, as a part of the greatest value: TF32, the coarsest arithmetic for float32, has 10 bits of
mantissa (NVIDIA A100 Tensor Core GPU Architecture, 2020), and so rounds each factor by up to 0.0005."""
_NOISE_OF_HALVES: Final = 3e-2
"""The same for float16, bfloat16 and less; bfloat16 has 7 bits of mantissa, and so rounds by up to 0.004."""


class Comparison:
    """Compares two runs of a warm-up, of which the first rows are the same and the others are not.

    Args:
        signature: Inputs and outputs of the model.
        node: The node, for the warning; None: nothing is compared, since its requests never share a run.
        least, more: The rows of the first and of the second run.
        invented: Whether the inputs are random, and may be changed.
    """

    def __init__(
        self, signature: Signature, node: str | None, least: int, more: int, *, invented: bool
    ) -> None:
        self._signature, self._node, self._rows = signature, node, (least, more)
        self._same = least if least < more else 1
        self._invented = invented
        self._active = node is not None and self._same < more and not signature.one_at_a_time
        self._runs: list[tuple[Mapping[str, NDArray[Any]], Sequence[Any]]] = []

    def inputs(self, drawn: Mapping[str, NDArray[Any]]) -> Mapping[str, NDArray[Any]]:
        """Return the inputs of a run; of the second, the first rows are those of the first run.

        The floats in the other rows are then from 4 to 8 in place of 0 to 1, so that a scale which a model takes from
        all rows is another one.
        """
        if not self._active or not self._invented or len(self._runs) != 1:
            return drawn
        (alone, _), same = self._runs[0], self._same
        made = dict(drawn)
        for port in self._signature.inputs:
            if port.name not in drawn:
                continue
            array, before = drawn[port.name].copy(), alone[port.name]
            if not port.batched:
                made[port.name] = before if before.shape == array.shape else array
                continue
            if array.dtype.kind not in "biu":
                array[same:] = array[same:] * array.dtype.type(4) + array.dtype.type(4)
            if array.shape[1:] == before.shape[1:]:
                array[:same] = before[:same]
            made[port.name] = array
        return made

    def keep(self, feeds: Mapping[str, NDArray[Any]], outputs: Sequence[Any]) -> None:
        """Keep the inputs and the outputs of the first two runs."""
        if self._active and len(self._runs) < 2:
            self._runs.append((feeds, _copied(outputs)))

    def warn(
        self,
        run: Callable[[Mapping[str, NDArray[Any]], int], Sequence[Any]],
        logger: logging.Logger | logging.LoggerAdapter[Any],
    ) -> None:
        """Warn of outputs that differ between the two runs by more than float noise; see `confirmed`."""
        if len(self._runs) < 2:
            return
        (feeds, alone), (_, together) = self._runs
        ports, same, rows = self._signature.outputs, self._same, self._rows
        found = find_dependence(ports, alone, together, same)
        if not found and self._invented and any(hasattr(one, "dtype") for one in alone):
            together = self._beside_other_integers(run)
            found = find_dependence(ports, alone, together, same)
        if not found:
            return
        again = _copied(run(feeds, rows[0]))
        beside = run(self._repeated(feeds), rows[1])
        for output in confirmed(found, ports, (alone, together, again, beside), same):
            logger.warning("%s", company_warning(self._node or "", output, found[output]))

    def _beside_other_integers(
        self, run: Callable[[Mapping[str, NDArray[Any]], int], Sequence[Any]]
    ) -> Sequence[Any]:
        """Run the first rows in company whose integers are 2 and 9, as the tokens of another text.

        Returns:
            The outputs; those of the second run if there is no such input, or the model refuses such numbers.
        """
        feeds, together = self._runs[1]
        changed = dict(feeds)
        for port in self._signature.inputs:
            array = feeds.get(port.name)
            if port.batched and array is not None and array.dtype.kind in "iu":
                array = array.copy()
                array[self._same :] = array[self._same :] * 7 + 2  # 2 or 9
                changed[port.name] = array
        if not any(changed[name] is not feeds[name] for name in changed):
            return together
        try:
            return run(changed, self._rows[1])
        except (InstanceLostError, MemoryError):
            raise
        except Exception:  # noqa: BLE001 - whatever the engine raises: it need not take them
            return together

    def _repeated(self, feeds: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        """Return the first rows, repeated to as many as the second run has."""
        import numpy as np

        batched = {port.name for port in self._signature.inputs if port.batched}
        at = np.arange(self._rows[1]) % self._same
        return {name: one[at] if name in batched else one for name, one in feeds.items()}


def _copied(outputs: Sequence[Any]) -> list[Any]:
    """Copy what the next run may change."""
    return [one.copy() if hasattr(one, "copy") else one for one in outputs]


def find_dependence(
    ports: Sequence[Port],
    alone: Outputs,
    together: Outputs,
    same: int,
    *,
    coarse: bool = False,
) -> dict[str, str]:
    """Return the outputs whose first rows differ by more than float noise between two runs, with what differs.

    Args:
        ports: The outputs.
        alone: The outputs of one run, in the order of ``ports``; one of which only the shape is given is left out.
        together: Those of the other.
        same: How many first rows were the same in both.
        coarse: Whether the model computes floats in 16 bits or less, whatever its outputs have.
    """
    import numpy as np

    found: dict[str, str] = {}
    for port, one, other in zip(ports, alone, together, strict=True):
        if not port.batched or not isinstance(one, np.ndarray) or not isinstance(other, np.ndarray):
            continue
        first, second = (np.moveaxis(array, port.axis, 0)[:same] for array in (one, other))
        if first.shape != second.shape:
            found[port.name] = f"shape {list(first.shape)} alone, {list(second.shape)} in company"
        elif (text := _difference(first, second, coarse)) is not None:
            found[port.name] = text
    return found


def confirmed(
    found: Iterable[str],
    ports: Sequence[Port],
    runs: tuple[Outputs, Outputs, Outputs, Outputs],
    same: int,
    *,
    coarse: bool = False,
) -> list[str]:
    """Return the outputs that depend on the other rows, of those that differ between a run alone and one in company.

    What differs between two runs of the same rows is drawn at random. A network may also enlarge float noise: a batch
    of another length is computed in another order. So the company counts if results beside it are not those beside
    copies of the row itself, or if these are far from those of the row alone.

    Args:
        found: What `find_dependence` has found between the first and the second run.
        ports: The outputs.
        runs: The outputs of a run of the rows alone, of one in company, of one alone again, and of one beside copies
            of the rows, with as many rows as that in company.
        same: How many first rows are the same in all.
        coarse: As in `find_dependence`.
    """
    alone, together, again, beside = runs
    drawn = find_dependence(ports, alone, again, same, coarse=coarse)
    by_rows = find_dependence(ports, beside, together, same, coarse=coarse)
    by_number = find_dependence(ports, alone, beside, same, coarse=True)
    return [name for name in found if name not in drawn and (name in by_rows or name in by_number)]


def _difference(first: NDArray[Any], second: NDArray[Any], coarse: bool) -> str | None:
    """Return by how much two arrays of one shape differ; None: by no more than float noise."""
    import numpy as np

    kind, size = first.dtype.kind, first.dtype.itemsize
    if kind in "biuOUS":
        # A quantised number that lies between two may be rounded to either.
        near = kind in "iu" and size == 1
        apart = (
            np.abs(first.astype(np.int64) - second.astype(np.int64)) > 1
            if near
            else first != second
        )
        count = int(np.count_nonzero(apart))
        return f"{count} of {first.size} values" if count else None
    fine = kind == "c" or (kind == "f" and size > 2)
    noise = _NOISE if fine and not coarse else _NOISE_OF_HALVES
    if kind != "c":
        first, second = first.astype(np.float64), second.astype(np.float64)
    with np.errstate(all="ignore"):
        equal = (first == second) | (np.isnan(first) & np.isnan(second))
        apart = np.where(equal, 0, np.abs(first - second))
        sizes = np.abs(np.stack([first, second]))
    scale = float(np.max(sizes, initial=0, where=np.isfinite(sizes)))
    if np.all(apart <= noise * scale):
        return None
    return f"by up to {np.max(apart):.3g}, where the greatest value is {scale:.3g}"


def company_warning(node: str, output: str, what: str) -> str:
    """Return the text that a warm-up logs of an output that `find_dependence` has found."""
    return (
        f"node {node!r}: output {output!r} of a row depends on the company in which it runs: alone and in a batch it"
        f" differs by more than float noise ({what}). max = 1 runs each request alone"
    )
