"""Calls of nodes: from an expression, by a backend, and by a node that is an alias."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from headrace._language.contract.backend import Backend
from headrace._run.batches.runners import wait_for
from headrace._run.contract.checked import PENDING, Outcomes
from headrace._run.requests.current import entries_of
from headrace._run.requests.entry import NEW
from headrace._run.requests.keeping import Keeping
from headrace._run.requests.node_request import NodeRequest, Sent
from headrace._run.requests.room import Ticket
from headrace._run.steps.box import ask, post
from headrace._run.steps.tracebacks import none_if_all_ok, with_cause
from headrace.errors import ClosedError, ContractError

if TYPE_CHECKING:
    from headrace._run.contract.checked import Liveness
    from headrace._run.contract.settings import Links
    from headrace._run.node import Node
    from headrace.keys import Request

    Then = Callable[[Request, BaseException | None], object]


class NodeCall(Backend):
    """A call of a node from an expression: each item becomes a request of its own there.

    Where the node has ``each``, every element of the item's list becomes a request, and the results
    are gathered.
    """

    def __init__(self, node: Node, each: Links | None = None) -> None:
        self.node, self.each = node, each
        self._name = f"node.{node.name}"
        self._state = "ready"

    def describe(self) -> dict[str, Any]:
        """Say which node is called."""
        return {"calls_node": self.node.name}

    def forward(self, batch: list[Request]) -> Outcomes:
        """Hand the items to the node and wait for them. Deadline and priority are kept."""
        items = []
        for request, outer in zip(batch, entries_of(batch), strict=True):
            request.pop("result", None)
            items.append(NodeRequest(self.node, self.each, request, outer, Ticket(None)))
        entries = [entry for item in items for entry in item.entries]
        for entry in entries:
            entry.internal = True
        if entries:
            wait_for(self.node, [entry for entry in entries if entry.state == NEW])
        outcomes = [item.answer() for item in items]
        if none_if_all_ok(outcomes) is None:
            return None
        try:
            return [None if e is None else _outcome_of(e) for e in outcomes]
        finally:
            del outcomes  # see `Entry.take_error`


class Alias(Backend):
    """What stands for a node that is ``Forward[node.x]``: x answers, and no thread waits."""

    keeps = True
    _is_last = True

    def __init__(self, node: NodeCall, liveness: Liveness) -> None:
        self._called, self._liveness = node, liveness
        liveness.keeps = True
        self._name, self.describe = node._name, node.describe  # type: ignore[method-assign]
        self._state = "ready"
        self._keeping = Keeping(self)

    @property
    def needs(self) -> tuple[str, ...]:
        """The keys without which no request may enter; ``each`` makes its target itself."""
        links = self._called.each
        return tuple(
            key for key in self._called.node.needs if links is None or key != links._each_keys[1]
        )

    def forward(self, batch: list[Request]) -> Outcomes:
        """Send the items on."""
        for request in batch:
            self._keeping.send(request, self._called.node, self._called.each)
        return [PENDING for _ in batch]


def begin_calls(
    keeping: Keeping,
    request: Request,
    node: str,
    batch: Sequence[Request],
    then: Then,
    parts: bool | str = True,
) -> Callable[[], object]:
    """Let a node run new requests on behalf of one that runs here: `InitContext`."""
    called: NodeCall = keeping.call_node(node, "context.request.call")
    if type(parts) not in (bool, str):
        raise TypeError(f"context.request.call: parts is True, False or a text, got {parts!r}")
    (outer,), box = entries_of([request]), called.node.box

    def end(sent: Request, error: BaseException | None) -> None:
        box.later(then, sent, None if error is None else _outcome_of(error))

    sent = [
        Sent(called.node, called.each, sent, outer, partial(end, sent), parts) for sent in batch
    ]

    def start() -> None:
        for request_sent in sent:
            request_sent.start()

    def give_up() -> None:
        for request_sent in sent:
            request_sent.give_up()

    post(box, start)
    return partial(ask, box, give_up)


def _outcome_of(error: BaseException) -> Exception:
    """Make an item's outcome of the error that a node, a queue or the graph has raised for it."""
    if isinstance(error, ClosedError):  # it tells of this pipeline, so it is passed on unwrapped
        return error._passing()
    if isinstance(error, Exception):
        return error
    return with_cause(ContractError(f"{type(error).__name__} ended a request"), error)
