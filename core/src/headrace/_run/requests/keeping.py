"""What the context of a backend offers for answers in parts, or later: `InitContext`."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from headrace._run.requests.current import running_here
from headrace._run.requests.entry import DONE, RUNNING, Entry
from headrace._run.requests.parts import elsewhere, may_wait, read_from
from headrace._run.requests.pending import record_of
from headrace._run.steps.box import NOT_YET, ask, post
from headrace._run.steps.tracebacks import without_locals
from headrace._texts import repr_of
from headrace.errors import ContractError, among
from headrace.keys import Request

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from headrace._run.batches.instance import Instance
    from headrace._run.contract.checked import Checked
    from headrace._run.contract.settings import Links
    from headrace._run.node import Node
    from headrace._run.requests.parts import Parts


class Handle:
    """One keeping of a request, from ``context.request.keep`` to its outcome at the node.

    The handles of one keeping are equal, and may be keys of a dict. The dict of the request is sent
    again later, by its caller. That is another keeping, with another handle.

    Attributes:
        request: The dict of the request. Its caller's again, once the keeping has
            ended. Empty where no request was sent to the node: for an item of a
            container, and outside of a pipeline.
        notes: A dict for your own notes: the same one for all handles of the keeping, until that
            has ended.
    """

    __slots__ = ("_at", "_batches", "_entry", "_parts")

    def __init__(
        self, entry: Entry | None = None, parts: Parts | None = None, at: Instance | None = None
    ) -> None:
        self._entry = Entry({}) if entry is None else entry
        self._parts, self._at, self._batches = parts, at, 0 if at is None else at.batches

    @property
    def request(self) -> Request:
        """The dict of the request."""
        return self._entry.request

    @property
    def notes(self) -> dict[Any, Any]:
        """Your own notes on the request."""
        return record_of(self._entry).notes

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Handle) and self._entry is other._entry

    def __hash__(self) -> int:
        return hash(self._entry)

    def _goes_to(self) -> Parts | None:
        """Return where the parts of the request go. None where nobody reads any."""
        return self._parts or read_from(self._entry)

    def _has_ended(self) -> bool:
        """Tell whether nobody waits for the request any more, or for its parts."""
        parts, at = self._goes_to(), self._at
        if self._entry.state == DONE or (parts is not None and parts.closed):
            return True
        # A caller runs it itself, or a container has made it: it ends with the batch.
        return at is not None and (at.batches != self._batches or at.holder is None)


def _check_handle(handle: object, asking: str) -> None:
    """Raise TypeError for what is no handle, as for the dict of a request."""
    if type(handle) is not Handle:
        hint = "call handle = context.request.keep(request) in forward"
        message = f"a handle is expected, got {repr_of(handle)}: {hint}"
        raise TypeError(f"context.request.{asking}: {message}")


class Keeping:
    """What the context of a backend offers for answers that come later.

    Every method may be called at any moment, in any thread.

    Args:
        backend: The backend.
        nodes: Gives all that is registered in the pipeline: nodes as ``node.NAME``, each with the
            `Node` as ``node``, and as ``each`` its links where it runs once per element.
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

    def _entry_of(self, handle: Handle, asking: str) -> Entry | None:
        """Return the entry of a handle; None once the keeping has ended, or at another node."""
        _check_handle(handle, asking)
        entry, node = handle._entry, self._node()
        return entry if entry.state != DONE and entry.node is node is not None else None

    def _ask(self, entry: Entry, step: Callable[[Entry], object]) -> bool:
        node: Any = entry.node
        done = ask(node.box, node.pending.asks, entry, step)
        return done is NOT_YET or done

    def _find(self, request: Request) -> Entry | None:
        """Return the entry of a request in a batch that runs; None for one its caller runs."""
        entry, node = running_here(request), self._node()
        if node is None or (entry is not None and entry.node is node):
            return entry
        return node.pending.find(request) or entry

    def keep(self, request: Request) -> Handle:
        """Return a handle of a request: see `headrace.InitContext`."""
        if not isinstance(request, dict):
            message = f"a request of the batch is expected, got {repr_of(request)}"
            raise TypeError(f"context.request.keep: {message}")
        parts = elsewhere.get(id(request))
        if parts is not None:
            return Handle(parts=parts)
        entry, node = self._find(request), self._node()
        if entry is not None:
            if self._backend.keeps:
                record_of(entry)
            return Handle(entry)
        mine, instances = self._backend._liveness, () if node is None else node.instances
        return Handle(at=next((i for i in instances if i.liveness is mine), None))

    def find_handle(self, request: Request) -> Handle | None:
        """Return the handle of a request that was kept before: see `headrace.InitContext`."""
        entry = self._find(request)
        return None if entry is None or entry.held is None else Handle(entry)

    def resume(self, handle: Handle, node: str | None = None) -> bool:
        """Queue a request again: see `headrace.InitContext`."""
        self._check_keeps("resume")
        called = None
        if node is not None:
            called = self.call_node(node, "context.request.resume")
            if node not in self._targets:
                named = f"the class is not `last`, or its nodes_called lacks {node!r}"
                message = f"context.request.resume: {named}"
                raise self._backend._locate(ContractError(message))
        entry = self._entry_of(handle, "resume")
        if entry is None:
            return False
        mine: Any = entry.node
        if called is None or called.node is mine:
            return self._ask(entry, mine.pending.queue_again)
        return self._ask(entry, partial(mine.pending.go_on, called.node, called.each))

    def send(self, request: Request, there: Node, links: Links | None) -> None:
        """Let another node answer a request of the batch that runs."""
        entry = self._find(request)
        if entry is not None:
            record_of(entry)
            node: Any = entry.node
            post(node.box, node.pending.asks, entry, partial(node.pending.send, there, links))

    def finish(self, handle: Handle, outcome: Any) -> bool:
        """End a request: see `headrace.InitContext`."""
        self._check_keeps("finish")
        entry = self._entry_of(handle, "finish")
        if entry is None:
            return False
        error = None
        if isinstance(outcome, BaseException):
            error = self._backend._wrap(without_locals(outcome))
        mine: Any = entry.node
        return self._ask(entry, partial(mine.pending.answer, error, outcome))

    # Answers in parts.

    def emit(self, handle: Handle, part: Any, *, waits: bool | None = None) -> bool:
        """Give a part of an answer: see `headrace.InitContext`."""
        _check_handle(handle, "emit")
        parts = handle._goes_to()
        if parts is None or handle._has_ended():
            return False
        return parts.add(part, may_wait(self._node()) if waits is None else waits)

    def has_emitted(self, request: Request) -> bool:
        """Tell whether a part of the answer was given: then no other run may take its place."""
        parts = elsewhere.get(id(request)) or read_from(self._find(request))
        return parts is not None and bool(parts.begun)

    # Answers that come later.

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

    def on_end(self, handle: Handle, function: Callable[[Handle], object]) -> bool:
        """Have a holder told of the end of a request: see `headrace.InitContext`."""
        self._check_keeps("on_end")
        if not callable(function):
            message = f"a function is told of the end, got {repr_of(function)}"
            raise TypeError(f"context.request.on_end: {message}")
        entry = self._entry_of(handle, "on_end")
        if entry is None:
            return False
        node: Any = entry.node
        noted = ask(node.box, node.pending.on_end, entry, function, handle)
        return noted is NOT_YET or noted

    def is_unwanted(self, handle: Handle) -> bool:
        """Tell whether nobody waits for a request any more: see `headrace.InitContext`."""
        _check_handle(handle, "unwanted")
        return handle._has_ended()

    def away(self, *, takes_batches: bool = False) -> None:
        """Say that what the backend computes with is away: see `headrace.InitContext`."""
        if self._backend._liveness is not None:
            self._backend._liveness.away(self, takes_batches=takes_batches)

    def back(self) -> None:
        """Say that it is there again: see `headrace.InitContext`."""
        if self._backend._liveness is not None:
            self._backend._liveness.back(self)

    def alongside(self, cls: type) -> list[tuple[Handle, Any]]:
        """Return what other instances of the node run, each with its value of ``cls.enter``.

        See `headrace.InitContext`.
        """
        node, mine = self._node(), self._backend._liveness
        return [
            (Handle(entry), (entry.entered or {}).get(cls))
            for instance in (() if node is None else node.instances)
            if instance.liveness is not mine
            for entry in [*(instance.entries or ())]
            if entry.state == RUNNING
        ]
