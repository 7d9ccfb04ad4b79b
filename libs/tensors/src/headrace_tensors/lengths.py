"""Proves how long outputs are for inputs of unequal length, before samples padded to one length share a run."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from dataclasses import replace as changed
from fractions import Fraction
from typing import TYPE_CHECKING, Any, Final, NoReturn, Protocol, TypeAlias

from headrace.errors import SetupError
from headrace_tensors.padding import Crop, Steps, find_crops, padded
from headrace_tensors.warming import invented_inputs, is_of_the_device

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from headrace_tensors.ports import Signature
    from headrace_tensors.reading import Item

    Shapes: TypeAlias = Mapping[str, Sequence[int]]

__all__ = ["prove_crops", "runs_of_lengths"]

_BASES: Final = (64, 1024)
"""The lengths around which rows are tried, the second where a network needs more than the first."""

_STEP: Final = 32
"""Where a network takes no odd lengths: what most of those divide the axes of an image by."""

_MOST_ELEMENTS: Final = 1 << 24


class Padding(Protocol):
    """The options that say how samples are padded, and outputs cut. See `TensorOptions`."""

    @property
    def ragged(self) -> str: ...
    @property
    def crop(self) -> Mapping[str, str] | None: ...
    @property
    def pad_multiple(self) -> int: ...


@dataclass
class _Group:
    """Axes of inputs that have one length, counted in samples.

    Attributes:
        axes: Input and axis.
        low, high: The least and the greatest length that the model takes.
        tried: A short, a middle and a long length.
    """

    axes: list[tuple[str, int]] = field(default_factory=list)
    low: int = 1
    high: int = 1 << 30
    tried: tuple[int, int, int] = (1, 1, 1)

    def choose(self, base: int, step: int) -> None:
        """Choose lengths around ``base``, all of them multiples of ``step``."""
        low, high = -(-self.low // step), self.high // step
        middle = max(low, min(-(-base // step), (low + high) // 2))
        short, long = max(low, middle // 2 - 1), min(high, 2 * middle + 1)
        self.tried = (short * step, middle * step, long * step)


def prove_crops(
    run: Callable[[Sequence[Shapes]], Mapping[str, Any]],
    signature: Signature,
    options: Padding,
    *,
    real: Item | None = None,
    most: int | None = None,
) -> dict[str, tuple[Crop, ...]]:
    """Find the axes of outputs that follow axes of inputs, and how, by runs of rows of at least three lengths.

    The rows run alone, and three unequal ones run together. An axis may follow in steps: as many elements more for each
    so many of the input, which is what strided, padded, transposed and pooling layers make of it. Each element that depends
    on its row alone has to depend on it beside a longer row as well: where a network joins a padded axis with itself,
    padding takes its place. Where samples are never padded nothing runs, and names tell.

    Args:
        run: Runs rows whose shapes, without batch axis, it gets by input, padded to one shape where they differ. It
            returns each output with a batch axis as an array, or its shape where its values are not at hand.
        signature: Inputs and outputs of the model.
        options: ``ragged``, ``crop`` and ``pad_multiple``, as users write them.
        real: Inputs whose lengths the model takes. None: lengths are invented.
        most: How many rows may share a run. None: any number.

    Returns:
        The crops by output. Those that ``crop`` says where the model takes none of the lengths that were tried.

    Raises:
        SetupError: An output follows no axis in steps, or several, or has padding where a row alone has elements of its
            own, or the model takes none of the lengths that were tried.
    """
    crops = find_crops(signature, options.crop) if options.ragged == "pad" else {}
    pads = options.pad_multiple > 1 or not (signature.one_at_a_time or most == 1)
    if options.ragged != "pad" or options.crop == {} or not pads:
        return crops
    refused: Exception | None = None
    for groups, step in _attempts(signature, real, options.pad_multiple):
        if all(group.low == group.high for group in groups):
            return crops
        try:
            return _Proof(run, signature, groups, step, most).crops()
        except SetupError:
            raise
        except Exception as error:
            if is_of_the_device(error):
                raise
            refused = refused or error
    if options.crop:
        return crops
    raise SetupError(
        "ragged = 'pad' cannot be proven: the model refuses rows of unequal lengths:"
        f" {' '.join(str(refused).split())[:300]}",
        hint="`warm_up_input` = FILE brings rows that it takes, and `crop` says yourself which outputs are cut ({}: none).",
    ) from refused


def _attempts(
    signature: Signature, real: Item | None, multiple: int
) -> Iterator[tuple[list[_Group], int]]:
    """Yield what to try in turn, until the model takes it: axes of one length, and what their lengths are multiples of."""
    apart, tied = (_groups(signature, tied=tied) for tied in (False, True))
    for groups in (apart, tied) if len(tied) < len(apart) else (apart,):
        firsts = [group.axes[0] for group in groups]
        bases = [[base] * len(groups) for base in _BASES]
        if real is not None:
            bases = [[real.tensors[name].shape[1 + place] for name, place in firsts]]
        for step in dict.fromkeys((1, multiple, _STEP, *(bases[0] if real is not None else ()))):
            for lengths in bases:
                for group, length in zip(groups, lengths, strict=True):
                    group.choose(length, max(1, step))
                # Lengths that are all alike would prove nothing: a narrow range may hold but one multiple.
                if all(
                    group.low == group.high or group.tried[0] < group.tried[2] for group in groups
                ):
                    yield groups, max(1, step)


def _groups(signature: Signature, *, tied: bool) -> list[_Group]:
    """Return the free axes of needed inputs. ``tied``: those without a name at one place have one length."""
    needed = [port for port in signature.inputs if port.shape and not port.optional]
    # Requests share a run only where inputs without batch axis are equal, and then have one length on axes of their names.
    shared = {name for port in needed if not port.batched for name in port.names} - {None}
    groups: dict[object, _Group] = {}
    for port in needed:
        if not port.batched:
            continue
        names = port.sample_names or (None,) * len(port.sample_shape)
        axes = [axis for axis in range(len(port.shape)) if axis != port.axis]
        for place, (length, name) in enumerate(zip(port.sample_shape, names, strict=True)):
            if length is None:
                group = groups.setdefault(name or (place if tied else (port.name, place)), _Group())
                least, largest = port.limits(axes[place]) or (1, None)
                group.axes.append((port.name, place))
                group.low = max(group.low, least)
                group.high = min(group.high, group.high if largest is None else largest)
                if name in shared:
                    group.low = group.high = _BASES[0]
    return list(groups.values())


class _Proof:
    """Runs rows of the lengths of groups, and compares the lengths of outputs."""

    def __init__(
        self, run: Any, signature: Signature, groups: list[_Group], step: int, most: int | None
    ) -> None:
        self._run, self._signature, self._groups, self._step = run, signature, groups, step
        self._least = signature.rows or signature.low_rows
        self._most = most
        self._known: dict[tuple[int, ...], Shapes] = {}

    def _row(self, lengths: Sequence[int]) -> Shapes:
        own = {
            axis: n for group, n in zip(self._groups, lengths, strict=True) for axis in group.axes
        }
        row = {
            port.name: tuple(
                own.get((port.name, place), n) for place, n in enumerate(port.sample_shape)
            )
            for port in self._signature.inputs
            if port.batched and port.shape is not None and not port.optional
        }
        if sum(math.prod(n or 1 for n in shape) for shape in row.values()) > _MOST_ELEMENTS:
            raise ValueError("an input would become too large")
        return row

    def _shapes(self, rows: Sequence[Shapes]) -> Shapes:
        return {name: tuple(getattr(out, "shape", out)) for name, out in self._run(rows).items()}

    def _alone(self, lengths: Sequence[int]) -> Shapes:
        key = tuple(lengths)
        if key not in self._known:
            self._known[key] = self._shapes([self._row(key)] * self._least)
        return self._known[key]

    def crops(self) -> dict[str, tuple[Crop, ...]]:
        """Return the crops by output. See `prove_crops`."""
        short, middle, long = zip(*(group.tried for group in self._groups), strict=True)
        followed: dict[tuple[str, int], tuple[int, Crop]] = {}
        for number, group in enumerate(self._groups):
            if group.low == group.high:
                continue
            far = self._alone([*middle[:number], long[number], *middle[number + 1 :]])
            for name, axis in self._differing(self._alone(middle), far):
                if (name, axis) in followed:
                    both = group.axes[0][0], followed[name, axis][1].input
                    self._refuse(
                        name, axis, f"it follows two axes of {' and '.join(sorted({*both}))}"
                    )
                steps = self._steps(number, name, axis)
                followed[name, axis] = number, Crop(axis, *group.axes[0], steps)
        alone = self._alone(long)
        for (name, axis), (number, crop) in followed.items():
            if alone[name][axis] != crop.steps.of(long[number]):
                self._refuse(
                    name,
                    axis,
                    "it follows one axis of an input only for some lengths of the others",
                )
        most = self._signature.most_rows
        rows = min(3, most or 3, self._most or 3)
        if rows > 1:
            three = [self._row(lengths) for lengths in (long, short, middle)[:rows]]
            beside = self._shapes([*three, *three[:1] * (self._least - rows)])
            for name, axis in self._differing(alone, beside):
                reason = (
                    f"a row alone has {alone[name][axis]}, beside shorter ones {beside[name][axis]}"
                )
                self._refuse(name, axis, reason)
        names = dict.fromkeys(name for name, _ in followed)
        crops = {
            name: tuple(axis for (of, _), (_, axis) in followed.items() if of == name)
            for name in names
        }
        if rows > 1:
            self._check_values(crops, short, long, min(4, most or 4, self._most or 4))
        return crops

    def _check_values(
        self, crops: Mapping[str, tuple[Crop, ...]], short: Any, long: Any, rows: int
    ) -> None:
        """Refuse elements that differ between short rows alone, and not beside a longer one: these are padding."""
        import numpy as np

        few, more, count = self._row(short), self._row(long), max(rows, self._least)
        others = [few] * (count - 1)
        alone, before, behind = map(self._run, ([few, *others], [*others, more], [more, *others]))
        for name, cuts in crops.items():
            kind = getattr(getattr(alone[name], "dtype", None), "kind", "")
            # Whole numbers may be equal by chance.
            if kind != "f" and (not kind or kind not in "iub" or count < 3):
                continue
            batch = next(port.axis for port in self._signature.outputs if port.name == name)
            own, first, last = (
                np.moveaxis(np.asarray(outputs[name], np.float64), batch, 0)
                for outputs in (alone, before, behind)
            )
            cut = np.concatenate([first[: count - 1], last[count - 1 :]])
            cut = cut[tuple(map(slice, own.shape))]
            for crop in cuts:
                axis = crop.axis + (crop.axis < batch)
                around = tuple(k for k in range(own.ndim) if k != axis)
                varies, still = (np.ptp(out, 0, keepdims=True).max(around) for out in (own, cut))
                lost = np.flatnonzero((varies > 0) & (still <= varies / 100))
                if len(lost) > (0 if kind == "f" else np.count_nonzero(varies) // 3):
                    reason = f"element {lost[0]} of a row is its own alone, and padding beside a longer row"
                    self._refuse(name, crop.axis, reason)

    def _differing(self, first: Shapes, other: Shapes) -> list[tuple[str, int]]:
        """Return output and axis, counted with the batch axis, where lengths differ; of a sample only."""
        batch = {port.name: port.axis for port in self._signature.outputs}
        differing = []
        for name, shape in first.items():
            if len(shape) != len(other[name]):
                self._refuse(
                    name, 0, f"it has {len(shape)} axes in one run, {len(other[name])} in another"
                )
            pairs = enumerate(zip(shape, other[name], strict=True))
            differing += [(name, k) for k, (a, b) in pairs if a != b and k != batch.get(name, 0)]
        return differing

    def _steps(self, number: int, name: str, axis: int) -> Steps:
        """Return how an axis follows a group: found at two steps, or as a factor, and tried at all three lengths."""
        group, step = self._groups[number], self._step
        middle = [group.tried[1] for group in self._groups]

        def value(count: int) -> int:
            middle[number] = count * step
            return self._alone(middle)[name][axis]

        counts = [length // step for length in group.tried]
        if step > 1:
            part = Fraction(value(counts[1]), group.tried[1])
            steps = Steps(1, part.denominator, part.numerator, part.numerator)
        else:
            end = min(group.high, 4 * counts[2])
            at = _next(value, counts[1], end) or end
            then = _next(value, at, end)
            width = end if then is None else then - at
            steps = Steps(at, width, value(at) - value(counts[1]), value(at))
        tried = {count * step: value(count) for count in (*counts, min(counts[1] + 1, counts[2]))}
        if any(steps.of(length) != is_long for length, is_long in tried.items()):
            pairs = sorted(tried.items())
            self._refuse(
                name,
                axis,
                f"input {group.axes[0][0]!r} with {', '.join(str(length) for length, _ in pairs)} elements makes it"
                f" {', '.join(str(length) for _, length in pairs)} long",
            )
        return steps

    def _refuse(self, name: str, axis: int, why: str) -> NoReturn:
        raise SetupError(
            f"ragged = 'pad' cannot cut axis {axis} of output {name!r} to a request: {why}",
            hint="ragged = 'group' runs samples of one shape together. crop = {} leaves outputs as long as the padded"
            " inputs make them.",
        )


def _next(value: Callable[[int], int], start: int, end: int) -> int | None:
    """Return the least number behind ``start`` with another value, by doubling and halving; None up to ``end``."""
    was, reach = value(start), 1
    while value(min(start + reach, end)) == was:
        if start + reach >= end:
            return None
        reach *= 2
    low, high = start + reach // 2, min(start + reach, end)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if value(middle) == was else (low, middle)
    return high


def runs_of_lengths(
    run: Callable[[Mapping[str, Any], int], Sequence[Any]],
    signature: Signature,
    values: Mapping[str, float],
    real: Item | None = None,
) -> Callable[[Sequence[Shapes]], Mapping[str, Any]]:
    """Return what `prove_crops` runs, for an engine that takes arrays.

    Args:
        run: As that of `warm_up_rows`.
        signature: Inputs and outputs of the model.
        values: The value with which each input is padded.
        real: Inputs whose values are repeated to each length. None: they are random.
    """
    import numpy as np

    def array(port: Any, shape: Sequence[int], seed: int) -> Any:
        if real is None:
            fixed = changed(port, shape=(*shape[: port.axis], None, *shape[port.axis :]))
            invented = invented_inputs([fixed], 1, seed)
            if invented is None:
                raise ValueError(f"input {port.name!r} holds texts, which are not invented")
            return invented[port.name]
        row = real.tensors[port.name][:1]
        places = ((np.arange(n) + seed) % m for n, m in zip((1, *shape), row.shape, strict=True))
        return row[np.ix_(*places)]

    def run_rows(rows: Sequence[Shapes]) -> Mapping[str, Any]:
        whole = [port for port in signature.inputs if not port.batched and not port.optional]
        feeds = dict(invented_inputs(whole, len(rows), 0) or {}) if real is None else {}
        for port in signature.inputs:
            if port.name in rows[0]:
                arrays = [array(port, row[port.name], seed) for seed, row in enumerate(rows)]
                feeds[port.name] = np.concatenate(padded(arrays, port, values[port.name]))
            elif real is not None and port.name in real.tensors and not port.batched:
                feeds[port.name] = real.tensors[port.name]
        outputs = zip(signature.outputs, run(feeds, len(rows)), strict=True)
        return {port.name: output for port, output in outputs if port.batched}

    return run_rows
