"""The words that send a request to other nodes or run it again: DagDispatcher, Loop, Restart."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

from pydantic import Field

from headrace._build.callees import no_result
from headrace._options import Options as _Options
from headrace._plan.word import Use, Word
from headrace._portable import none_if_all_ok
from headrace.errors import ContractError, InputError, LimitError
from headrace.keys import DATA, NODE_NAME, RESTART, Request
from headrace.words import run_child, select

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from headrace._backend import Backend, InitContext
    from headrace._build.elements import ElementBuilder
    from headrace._build.parts import BuildSite
    from headrace._checked import Answers, Outcomes
    from headrace._plan.declared import ReadKeys, RequiredKeys
    from headrace._plan.element import Element

__all__ = ["DagDispatcher", "Loop", "Restart"]


class DagDispatcher(Word):
    """Walk each request through the nodes of the pipeline, as ``next`` and ``map`` link them.

    It stands in ``entrypoint``, as in ``S[Check,DagDispatcher]``. ``DagDispatcher`` alone is the default.

    Reads:
        node_name: The node at which the request enters; only needed with several roots.
        data: What that node reads.
    Writes:
        result: What the last node wrote; a dict by name where there are several last nodes.
    Batch:
        1 or more; requests walk one after the other.

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
    _reentrant = True
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


class Again(Word, ABC):
    """Base of the containers that run their child again for the items that are not done."""

    takes = 1
    _keys_of_child = 0
    _reentrant = True

    def init(self, options: Any, context: InitContext) -> None:
        """Take over the child."""
        (self.child,) = context.children
        self.options = options

    @abstractmethod
    def own_key(self) -> str:
        """Return the key that backends inside write for this word: one that a request brings says nothing."""

    def _begins(self, request: Request) -> bool:
        if (key := self.own_key()) != DATA:  # which ends a loop after one run
            request.pop(key, None)
        return True

    @abstractmethod
    def is_done(self, request: Request) -> bool:
        """Tell whether an item that has run is done, and make one that is not done ready to run again."""

    def forward(self, batch: list[Request]) -> Outcomes:
        """Run the child until all items are done or have failed."""
        outcomes: Answers = [None] * len(batch)
        left = select(batch, range(len(batch)), self._begins, outcomes)
        for _ in range(self.options.limit):
            run_child(self.child, batch, left, outcomes, pad=self._pad)
            left = select(batch, left, self._runs_again, outcomes)
            if not left:
                break
        for i in left:
            what = f"{self._label()} ran {self.options.limit} times and is not done"
            hint = "Raise its option limit, or see why the item is never done."
            outcomes[i] = LimitError(what, limit=self.options.limit, hint=hint)
        return none_if_all_ok(outcomes)

    def _runs_again(self, request: Request) -> bool:
        if self.is_done(request):
            return False
        if "result" not in request:
            raise no_result(self._last_label(request), " to go on with")
        request["data"] = request.pop("result")
        return True

    def _last_label(self, request: Request) -> str:
        return self.child._last_label(request)


class Loop(Again):
    """Run X again, its ``result`` as ``data``, until the item has a key: ``Loop(until=done)[X]``.

    A key ``until`` that a request brings is removed first: the same dict, sent again, loops again.

    Reads:
        data: What X reads.
    Writes:
        result: What X wrote last.
        {until}: What X wrote to end the loop.
    Batch:
        The range of X. Items that are done leave the batch. When fewer than the min of X are left, they
        are filled up with ``pad = true``; otherwise they fail.

    Raises:
        LimitError: An item ran ``limit`` times without the key.
        NoResultError: X wrote no ``result`` to go on with.
    Source:
        own
    Example:
        ``{"data": "ab"}`` gives ``"abababab"``::

            backend = "Loop(until=enough,limit=10)[Double]"
    """

    class Options(_Options):
        """Options of Loop."""

        until: str = Field(description="The key that X writes to end the loop.")
        limit: int = Field(100, ge=1, description="How many times X may run for one item.")

    writes = ("result", "{until}")

    def own_key(self) -> str:
        """Return the key ``until``."""
        return str(self.options.until)

    def is_done(self, request: Request) -> bool:
        """Tell whether the item has the key."""
        return self.options.until in request


class Restart(Again):
    """Run X again, entering at the node that the key ``restart`` names: ``Restart[DagDispatcher]``.

    It stands in ``entrypoint``. Before X runs again, with ``result`` as ``data``, the key ``restart`` is
    taken out; one that a request brings is taken out first. In the answer ``node_name`` has the caller's value again.

    Reads:
        restart: Name of the node to enter at, written by a backend inside X.
        data: What X reads.
    Writes:
        result: What X wrote last.
    Batch:
        The range of X. Items that are done leave the batch. When fewer than the min of X are left, they
        are filled up with ``pad = true``; otherwise they fail.

    Raises:
        LimitError: An item was restarted ``limit`` times.
        NoResultError: X wrote no ``result`` to go on with.
    Source:
        own
    Example:
        ``{"data": "a"}`` gives ``"A!!!"``::

            entrypoint = "Restart[DagDispatcher]"

            [upper]
            backend = "Upper"
            next = "grow"

            [grow]
            backend = "Grow"
    """

    class Options(_Options):
        """Options of Restart."""

        limit: int = Field(100, ge=1, description="How many times X may run for one item.")

    reads = ("restart", "data")

    def forward(self, batch: list[Request]) -> Outcomes:
        """Run the child until all items are done or have failed, and give each its ``node_name`` back.

        Without that the same dict, sent a second time, would enter at the node of its last restart; and one that
        failed after it had asked for a restart would be restarted though nothing asks for it then.
        """
        entered = [{NODE_NAME: one[NODE_NAME]} if NODE_NAME in one else {} for one in batch]
        try:
            outcomes = super().forward(batch)
            for request, name, error in zip(batch, entered, outcomes or (), strict=False):
                restarted = request.get(NODE_NAME) is not name.get(NODE_NAME)
                if restarted and isinstance(error, InputError) and error.key == NODE_NAME:
                    error.key = RESTART  # from there the wrong name has come
            return outcomes
        finally:
            for request, name in zip(batch, entered, strict=True):
                request.pop(NODE_NAME, None)
                request.pop(RESTART, None)
                request.update(name)

    def own_key(self) -> str:
        """Return the key ``restart``."""
        return RESTART

    def is_done(self, request: Request) -> bool:
        """Tell whether the item names no node to restart at; else let it enter at that node."""
        if (node := request.pop(RESTART, None)) is None:
            return True
        request[NODE_NAME] = node
        return False
