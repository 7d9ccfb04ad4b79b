"""Runs the rows of a configuration alone, beside others and beside other instances, and compares their results."""

from __future__ import annotations

import contextlib
import copy
import queue
import random
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from math import inf
from typing import TYPE_CHECKING, Any

import headrace
from headrace_observe.certify.agreement import beyond, difference, distance, relative, ulps
from headrace_observe.codes import text_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    Answers = list[dict[str, Any] | Exception]

__all__ = ["Output", "RowFailed", "Runner", "compare", "compare_reference", "runner_of"]

_EVERY = 32
"""Batches up to this size are tried in every size, larger ones in doublings; and the bound where there is none."""

_ROWS = 8
"""How many rows are tried at each place of a batch of each size, if there are as many. Each row is tried in each size."""

_MISSING = object()


class RowFailed(Exception):  # noqa: N818 - its cause is the error
    """The request of a number fails alone."""


@dataclass(frozen=True)
class Runner:
    """A built configuration.

    Attributes:
        call: Runs requests on the instance of a number, and gives an answer or an error for each.
        instances: How many instances there are, or how many callers send lists at the same time.
        sizes: The sizes to compare.
        compared: What has these sizes: ``"batches"``, or ``"lists"`` where the pipeline forms batches of them itself.
    """

    call: Callable[[list[dict[str, Any]], int], Answers]
    instances: int
    sizes: list[int]
    compared: str


@contextlib.contextmanager
def runner_of(config: headrace.PipelineConfig, **building: Any) -> Iterator[Runner]:
    """Build a configuration: instances that take batches of any size where it is one node, else a pipeline."""
    plan = config.plan()
    nodes = [node for node in plan.nodes.values() if node.alias_of is None]
    if len(plan.nodes) == 1:
        with headrace.plugins.build(config) as built:
            (low, high), first = nodes[0].range, built.instances[0]
            ends = [end for end in (high, first.max) if end is not None]
            chosen = nodes[0].values["batch_sizes"].value
            sizes = _sizes(max(low, first.min), min(ends, default=None), chosen)

            def call(batch: list[dict[str, Any]], instance: int) -> Answers:
                errors = built.call(batch, instance)
                return [
                    answer if error is None else error
                    for answer, error in zip(batch, errors, strict=True)
                ]

            yield Runner(call, len(built.instances), sizes, "batches")
        return
    with headrace.pipe(config, **building) as pipe:
        ranges = [node["range"][1] for node in pipe.describe()["nodes"].values()]
        most = None if None in ranges else max(ranges)

        def submit(batch: list[dict[str, Any]], _: int) -> Answers:
            answers: Answers = []
            for future in pipe.submit(batch):
                try:
                    answers.append(future.result())
                except Exception as error:  # noqa: BLE001 - a backend may raise anything
                    answers.append(error)
            return answers

        # Several callers share batches, even where each node has one instance.
        yield Runner(submit, max(2, *(n.instance_num for n in nodes)), _sizes(1, most), "lists")


def _sizes(low: int, high: int | None, chosen: Sequence[int] | None = None) -> list[int]:
    if chosen:
        return [size for size in chosen if low <= size and (high is None or size <= high)]
    most = max(low, _EVERY) if high is None else high
    doublings = [2**k for k in range(most.bit_length()) if low <= 2**k]
    return sorted({most, *range(low, min(most, _EVERY) + 1), *doublings})


@dataclass
class Output:
    """What is found of one output.

    Attributes:
        ulps: How far a result was from that of the row alone, at most, in units of the last place.
        relative: The same, as a part of the greatest number of the row alone.
        sizes: The sizes in which a result was further away than is allowed.
        beside: The same, while other instances ran.
        repeats: How many results of the same row alone were further away.
        example: A row, and the size and place in which its result was the furthest away.
        reference: How far the row alone is from the reference. None: that has no such output, or there is none.
    """

    ulps: float = 0.0
    relative: float = 0.0
    sizes: set[int] = field(default_factory=set)
    beside: set[int] = field(default_factory=set)
    repeats: int = 0
    example: dict[str, int] | None = None
    reference: dict[str, Any] | None = None

    @property
    def verdict(self) -> str:
        """``"equal"``, ``"within"`` (as many units as are allowed), ``"dependent"`` or ``"random"``."""
        if self.repeats:
            return "random"
        return "dependent" if self.sizes or self.beside else "within" if self.ulps else "equal"

    @property
    def agrees(self) -> bool:
        """Whether a row has the same result everywhere, and that of the reference."""
        as_told = self.reference is None or self.reference["agrees"]
        return as_told and self.verdict in {"equal", "within"}

    def note(
        self, far: tuple[float, float], ulp: float, where: dict[str, int], *, beside: bool
    ) -> None:
        """Note how far the result of a row in a batch is from that of the row alone, see `_distances`."""
        self.relative = max(self.relative, far[1])
        if far[0] > self.ulps:
            self.ulps, self.example = far[0], where
        if far[0] > ulp:
            (self.beside if beside else self.sizes).add(where["size"])

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain data for JSON, in which null is an infinite distance."""
        return {
            "verdict": self.verdict,
            "ulps": _finite(self.ulps),
            "relative": _finite(self.relative),
            "sizes": sorted(self.sizes),
            "sizes_beside_instances": sorted(self.beside),
            "repeats_apart": self.repeats,
            "example": self.example,
            "reference": self.reference,
        }


def _finite(number: float) -> float | None:
    return None if number == inf else number


def compare(
    runner: Runner,
    rows: Sequence[Mapping[str, Any]],
    *,
    ulp: float,
    repeat: int,
    began: Callable[[int], Callable[[int], object]],
) -> tuple[list[dict[str, Any]], dict[str, Output]]:
    """Run each row alone, then rows at each place of batches of each size on all instances, and the first row often.

    Sizes that disagree run again on one instance alone.

    Args:
        runner: What runs them.
        rows: The requests, at least two.
        ulp: How far floats may be apart, in units of the last place.
        repeat: How often the first row runs alone.
        began: Called with the number of batches to run. It gives a function that is called with the batches that have ended.

    Returns:
        The outputs of each row alone, and what is found of each output by name.

    Raises:
        RowFailed: A row fails alone.
    """
    batches = [numbers for size in runner.sizes for numbers in _batches(size, len(rows))]
    ended = began(len(rows) + len(batches) + repeat)
    alone: list[dict[str, Any]] = []
    for number in range(len(rows)):
        alone.append(_alone(runner, rows, number))
        ended(1)
    outputs = {name: Output() for answer in alone for name in answer}

    def run(some: list[list[int]], instances: int, ended: Callable[[int], object]) -> None:
        for numbers, answers in _run(runner, rows, some, instances):
            for place, (number, answer) in enumerate(zip(numbers, answers, strict=True)):
                where = {"row": number, "size": len(numbers), "place": place}
                got = _outputs(rows[number], answer)
                for name, far in _distances(alone[number], got).items():
                    output = outputs.setdefault(name, Output())
                    output.note(far, ulp, where, beside=instances > 1)
            ended(1)

    run(batches, runner.instances, ended)
    apart_beside = {size for output in outputs.values() for size in output.beside}
    again = [numbers for numbers in batches if len(numbers) in apart_beside]
    if again:
        run(again, 1, began(len(again)))
    least = runner.sizes[0]
    # Callers of a pipeline share batches: there one caller alone shows whether the same batch gives the same.
    beside = runner.instances if runner.compared == "batches" else 1
    for _, answers in _run(runner, rows, [[0] * least] * repeat, beside):
        for name, far in _distances(alone[0], _outputs(rows[0], answers[0])).items():
            output = outputs.setdefault(name, Output())
            output.ulps, output.relative = max(output.ulps, far[0]), max(output.relative, far[1])
            output.repeats += far[0] > ulp
        ended(1)
    return alone, outputs


def _batches(size: int, rows: int) -> list[list[int]]:
    """Return batches of a size, by the numbers of their rows: each row in one, and `_ROWS` rows at each place."""
    numbers = [*range(rows)]
    random.Random(size).shuffle(numbers)  # noqa: S311 - other neighbours in each size
    count = max(-(-rows // size), min(rows, _ROWS))
    starts = [index * rows // count for index in range(count)]
    return [[numbers[(start + place) % rows] for place in range(size)] for start in starts]


def _run(
    runner: Runner, rows: Sequence[Mapping[str, Any]], batches: Sequence[list[int]], instances: int
) -> Iterator[tuple[list[int], Answers]]:
    """Run batches of rows by their numbers on so many instances at the same time; give each with its answers."""
    free: queue.SimpleQueue[int] = queue.SimpleQueue()
    for instance in range(instances):
        free.put(instance)

    def run(numbers: list[int]) -> Answers:
        instance = free.get()
        try:
            return runner.call([dict(rows[number]) for number in numbers], instance)
        except Exception as error:  # noqa: BLE001 - a backend may raise anything
            return [error] * len(numbers)
        finally:
            free.put(instance)

    with ThreadPoolExecutor(instances) as pool:
        step = 8 * instances
        for start in range(0, len(batches), step):
            some = batches[start : start + step]
            # All run before the first is compared, so that a result that later runs overwrite is found.
            yield from zip(some, [*pool.map(run, some)], strict=True)


def _alone(runner: Runner, rows: Sequence[Mapping[str, Any]], number: int) -> dict[str, Any]:
    """Return the outputs of a row beside copies of itself, if a batch of one is not allowed."""
    ((_, answers),) = _run(runner, rows, [[number] * runner.sizes[0]], 1)
    if isinstance(answers[0], Exception):
        raise RowFailed(number) from answers[0]
    return {name: _copy(value) for name, value in _outputs(rows[number], answers[0]).items()}


def _copy(value: Any) -> Any:
    with contextlib.suppress(Exception):  # an object of any library may refuse to be copied
        return copy.deepcopy(value)
    return value


def _distances(alone: Mapping[str, Any], got: Mapping[str, Any]) -> dict[str, tuple[float, float]]:
    """Return for each output how far it is from that of the row alone: in ulps, and as a part of its greatest number."""
    pairs = {}
    for name in {**got, **alone}:
        pair = got.get(name, _MISSING), alone.get(name, _MISSING)
        far = difference(*pair, ulps)
        pairs[name] = (far, difference(*pair, relative) if far else 0.0)
    return pairs


def _outputs(row: Mapping[str, Any], answer: dict[str, Any] | Exception) -> dict[str, Any]:
    """Return what an answer has that its request has not; ``data`` is the caller's own again when a pipeline answers."""
    if isinstance(answer, Exception):
        return {"error": text_of(answer)}
    return {
        key: value
        for key, value in answer.items()
        if key != "data" and (key not in row or value is not row[key])
    }


def compare_reference(
    runner: Runner,
    rows: Sequence[Mapping[str, Any]],
    alone: Sequence[Mapping[str, Any]],
    outputs: Mapping[str, Output],
    *,
    rtol: float,
    atol: float,
) -> int:
    """Compare the rows alone with those of a reference; return how many outputs both have.

    Raises:
        RowFailed: The reference fails.
    """
    near = partial(beyond, rtol=rtol, atol=atol)
    answers_alone = [_alone(runner, rows, number) for number in range(len(rows))]
    for name in outputs.keys() & {name for answer in answers_alone for name in answer}:
        differing, most, part = [], 0.0, 0.0
        for number, (ours, theirs) in enumerate(zip(alone, answers_alone, strict=True)):
            pair = ours.get(name, _MISSING), theirs.get(name, _MISSING)
            most = max(most, difference(*pair, distance))
            part = max(part, difference(*pair, relative))
            if difference(*pair, near) > 1:
                differing.append(number)
        outputs[name].reference = {
            "agrees": not differing,
            "max_abs": _finite(most),
            "max_rel": _finite(part),
            "rows": differing,
        }
    return sum(output.reference is not None for output in outputs.values())
