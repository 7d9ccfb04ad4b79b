"""Repost and Restart: a request leaves the way of the graph and goes on at another node."""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING, Any

from pydantic import Field
from typing_extensions import NotRequired, TypedDict

import headrace
from headrace import PENDING
from headrace.errors import ContractError, InputError, LimitError, among
from headrace.keys import RESTART
from headrace.words import Place, select

if TYPE_CHECKING:
    from collections.abc import Iterator

    from headrace.keys import Request

__all__ = ["Repost", "Restart"]


class Repost(headrace.Backend):
    """End the way of a request here and go on at another node: ``S[Check,(or)Repost[repair]]``.

    Once its batch has ended, the request enters the other node as if you had sent it there, with the same dict and
    ``data``. The nodes linked after the first node do not run, nor does a ``map`` of the other node. The nodes linked
    after the other one do. Deadline, priority, cancellation, ``node_name`` and the bound of the first queue stay as they
    are. Back at its own node, a request is the next one in the queue. In a node called by ``Forward`` the other node
    answers the call.

    Repost stands at the end of its node: outermost, last in an ``S`` there, or in a branch of ``HasKey`` there. It cannot
    stand in one of several branches of the graph, or in a node with ``each``.

    Reads:
        data: Anything.
    Writes:
        result: The output of the other node.
    Batch:
        1 or more.

    Raises:
        InputError: ``data`` is missing.
        LimitError: The request was reposted ``limit`` times before, by this Repost or another.
        ContractError: The item was made by a container, and not sent to the node.
    Source:
        own
    Example:
        ``{"data": "abcd"}`` gives ``"dcba"``::

            [check]
            backend = "S[Short,(or)Repost[shorten]]"
            next = "upper"

            [upper]
            backend = "Upper"

            [shorten]
            backend = "Reverse"
    """

    class Options(headrace.Options):
        """Options of Repost.

        Attributes:
            node: The node at which requests go on.
            limit: The most reposts of a request, counted together with the requests that Forward makes of it.
        """

        node: str
        limit: int = Field(100, ge=1)

    place = Place(stands="last")
    keeps = True
    uses_pipeline = True

    @staticmethod
    def enter(request: Request) -> Iterator[int]:
        """Return a counter for the reposts of a request, in whatever dicts it goes on."""
        return count(1)

    @classmethod
    def nodes_called(cls, options: Any) -> tuple[str, ...]:
        """Return the node at which requests go on."""
        return (options.node,)

    def init(self, options: Any, context: headrace.InitContext) -> None:
        """Take over the options."""
        self._context, self._target, self._limit = context, options.node, options.limit

    def forward(self, batch: list[Request]) -> list[Exception | None]:
        """Send the requests on; copies that fill the batch up go nowhere."""
        outcomes: list[Exception | None] = [None] * len(batch)
        own = select(batch, range(len(batch)), lambda _: True, outcomes, fillers=False)
        for place in own:
            outcomes[place] = self._send_on(batch[place])
        return outcomes

    def _send_on(self, request: Request) -> Exception | None:
        """Send a request on; give its outcome here."""
        reposts = self._context.request.entered(request)
        if reposts is None:
            return ContractError("only a request that was sent to the node goes on at another one")
        if next(reposts) > self._limit:
            where = f"from node {self._context.node_name!r} to {self._target!r}"
            text = f"the request was reposted more than {self._limit} times, last {where}"
            hint = "See why it never comes to an end, or raise the option limit of Repost."
            return LimitError(text, limit=self._limit, hint=hint)
        self._context.request.resume(self._context.request.keep(request), self._target)
        return PENDING


class RestartKeys(TypedDict):
    """The keys of a request that `Restart` reads."""

    data: Any
    restart: NotRequired[Any]


class Restart(Repost):
    """Let a request go on at the node that its key ``restart`` names, with what the nodes before have computed.

    It stands at the end of the last node: ``S[X,Restart(nodes=[a,b])]``. A request without the key ends there. A
    request's own ``restart`` is removed when it enters. ``entrypoint = "Restart[DagDispatcher]"`` means the same.

    Reads:
        data: Anything.
        restart: The node at which the request goes on, if there is one. It is removed.
    Writes:
        result: ``data``, or the output of the last node after a restart.
    Batch:
        1 or more.

    Raises:
        InputError: ``data`` is missing, or ``restart`` names none of ``nodes``.
        LimitError: The request ran ``limit`` times.
        ContractError: The item was made by a container, and not sent to the node.
    Source:
        own
    Example:
        ``{"data": "a"}`` gives ``"A!!!"``::

            [upper]
            backend = "Upper"
            next = "grow"

            [grow]
            backend = "S[Grow,Restart(nodes=[grow])]"
    """

    class Options(headrace.Options):
        """Options of Restart.

        Attributes:
            nodes: The nodes that the key may name.
            limit: How many times a request may run, the first run included.
        """

        nodes: tuple[str, ...] = Field(min_length=1)
        limit: int = Field(100, ge=1)

    reads = RestartKeys

    @staticmethod
    def enter(request: Request) -> Iterator[int]:
        """Remove a ``restart`` that the request brings, and return a counter for its runs."""
        request.pop(RESTART, None)
        return count(1)

    @classmethod
    def nodes_called(cls, options: Any) -> tuple[str, ...]:
        """Return the nodes at which requests may go on."""
        return tuple(options.nodes)

    def init(self, options: Any, context: headrace.InitContext) -> None:
        """Take over the options."""
        self._context, self._nodes, self._limit = context, options.nodes, options.limit

    def _send_on(self, request: Request) -> Exception | None:
        """Send a request on that names a node. Others end here."""
        if "data" not in request:
            return InputError(
                "the request has no 'data'", key="data", expected="anything", got="nothing"
            )
        target = request.pop(RESTART, None)
        if target is None:
            request["result"] = request["data"]
            return None
        if target not in self._nodes:
            hint = among(str(target), self._nodes)
            return InputError(f"no node is called {target!r}", key=RESTART, hint=hint)
        runs = self._context.request.entered(request)
        if runs is None:
            return ContractError("only a request that was sent to the node goes on at another one")
        if next(runs) >= self._limit:
            text = f"the request ran {self._limit} times, and is to go on at node {target!r}"
            hint = "See why it never comes to an end, or raise the option limit of Restart."
            return LimitError(text, limit=self._limit, hint=hint)
        self._context.request.resume(self._context.request.keep(request), target)
        return PENDING
