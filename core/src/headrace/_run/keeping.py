"""What the context of a backend offers for requests that it answers in parts, or later: see `headrace.InitContext`."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from headrace._run import threads
from headrace._run.box import NOT_YET, ask, post
from headrace._run.current import running_here
from headrace._run.entry import DONE, RUNNING
from headrace._run.parts import elsewhere, may_wait, read_from
from headrace._run.pending import tell
from headrace._run.tracebacks import without_locals
from headrace._texts import repr_of
from headrace.errors import ContractError, among

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from headrace._run.checked import Checked
    from headrace._run.entry import Entry
    from headrace._run.node import Node
    from headrace._run.node_request import Called
    from headrace._run.parts import Parts
    from headrace.keys import Request


class Keeping:
    """What the context of a backend offers for requests that it answers later. Every method at any moment, in any thread.

    Args:
        backend: The backend.
        nodes: Gives all that is registered in the pipeline: nodes as ``node.NAME``, each a `Called`.
        targets: The nodes at which the backend may let requests go on.
    """

    def __init__(
        self,
        backend: Checked,
        nodes: Callable[[], Mapping[str, Any]] = dict,
        targets: Sequence[str] = (),
    ) -> None:
        self._backend, self._nodes, self._targets = backend, nodes, targets

    def _node(self) -> Node | None:
        liveness = self._backend._liveness
        return None if liveness is None else liveness.node

    def _check_keeps(self, asking: str) -> None:
        """Raise ContractError where the class does not say that it keeps requests."""
        if not self._backend.keeps:
            raise self._backend._needs_keeps(f"called context.request.{asking}")

    def _ask(self, request: Request, step: Callable[[Entry], object]) -> bool:
        node = self._node()
        if node is None:
            return False
        found = ask(node.box, node.pending.asks, request, step)
        return found is NOT_YET or found

    def resume(self, request: Request, node: str | None = None) -> bool:
        """Queue a request again: see `headrace.InitContext`."""
        self._check_keeps("resume")
        mine = self._node()
        step = None if mine is None else mine.pending.queue_again
        if node is not None:
            called = self.call_node(node, "context.request.resume")
            if node not in self._targets:
                message = f"context.request.resume: goes_on_at of the class does not name the node {node!r}"
                raise self._backend._locate(ContractError(message))
            if mine is not None and called.node is not mine:
                step = partial(mine.pending.go_on, node, called)
                return self._ask(request, step)
        return step is not None and self._ask(request, step)

    def send(self, request: Request, there: Called) -> None:
        """Let another node answer a request that is kept here."""
        node = self._node()
        if node is not None:
            post(node.box, node.pending.asks, request, partial(node.pending.send, there))

    def finish(self, request: Request, outcome: Any) -> bool:
        """End a request: see `headrace.InitContext`."""
        self._check_keeps("finish")
        mine = self._node()
        if mine is None:
            return False
        error = None
        if isinstance(outcome, BaseException):
            error = self._backend._wrap(without_locals(outcome))
        return self._ask(request, partial(mine.pending.answer, error, outcome))

    # Answers in parts.

    def _find(self, request: Request, node: Node | None) -> tuple[Parts | None, Entry | None]:
        """Return where the parts of a request go, if anybody reads them, and its entry, if it runs or is kept."""
        sent = elsewhere.get(id(request))
        if sent is not None:
            return sent, None
        entry = running_here(request)
        if entry is None:
            entry = None if node is None else node.pending.find(request)
        return read_from(entry), entry

    def emit(self, request: Request, part: Any, *, waits: bool | None = None) -> bool:
        """Give a part of an answer: see `headrace.InitContext`."""
        node = self._node()
        parts, _ = self._find(request, node)
        if parts is None:
            return False
        return parts.add(part, may_wait(node) if waits is None else waits)

    def has_emitted(self, request: Request) -> bool:
        """Tell whether a part of the answer was given to somebody: then no other run may take its place."""
        parts, _ = self._find(request, self._node())
        return parts is not None and bool(parts.begun)

    # Answers that come later.

    def notes_of(self, request: Request) -> dict[Any, Any]:
        """Return what the backend keeps with a request: see `headrace.InitContext`."""
        self._check_keeps("kept")
        node = self._node()
        entry = None if node is None else node.pending.known.get(id(request))
        return {} if entry is None or entry.request is not request else entry.held.own

    def call_node(self, name: str, asking: str) -> Any:
        """Return the node of a name, a ``NodeCall``, for what ``asking`` says.

        Raises:
            ContractError: There is none.
            TypeError: The name is no text.
        """
        if not isinstance(name, str):
            raise TypeError(f"{asking}: a node is named by a text, got {repr_of(name)}")
        nodes = self._nodes()
        if (called := nodes.get(f"node.{name}")) is not None:
            return called
        names = [known[5:] for known in nodes if known.startswith("node.")]
        message = f"{asking}: no node is called {name!r}"
        raise self._backend._locate(ContractError(message, hint=among(name, names)))

    def on_end(self, request: Request, function: Callable[[Request], object]) -> None:
        """Have a holder told of the end of a request: see `headrace.InitContext`."""
        self._check_keeps("on_end")
        if not callable(function):
            raise TypeError(
                f"context.request.on_end: a function is told of the end, got {repr_of(function)}"
            )
        node = self._node()
        if node is None:
            threads.current.pool.run(tell, function, request)
        else:
            ask(node.box, node.pending.on_end, request, function)

    def is_unwanted(self, request: Request) -> bool:
        """Tell whether nobody waits for a request any more: see `headrace.InitContext`."""
        node = self._node()
        if node is None:
            return False
        parts, entry = self._find(request, node)
        if parts is not None and parts.closed:
            return True
        if entry is not None:
            return bool(entry.state == DONE)
        # An item that a container has made is none of the node's; else the request has ended.
        holders = [instance.holder for instance in node.instances]
        return not node.is_held_by_this_thread() and all(it is not request for it in holders)

    def away(self, *, takes_batches: bool = False) -> None:
        """Say that what the backend computes with is away: see `headrace.InitContext`."""
        if self._backend._liveness is not None:
            self._backend._liveness.away(self, takes_batches=takes_batches)

    def back(self) -> None:
        """Say that it is there again: see `headrace.InitContext`."""
        if self._backend._liveness is not None:
            self._backend._liveness.back(self)

    def alongside(self, cls: type) -> list[tuple[Request, Any]]:
        """Return what other instances of the node run, each with what ``cls.enter`` returned: see `headrace.InitContext`."""
        node, mine = self._node(), self._backend._liveness
        return [
            (entry.request, (entry.entered or {}).get(cls))
            for instance in (() if node is None else node.instances)
            if instance.liveness is not mine
            for entry in [*(instance.entries or ())]
            if entry.state == RUNNING
        ]
