"""Nodes whose instances are plain objects: how a program writes a blueprint without any configuration."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

from headrace._run.blueprint import Blueprint, Limits, Links, NodeBlueprint
from headrace._run.checked import Checked, Outcomes, range_problem
from headrace._run.instance import Instance
from headrace._run.policies import BatchPolicy, BestFit, DispatchPolicy, Greedy
from headrace._run.starting import BuiltNode
from headrace._texts import error_text, nearest
from headrace.errors import HeadraceError, SetupError

if TYPE_CHECKING:
    from headrace._run.node import Node
    from headrace.keys import Request

_log = logging.getLogger("headrace.build")


class Runs(Protocol):
    """An object that an instance of a node can be.

    It may have ``close()``, which is called once, as the pipeline closes.
    """

    def forward(self, batch: list[Request]) -> Outcomes:
        """Write ``result`` into each request of a batch. See `headrace.Backend.forward`."""


def node(  # noqa: PLR0913 - the keys of a node
    name: str,
    make: Callable[[], Runs],
    *,
    instance_num: int = 1,
    min: int = 1,  # noqa: A002 - the key of that name
    max: int | None = 1,  # noqa: A002 - the key of that name
    next: Sequence[str] = (),  # noqa: A002 - the key of that name
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
        links: How it is linked to the others, where ``next`` does not say enough. Its ``name`` and ``next`` are not read.
        batch_policy: Makes its batch policy.
        dispatch_policy: Makes its dispatch policy.
        limits: Its queue keys.

    Raises:
        ValueError: ``min`` and ``max`` are no range, or ``instance_num`` is below 1.
    """
    wrong = range_problem(min, max)
    if wrong or instance_num < 1:
        raise ValueError(f"node {name!r}: {wrong or f'instance_num={instance_num!r} is below 1'}")
    about = {**vars(links or Links()), "name": name, "next": tuple(next)}

    def build(schedule: Callable[[Sequence[Instance]], Node]) -> BuiltNode:
        parts = _All()
        try:
            for index in range(instance_num):
                parts.each.append(_Object(make, name, index, (min, max)))
            instances = [
                Instance(index, one, least=min, most=max) for index, one in enumerate(parts.each)
            ]
            return BuiltNode(schedule(instances), parts, parts.each, {})
        except BaseException:
            parts.close()
            raise

    return NodeBlueprint(Links(**about), build, batch_policy, dispatch_policy, limits or Limits())


def blueprint(
    *nodes: NodeBlueprint, probes: Mapping[str, Callable[[], object]] | None = None
) -> Blueprint:
    """Describe a pipeline of some nodes, from which `headrace.Pipeline` is made.

    Args:
        nodes: The nodes, at least one. Requests without ``node_name`` begin where no other node leads to.
        probes: The factories of its probes, by name.

    Raises:
        ValueError: Two nodes have one name, or a node after another one is not there.
    """
    named = {one.links.name: one for one in nodes}
    if not nodes or len(named) < len(nodes):
        raise ValueError("a blueprint has nodes, each with a name of its own")
    for one in nodes:
        for name in {*one.links.next} - {*named}:
            what = f"node {one.links.name!r}: the next node {name!r} is not there"
            near = nearest(name, named)
            raise ValueError(what if near is None else f"{what}. Did you mean {near!r}?")
    return Blueprint(named, tuple(named), probes or {})


class _Object(Checked):
    """A plain object with ``forward``, as a backend that is ready."""

    rerun, keeps, takes = False, False, 0

    def __init__(
        self, make: Callable[[], Runs], node: str, index: int, within: tuple[int, int | None]
    ) -> None:
        try:
            made = make()
        except HeadraceError:
            raise
        except Exception as error:
            what = f"instance {index} could not be made: {error_text(error)}"
            raise SetupError(what, node=node) from error
        if not callable(getattr(made, "forward", None)):
            hint = "It needs forward(batch), which writes result into each request."
            raise SetupError(
                f"an object of {type(made).__name__} is no backend", node=node, hint=hint
            )
        self._made, self.forward = made, made.forward  # type: ignore[method-assign]
        self.min, self.max = within
        self._node, self._index, self._name, self._state = node, index, type(made).__name__, "ready"

    def close(self) -> None:
        """Close the object, once."""
        if self._state == "ready":
            self._state = "closed"
            getattr(self._made, "close", bool)()


class _All:
    """The instances of a node, which are closed together where their node could not be built."""

    def __init__(self) -> None:
        self.each: list[_Object] = []

    def close(self) -> None:
        """Close all, newest first. A second call does nothing."""
        for one in reversed(self.each):
            try:
                one.close()
            except Exception as error:  # noqa: BLE001 - the others must be closed as well
                _log.warning("closing %s failed", one._label(), exc_info=error)
