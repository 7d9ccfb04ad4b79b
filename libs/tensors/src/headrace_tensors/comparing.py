"""Compares the results of a row beside other rows, at other places and in batches of other sizes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    Results = Sequence[Mapping[str, Any]]

__all__ = ["RowVerdict", "compare_rows", "nudged", "sizes_to_compare"]

Row = TypeVar("Row")
_Where: TypeAlias = "tuple[int, int]"
"""A run, and a place in it."""

_LARGEST: Final = 8
"""The largest batch of a warm-up's comparison, unless the node runs none that small."""

_NOISE: Final = 1e-3
"""The bound of float noise, as a part of the greatest value: TF32, the coarsest arithmetic for float32, has 10 bits of
mantissa (NVIDIA A100 Tensor Core GPU Architecture, 2020), and so rounds each factor by up to 0.0005."""
_NOISE_OF_HALVES: Final = 3e-2
"""The same for float16, bfloat16 and less. bfloat16 has 7 bits of mantissa, and so rounds by up to 0.004."""

_ULPS: Final = 64
"""How far two rows at one place of batches of one size may differ, in units of the last place: the same instructions
run, but a vectorised function may take another branch for a whole register."""
_AGAIN: Final = 4
"""How often a run is repeated to see whether the model draws at random, and nudged to see how it enlarges noise."""
_ENLARGED: Final = 8
"""How many times as far as in those runs results must be apart: noise comes into each layer, not only the inputs."""
_INFINITE: Final = float("inf")


@dataclass(frozen=True)
class RowVerdict:
    """The behaviour of an output of a row beside other rows, at other places and in batches of other sizes.

    Attributes:
        verdict: ``"equal"``: the same bits everywhere. ``"noise"``: no more apart than float noise, or than the model
            makes of noise in its inputs. ``"random"``: apart between two equal runs, so the model draws at random.
            ``"dependent"``: the result depends on the other rows, on the place or on the size of the batch.
        sizes: The sizes of the compared batches.
        size, place: The batch in which the result differed most from the same row elsewhere, and its place there,
            from 0. None if all are equal.
        apart: By how much, as a text. Empty if all are equal.
    """

    verdict: Literal["equal", "noise", "random", "dependent"]
    sizes: tuple[int, ...]
    size: int | None = None
    place: int | None = None
    apart: str = ""

    def warning(self, node: str, output: str, *, fixed: bool = False) -> str:
        """Return the warm-up's warning about a dependent output. ``fixed``: no other batch size can be run."""
        way = "max = 1 runs each request alone"
        if fixed:
            way = f"The model takes {self.size} rows only: export it for 1, or for any number, with max = 1"
        return (
            f"node {node!r}: output {output!r} of a row depends on its batch: at place {self.place}"
            f" of a batch of {self.size} it differs by more than float noise from the same row elsewhere"
            f" ({self.apart}). {way}"
        )


def sizes_to_compare(
    least: int, most: int | None = None, sizes: Sequence[int] | None = None
) -> tuple[int, ...]:
    """Return the batch sizes to compare in a warm-up: the two least, the node's own, and 8 or the largest.

    Args:
        least: The least batch of one run.
        most: The largest batch that may be run. None: requests are not known to share one.
        sizes: The node's `batch_sizes`.
    """
    most = max(least, max(sizes or (least + 1,)) if most is None else most)
    own = [size for size in sizes or () if least <= size <= most]
    largest = max(_LARGEST, least, min(own, default=0))
    chosen = {least, min(least + 1, most), *(size for size in own if size <= largest)}
    return tuple(sorted(chosen if own else {*chosen, min(most, largest)}))


def _arrangements(sizes: Sequence[int]) -> Iterator[list[int]]:
    """Yield the numbers of the rows of each run.

    A batch of the largest size runs three times: in order, then moved by one place behind a new row to compare every
    place with the next, then in order with each second row replaced to compare the same place beside other rows. Row 0
    is first, second and last. A smaller batch runs once, moved. A batch of one row is row 0.
    """
    *fewer, most = sorted(set(sizes))
    for size in fewer:
        yield [0] if size == 1 else [most, *range(size - 1)]
    if most > 1:
        yield list(range(most))
        yield [most, *range(most - 1)]
        mixed = [place if place % 2 == 0 else most + 1 + place // 2 for place in range(most)]
        yield [*mixed[:-1], 0] if most > 2 else mixed


def compare_rows(
    run: Callable[[Sequence[Row]], Results],
    rows: Sequence[Row],
    sizes: Sequence[int],
    *,
    coarse: bool = False,
    nudge: Callable[[Row, float, int], Row] | None = None,
) -> dict[str, RowVerdict]:
    """Run rows in batches of several sizes, each row beside others and at other places, and compare its results.

    A batch of the largest size runs three times, one of each other size once. An output that differs costs up to
    34 runs more. A difference counts only if it is not drawn at random, and is more than the model makes of noise in its
    inputs: a batch of another length is computed in another order, and a network may enlarge what that changes.

    Args:
        run: Runs rows as one batch. Returns for each row its outputs by name, as arrays or what numpy makes arrays of.
            An array may change once the next run begins.
        rows: The rows, as ``run`` takes them, all different. It asks for up to one and a half times the largest size
            and one more. Fewer take turns. At least three.
        sizes: The sizes of the batches. Where the largest is 1 nothing is run.
        coarse: Whether the model computes floats in 16 bits or less, whatever its outputs have.
        nudge: Returns a row whose floats are changed at random by a part of themselves. Called with the row, the part
            and a seed. Default: `nudged`, for rows that are mappings of arrays.

    Returns:
        The verdict of each output, by name.

    Raises:
        Exception: What ``run`` raises.
    """
    if max(sizes, default=1) < 2:
        return {}
    compared = _Compared(run, rows, coarse, nudged if nudge is None else nudge)
    for numbers in _arrangements(sizes):
        # Where rows are few, the others take turns, and row 0 is still not among them.
        others = max(len(rows) - 1, 1)
        compared.run_next(
            [min(number, 1 + (number - 1) % others, len(rows) - 1) for number in numbers]
        )
    names = dict.fromkeys(name for run in compared.results for row in run for name in row)
    tried = tuple(sorted(set(sizes)))
    return {name: compared.verdict(name, tried) for name in names}


def nudged(row: Any, part: float, seed: int) -> Any:
    """Return a mapping of arrays whose floats are changed at random by up to a part of themselves; others as they are."""
    import numpy as np

    generator = np.random.default_rng(seed)
    changed_row = dict(row)
    for name, value in changed_row.items():
        if isinstance(value, np.ndarray) and value.dtype.kind in "fc":
            least = 4 * float(np.finfo(value.dtype).eps)
            drawn = generator.uniform(-1, 1, value.shape) * max(part, least)
            with np.errstate(all="ignore"):
                changed_row[name] = (value * (1 + drawn)).astype(value.dtype)
    return changed_row


class _Compared:
    """The runs so far: the numbers of their rows, and the results of each row."""

    def __init__(
        self,
        run: Callable[[Sequence[Any]], Results],
        rows: Sequence[Any],
        coarse: bool,
        nudge: Callable[[Any, float, int], Any],
    ) -> None:
        self._run, self._rows, self._nudge = run, rows, nudge
        self._coarse = coarse
        self._again: dict[Any, dict[str, Any]] = {}
        self.numbers: list[list[int]] = []
        self.results: list[list[dict[str, Any]]] = []

    def run_next(self, numbers: list[int]) -> None:
        """Run rows by their numbers, and keep the results."""
        self.numbers.append(numbers)
        self.results.append(self._results([self._rows[number] for number in numbers]))

    def _results(self, rows: Sequence[Any]) -> list[dict[str, Any]]:
        outputs = self._run(rows)
        if len(outputs) != len(rows):
            raise ValueError(f"a run of {len(rows)} rows has given {len(outputs)} results")
        arrays = [{name: _array(value) for name, value in output.items()} for output in outputs]
        return [{name: value for name, value in row.items() if value is not None} for row in arrays]

    def verdict(self, name: str, sizes: tuple[int, ...]) -> RowVerdict:
        """Judge an output: each result of a row beside its first one, and beside the first at that place and size."""
        first: dict[Any, _Where] = {}
        furthest: dict[bool, tuple[float, _Where, _Where]] = {}
        for at, numbers in enumerate(self.numbers):
            for place, number in enumerate(numbers):
                here = (at, place)
                for key in (number, (number, place, len(numbers))):
                    before = first.setdefault(key, here)
                    value, other = self._one(name, before), self._one(name, here)
                    if before == here or _same(value, other):
                        continue
                    far = isinstance(key, int)
                    ratio = _apart(value, other)[0] / (self._limits(value)[far] or 1e-9)
                    if ratio > furthest.get(far, (-1.0,))[0]:
                        furthest[far] = (ratio, before, here)
        if not furthest:
            return RowVerdict("equal", sizes)
        places: dict[str, tuple[_Where, _Where]] = {}
        for ratio, before, here in sorted(furthest.values(), reverse=True):
            judged = self._judge(name, before, here) if ratio > 1 else "noise"
            places.setdefault(judged, (before, here))
            if judged == "dependent":
                break
        verdict: Literal["dependent", "random", "noise"] = (
            "dependent" if "dependent" in places else "random" if "random" in places else "noise"
        )
        before, here = places[verdict]
        _, text = _apart(self._one(name, before), self._one(name, here))
        return RowVerdict(verdict, sizes, len(self.numbers[here[0]]), here[1], text)

    def _one(self, name: str, where: _Where) -> Any:
        at, place = where
        return self.results[at][place].get(name)

    def _limits(self, value: Any) -> tuple[float, float]:
        """Return how far results may be apart at one place of batches of one size, and elsewhere."""
        import numpy as np

        if value is None or value.dtype.kind not in "fc":
            return 0.0, 0.0
        if self._coarse or (value.dtype.kind == "f" and value.dtype.itemsize == 2):
            return 4 * float(np.finfo(np.float16).eps), _NOISE_OF_HALVES
        return _ULPS * float(np.finfo(value.dtype).eps), _NOISE

    def _judge(self, name: str, before: _Where, here: _Where) -> str:
        """Say why two results of a row differ: ``"random"``, ``"noise"`` or ``"dependent"``.

        Beside copies of itself, at the same place of a batch of the same size, the same instructions run: what differs
        from that comes from the other rows. The rest comes from the place or the size, and may be noise.
        """
        runs, place = (self.numbers[before[0]], self.numbers[here[0]]), here[1]
        number = runs[1][place]
        copies = [number] * len(runs[1])
        first, other = self._one(name, before), self._one(name, here)
        alike = self._once_more(copies, place).get(name)
        near, far = self._limits(first)

        def shaken(numbers: list[int], at: int, was: Any, part: float | None) -> list[Any]:
            again = (self._once_more(numbers, at, part, seed) for seed in range(1, _AGAIN + 1))
            return [(was, row.get(name)) for row in again]

        drawn = [*shaken(runs[0], before[1], first, None), *shaken(runs[1], place, other, None)]
        noisy = [*drawn, *shaken(copies, place, alike, 0.0)]
        there = [first, other] if before[1] == place and len(runs[0]) == len(runs[1]) else [other]
        if any(_stands_out(alike, beside, near, near, noisy) for beside in there):
            return "dependent"
        rough = _NOISE_OF_HALVES / 8 if far == _NOISE_OF_HALVES else _NOISE / 2
        noisy = [*drawn, *shaken(runs[0], before[1], first, rough)]
        if _stands_out(first, alike, far, _NOISE_OF_HALVES, noisy):
            return "dependent"
        return "random" if any(_apart(*pair)[0] > far for pair in drawn) else "noise"

    def _once_more(
        self, numbers: list[int], place: int, part: float | None = None, seed: int = 0
    ) -> dict[str, Any]:
        """Run rows again, nudged by a part of their values or as they are; return the results at a place."""
        key = (*numbers, place, part, seed)
        if key not in self._again:
            rows = [self._rows[number] for number in numbers]
            if part is not None:  # copies of a row stay equal
                rows = [self._nudge(self._rows[number], part, seed + number) for number in numbers]
            self._again[key] = self._results(rows)[place]
        return self._again[key]


def _stands_out(
    first: Any, other: Any, still: float, moved: float, noisy: Sequence[tuple[Any, Any]]
) -> bool:
    """Return whether two results are further apart than noise makes them.

    Args:
        first: A result.
        other: The other one.
        still: How far apart values may be that stay exactly as they are in each of ``noisy``, where others do not.
        moved: How far apart all may be.
        noisy: Pairs of results that only noise sets apart.
    """
    import numpy as np

    apart = _apart(first, other)[0]
    noise = max(_apart(*pair)[0] for pair in noisy)
    if first is None or other is None or _INFINITE in (apart, noise):
        return apart > noise
    pairs = [pair for pair in noisy if getattr(pair[0], "shape", None) == first.shape]
    same = np.all([_equal(*pair) for pair in pairs], axis=0)
    exact = first.dtype.kind not in "fc"
    fixed = _apart(first, np.where(same, other, first), other)[0]
    if fixed > still and (exact or not same.all()):
        return True
    return not exact and apart > max(moved, _ENLARGED * noise)


def _array(value: Any) -> Any:
    """Copy what the next run may change, as an array; None: numpy makes none of it, so it is not compared."""
    import numpy as np

    try:
        return np.array(value)
    except (TypeError, ValueError, RuntimeError):
        return None


def _equal(first: Any, other: Any) -> Any:
    """Return for each value of two arrays of one shape whether they are the same, NaN included."""
    return (first == other) | ((first != first) & (other != other))


def _same(first: Any, other: Any) -> bool:
    if first is None or other is None:
        return first is other
    alike = first.shape == other.shape and first.dtype == other.dtype
    return alike and bool(_equal(first, other).all())


def _apart(first: Any, other: Any, whole: Any = None) -> tuple[float, str]:
    """Return how far two results are apart, and a text.

    Floats: as a part of the greatest value, of ``whole`` too. Others: the part of the values that differ. Infinite where
    shapes or dtypes are unlike, or only one value is NaN.
    """
    import numpy as np

    if first is None or other is None:
        return (0.0, "") if first is other else (_INFINITE, "it is not always there")
    if first.shape != other.shape or first.dtype.kind != other.dtype.kind:
        descriptions = [f"{array.dtype} {list(array.shape)}" for array in (first, other)]
        return _INFINITE, f"{descriptions[0]}, and {descriptions[1]}"
    if not first.size:
        return 0.0, ""
    if first.dtype.kind not in "fc":
        unlike = ~_equal(first, other)
        if first.dtype.kind in "iu" and first.dtype.itemsize == 1:
            # A quantised number that lies between two may be rounded to either.
            unlike = np.abs(first.astype(np.int64) - other.astype(np.int64)) > 1
        count = int(np.count_nonzero(unlike))
        return count / first.size, f"{count} of {first.size} values"
    if first.dtype.kind == "f":
        first, other = first.astype(np.float64), other.astype(np.float64)
    with np.errstate(all="ignore"):
        far = np.where(_equal(first, other), 0, np.abs(first - other))
        values = np.abs(np.stack([first, other] if whole is None else [first, other, whole]))
    scale = float(np.max(values, initial=0, where=np.isfinite(values)))
    most = float(np.max(far))
    text = f"by up to {most:.3g}, where the greatest value is {scale:.3g}"
    if not np.isfinite(most):
        return _INFINITE, text
    return (most / scale if scale else 0.0), text
