"""A pipeline as plain data: every configuration becomes that, and a program can write it itself.

A `Blueprint` is all that a `headrace.Pipeline` is built from. `headrace.pipe` makes it of a
configuration. By hand it needs no configuration, no plugin and no options, and nothing of what
reads them is imported::

    from headrace import Pipeline
    from headrace.blueprint import blueprint, node

    class Upper:
        def forward(self, batch):
            for request in batch:
                request["result"] = request["data"].upper()

    with Pipeline(blueprint(node("upper", Upper, instance_num=2, max=8))) as pipeline:
        print(pipeline({"data": "a"})["result"])

Requests, errors, batches, closing and ``stats()`` are those of every pipeline.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Protocol

from headrace._run.batches.instance import Instance
from headrace._run.blueprint import Blueprint, BuiltNode, NodeBlueprint, Schedule
from headrace._run.contract.checked import Checked, Outcomes, range_problem
from headrace._run.contract.policies import (
    BatchPolicy,
    BestFit,
    Cut,
    DispatchPolicy,
    Greedy,
    InstanceView,
    Queue,
    Waiting,
)
from headrace._run.contract.settings import Limits, Links
from headrace._texts import error_text
from headrace.errors import HeadraceError, SetupError, among
from headrace.keys import Request

__all__ = [
    "BatchPolicy",
    "BestFit",
    "Blueprint",
    "Cut",
    "DispatchPolicy",
    "Greedy",
    "InstanceView",
    "Limits",
    "Links",
    "NodeBlueprint",
    "Queue",
    "Runs",
    "Waiting",
    "blueprint",
    "node",
]

_log = logging.getLogger("headrace.close")


class Runs(Protocol):
    """An object that an instance of a node can be.

    It may have ``close()``, which is called once, as the pipeline closes.
    """

    def forward(self, batch: list[Request]) -> Outcomes:
        """Write ``result`` into each request of a batch. See `headrace.Backend.forward`."""


def node(
    name: str,
    make: Callable[[], Runs],
    *,
    instance_num: int = 1,
    min: int = 1,
    max: int | None = 1,
    next: Sequence[str] = (),
    links: Links | None = None,
    batch_policy: Callable[[], BatchPolicy] = Greedy,
    dispatch_policy: Callable[[], DispatchPolicy] = BestFit,
    limits: Limits | None = None,
) -> NodeBlueprint:
    """Describe a node whose instances are plain objects with ``forward(batch)``.

    Args:
        name: The name of the node.
        make: Makes an instance. It is called ``instance_num`` times, when the pipeline is built.
        instance_num: How many instances the node has.
        min: The least weight of a batch.
        max: The greatest weight of a batch. None for no bound.
        next: The nodes after it.
        links: How it is linked to the others, where ``next`` does not say enough. Its ``name`` and
            ``next`` are not read.
        batch_policy: Makes its batch policy.
        dispatch_policy: Makes its dispatch policy.
        limits: Its queue keys.

    Raises:
        ValueError: ``min`` and ``max`` are no range, or ``instance_num`` is below 1.
    """
    problem = range_problem(min, max)
    if problem or instance_num < 1:
        raise ValueError(f"node {name!r}: {problem or f'instance_num={instance_num!r} is below 1'}")

    def build(schedule: Schedule) -> BuiltNode:
        backends: list[_Object] = []
        with ExitStack() as parts:
            for index in range(instance_num):
                backends.append(_Object(make, name, index, (min, max)))
                parts.callback(backends[index].close)
            instances = [
                Instance(index, backend, least=min, most=max)
                for index, backend in enumerate(backends)
            ]
            closing = [backend.close for backend in backends]
            return BuiltNode(schedule(instances), parts.pop_all().close, closing, {})

    linked = replace(links or Links(), name=name, next=tuple(next))
    return NodeBlueprint(linked, build, batch_policy, dispatch_policy, limits or Limits())


def blueprint(
    *nodes: NodeBlueprint, probes: Mapping[str, Callable[[], object]] | None = None
) -> Blueprint:
    """Describe a pipeline of some nodes, from which `headrace.Pipeline` is made.

    Args:
        nodes: The nodes, at least one. Requests without ``node_name`` begin at the node to which
            no other node leads.
        probes: The factories of its probes, by name.

    Raises:
        ValueError: Two nodes have one name, or a node after another one is not there.
    """
    named = {planned.links.name: planned for planned in nodes}
    if not nodes or len(named) < len(nodes):
        raise ValueError("a blueprint has nodes, each with a name of its own")
    for name, planned in named.items():
        for following in planned.links.next:
            if following not in named:
                missing = f"node {name!r}: the next node {following!r} is not there"
                raise ValueError(f"{missing}. {among(following, named)}")
    return Blueprint(named, tuple(named), probes or {})


class _Object(Checked):
    """A plain object with ``forward``, as a backend that is ready."""

    rerun, keeps, takes = False, False, 0

    def __init__(
        self, make: Callable[[], Runs], node: str, index: int, within: tuple[int, int | None]
    ) -> None:
        try:
            runs = make()
        except HeadraceError:
            raise
        except Exception as error:
            failure = f"instance {index} could not be made: {error_text(error)}"
            raise SetupError(failure, node=node) from error
        if not callable(getattr(runs, "forward", None)):
            message = f"an object of {type(runs).__name__} is no backend"
            hint = "It needs forward(batch), which writes result into each request."
            raise SetupError(message, node=node, hint=hint)
        self.forward = runs.forward  # type: ignore[method-assign]
        self._close: Callable[[], object] = getattr(runs, "close", bool)
        self.min, self.max = within
        self._node, self._index, self._name, self._state = node, index, type(runs).__name__, "ready"

    def close(self) -> None:
        """Close the object, once."""
        if self._state == "ready":
            self._state = "closed"
            try:
                self._close()
            except Exception as error:  # the others must be closed as well
                _log.warning("closing %s failed", self._label(), exc_info=error)
