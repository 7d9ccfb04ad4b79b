"""Timing the runs of elements, for probes that have ``element_done``."""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from headrace._language.contract.backend import Backend
    from headrace._language.plan.element import Element
    from headrace._language.plan.nodes import NodePlan
    from headrace._run.records.probes import Probes

    Run = Callable[..., Any]
    Report = tuple[str, str, tuple[Any, ...]]
    """The method of a probe, the path of the element below its root, and the other arguments."""

_RUNS = ("element_began", "element_done")


def paths_of(root: Element) -> dict[Element, str]:
    """Return the path of every element.

    A path is made of the names on the way from the root of ``describe()["nodes"][node]["tree"]`` to
    the element. Each but the first stands after its place among ``children``: ``S/1:ResizeMat``.
    """
    paths = {root: root.name}
    for element in root.walk():
        for place, child in enumerate(element.children):
            paths.setdefault(child, f"{paths[element]}/{place}:{child.name}")
    return paths


class Measuring:
    """Measures the elements of one node, where a probe asks for it when the node is built.

    Elements outside of the node's tree in ``describe()`` are not measured.

    Args:
        node: The node.
        probes: The probes of the pipeline.
    """

    def __init__(self, node: NodePlan, probes: Probes) -> None:
        self._probes, self._node, self._paths = probes, node.name, paths_of(node.tree)

    def span(self, element: Element, index: int) -> Callable[[str, float, float, str], None] | None:
        """Return the ``context.span`` of the backend of an element; None where no probe listens."""
        path = self._paths.get(element)
        if path is None or not self._probes.hears("span_done"):
            return None
        return partial(self._probes.notify, "span_done", self._node, index, path)

    def add(self, backend: Backend, element: Element, instance: int) -> None:
        """Measure the runs of a backend that is ready, where a probe asks for them."""
        path = self._paths.get(element)
        if path is not None and any(map(self._probes.hears, _RUNS)):
            run = _with_timing(backend.forward, self._probes, (self._node, instance, path))
            backend.forward = run  # type: ignore[method-assign]

    def methods_reported(self, element: Element) -> list[str]:
        """Return the methods of probes that ask for an element built in another process."""
        methods = filter(self._probes.hears, ("element_done", "span_done"))
        return [*methods] if element in self._paths else []

    def report(self, element: Element, instance: int, reports: Iterable[Report]) -> None:
        """Take the runs of an element that was built in another process."""
        path = self._paths[element]  # nothing asks for those without one, see `methods_reported`
        for event, below, about in reports:
            self._probes.notify(event, self._node, instance, path + below, *about)


def _with_timing(run: Run, probes: Probes, about: tuple[str, int, str]) -> Run:
    """Measure each run for the probes that there are by then."""

    def measure(batch: list[Any]) -> Any:
        if not any(map(probes.hears, _RUNS)):
            return run(batch)
        started = time.monotonic()
        probes.notify("element_began", *about, len(batch))
        try:
            return run(batch)
        finally:
            probes.notify("element_done", *about, len(batch), started, time.monotonic())

    return measure
