"""Timing the runs of elements: for probes that have ``element_done``, and for ``stats()``."""

from __future__ import annotations

import time
from itertools import count
from typing import TYPE_CHECKING, Any

from headrace._running.instance import SAMPLE_BELOW_S, SAMPLED
from headrace._running.statistics import Timings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from headrace._build.parts import ElementTimes, PipelineState
    from headrace._contract.backend import Backend
    from headrace._plan.element import Element, NodePlan

    Run = Callable[..., Any]
    Report = tuple[str, str, tuple[Any, ...]]
    """The method of a probe, the path of the element below its root, and the arguments after that path."""

_RUNS = ("element_began", "element_done")
_REPORTED = ("element_done", "span_done")


def paths_of(root: Element) -> dict[Element, str]:
    """Return the path of every element.

    A path is made of the names on the way from the root of ``describe()["nodes"][node]["tree"]`` to the
    element. Each but the first stands after its place among ``children``: ``S/1:ResizeMat``.
    """
    paths = {root: root.name}
    for element in root.walk():
        for place, child in enumerate(element.children):
            paths.setdefault(child, f"{paths[element]}/{place}:{child.name}")
    return paths


class Measuring:
    """Measures the elements of one node, where a probe or ``timings`` asks for it when the node is built.

    Elements outside of the node's tree in ``describe()`` are not measured.

    Args:
        node: The node.
        commons: Has the probes, and keeps the sampled durations.
    """

    def __init__(self, node: NodePlan, commons: PipelineState) -> None:
        self._commons = commons
        self._node, self._paths = node.name, paths_of(node.backend)

    def span(self, element: Element, index: int) -> Callable[[str, float, float, str], None] | None:
        """Return the ``context.span`` of the backend of an element; None where no probe listens."""
        path = self._paths.get(element)
        if path is None or not self._commons.probes.hears("span_done"):
            return None
        about = ("span_done", self._node, index, path)
        return lambda *span: self._commons.probes.notify(*about, *span)

    def add(self, backend: Backend, element: Element, instance: int) -> None:
        """Measure the runs of a backend that is ready, where ``timings`` or a probe asks for them."""
        path, hears = self._paths.get(element), self._commons.probes.hears
        times = self._commons.times
        if path is None or (times is None and not any(map(hears, _RUNS))):
            return
        about = (self._node, instance, path)
        kept = None if times is None else times.setdefault(about, Timings())
        run = _with_timing(backend.forward, kept, self._commons, about)
        backend.forward = run  # type: ignore[method-assign]

    def methods_reported(self, element: Element) -> list[str]:
        """Return what ``timings`` and probes ask of an element that is built in another process: methods of a probe."""
        hears, times = self._commons.probes.hears, self._commons.times
        asked = [one for one in _REPORTED if hears(one) or (times is not None and one in _RUNS)]
        return asked if element in self._paths else []

    def report(self, element: Element, instance: int, reports: Iterable[Report]) -> None:
        """Take the runs of an element that was built in another process."""
        for event, below, about in reports:  # none of an element without a path, see `reported`
            path = self._paths[element] + below
            if self._commons.times is not None and event == "element_done":
                _, started, ended = about
                times = self._commons.times.setdefault((self._node, instance, path), Timings())
                times.add((ended - started) * 1000)
            self._commons.probes.notify(event, self._node, instance, path, *about)


def _with_timing(
    run: Run, times: Timings | None, commons: PipelineState, about: tuple[str, int, str]
) -> Run:
    """Measure each run for the probes that there are by then, and some of them for ``times``."""
    runs, mask = count(1), 0

    def measure(batch: list[Any]) -> Any:
        nonlocal mask
        probes = commons.probes
        sampled = times if times is not None and not next(runs) & mask else None
        if sampled is None and not any(map(probes.hears, _RUNS)):
            return run(batch)
        started = time.monotonic()
        probes.notify("element_began", *about, len(batch))
        try:
            return run(batch)
        finally:
            ended = time.monotonic()
            probes.notify("element_done", *about, len(batch), started, ended)
            if sampled is not None:
                sampled.add((ended - started) * 1000)
                often = sampled.total_ms < SAMPLE_BELOW_S * 1000 * sampled.count
                mask = SAMPLED if often else 0

    return measure


def element_statistics(times: ElementTimes, node: str) -> dict[str, dict[str, float]]:
    """Return mean and p99 in milliseconds per element of a node, over all instances together."""
    merged: dict[str, Timings] = {}
    for (home, _, path), one in times.copy().items():
        if home == node:
            merged.setdefault(path, Timings()).add_all(one)
    summaries = {path: one.summary() for path, one in merged.items()}
    return {path: {key: one[key] for key in ("mean", "p99")} for path, one in summaries.items()}
