"""DagDispatcher, which walks requests through the nodes of the pipeline."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace._plan.word import Use, Word
from headrace._portable import none_if_all_ok
from headrace.errors import ContractError
from headrace.words import select

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from headrace._build.elements import ElementBuilder
    from headrace._build.parts import BuildSite
    from headrace._contract.backend import Backend
    from headrace._contract.checked import Answers, Outcomes
    from headrace._plan.declared import ReadKeys, RequiredKeys
    from headrace._plan.element import Element
    from headrace.keys import Request

__all__ = ["DagDispatcher"]


class DagDispatcher(Word):
    """Walk each request through the nodes of the pipeline, as ``next`` and ``map`` link them.

    It stands in ``entrypoint``, as in ``S[Check,DagDispatcher]``. ``DagDispatcher`` alone is the default.

    Reads:
        node_name: The node at which the request enters; only needed with several roots.
        data: The inputs of that node.
    Writes:
        result: The output of the last node; a dict by name where there are several last nodes.
    Batch:
        1 or more. Requests walk one after the other.

    Raises:
        InputError: The request names no node where there are several roots, or an unknown one.
    Source:
        own
    Example:
        ``{"data": "abc"}`` gives ``"CBA"``::

            entrypoint = "S[Upper,DagDispatcher]"

            [reverse]
            backend = "Reverse"
            next = "short"

            [short]
            backend = "Short"
    """

    reads = ("data", "node_name")
    thread_safe = True
    _walks = True
    _reaches_out = True
    pass_on: Callable[[Request], None] | None = None

    @classmethod
    def _check(cls, use: Use) -> None:
        """Refuse a DagDispatcher inside a node: the node would call itself."""
        node = use.planning.known_node
        if node is not None and not use.scope.lenient:
            message = f"DagDispatcher walks through all nodes, so node {node!r} would call itself"
            hint = "Write it in entrypoint; from inside a node, Forward[node.x] calls another one."
            use.add("cycle", message, hint=hint)

    @classmethod
    def _required_keys(cls, element: Element, built: Mapping[Element, Backend]) -> RequiredKeys:
        """Give nothing: the node at which a request enters says what it needs."""
        return {}

    @classmethod
    def _read_keys(cls, element: Element, built: Mapping[Element, Backend]) -> ReadKeys:
        """Say that it is not known: any node may be behind it."""
        return {None: element.name}

    def _prepare(self, building: ElementBuilder, element: Element, at: BuildSite) -> None:
        """Ask to be given the graph once all nodes are built."""
        building.commons.dispatchers.append(self)

    def forward(self, batch: list[Request]) -> Outcomes:
        """Walk the requests."""
        if self.pass_on is None:
            raise ContractError("DagDispatcher was called before the graph was built")
        outcomes: Answers = [None] * len(batch)
        select(batch, range(len(batch)), self.pass_on, outcomes)
        return none_if_all_ok(outcomes)
