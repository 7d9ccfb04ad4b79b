"""What a batch policy sees of the queue of a node: all of it, or a window with a trait per request.

A policy with ``picks`` names the places of the requests that share a batch. It sees the first
`WINDOW` requests alone, so that a decision costs the same however many wait. The trait of a request
is worked out by the thread that sends it, in no step (`unread`). Only what was queued again is read
in a step.
"""

from __future__ import annotations

from operator import index
from typing import TYPE_CHECKING, SupportsIndex

from headrace._run.steps.box import post
from headrace._run.steps.tracebacks import with_cause
from headrace._texts import error_text
from headrace.errors import ContractError, RequestError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from headrace._run.contract.policies import BatchPolicy
    from headrace._run.node import Node
    from headrace._run.requests.entry import Entry

WINDOW = 256
"""How many requests at the head of the queue a policy with ``picks`` sees."""


class QueueView:
    """The queue as a policy sees it, for one decision: see `headrace.policies.Queue`.

    Args:
        node: The node that the queue belongs to.
        window: The entries at its head that a policy with ``picks`` sees, each with its ``trait``.
            None for all.
    """

    __slots__ = ("_count", "_node", "_rest", "_seen", "closing", "weight")
    _count: int

    def __init__(self, node: Node, window: list[Entry] | None = None) -> None:
        queue = node.queue
        self._node = node
        self._count, self.weight = queue.count, queue.weight
        self._rest = iter(queue)
        self._seen: list[Entry] = window or []
        if window is not None:
            self._count, self.weight = len(window), sum([entry.weight for entry in window])
        self.closing = node.refusing is not None

    @property
    def running(self) -> int:
        """How many instances run a batch."""
        return sum([instance.holder is not None for instance in self._node.instances])

    @property
    def free(self) -> int:
        """How many instances are free."""
        return len(self._node.free)

    @property
    def oldest(self) -> float:
        """When the oldest entry arrived, whatever its priority."""
        return self._node.queue.oldest()

    @property
    def open(self) -> bool:
        """Whether more requests may come: the node is neither closing nor full."""
        return not self.closing and not self._node.room.full

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int, /) -> Entry:
        if index < 0:
            index += self._count
        if not 0 <= index < self._count:
            raise IndexError("queue index out of range")
        while index >= len(self._seen):
            self._seen.append(next(self._rest))
        return self._seen[index]


def unread(
    entries: Iterable[Entry], policy: BatchPolicy, node: str
) -> list[tuple[Entry, BaseException]]:
    """Let a policy with ``picks`` work out the traits of entries that it has not read yet.

    Returns:
        The entries whose trait could not be worked out, each with its error.
    """
    failed: list[tuple[Entry, BaseException]] = []
    for entry in [entry for entry in entries if getattr(entry, "trait_of", None) is not policy]:
        try:
            read = policy.trait if entry.held is None else policy.trait_again
            entry.trait = read(entry.request)
        except RequestError as error:  # the policy refuses the request
            error.node = error.node or node
            failed.append((entry, error))
        except BaseException as error:  # every entry gets an outcome
            problem = f"the policy {type(policy).__name__} raised {error_text(error)}"
            failed.append((entry, with_cause(ContractError(problem, node=node), error)))
        else:
            entry.trait_of = policy
    return failed


def read_traits(entries: Iterable[Entry], policy: BatchPolicy, node: Node) -> None:
    """Work out the traits of new entries, in the thread that sends them, and fail those refused."""
    failed = unread(entries, policy, node.name)
    if failed:
        post(node.box, refuse, node, failed)


def refuse(node: Node, failed: list[tuple[Entry, BaseException]]) -> None:
    """Fail entries that the policy refuses; in a step."""
    for entry, error in failed:
        if entry.waits:  # else it was withdrawn a moment ago
            node.fail_waiting(error, (entry,))


def places_of(take: SupportsIndex | tuple[SupportsIndex, ...], count: int) -> list[int] | None:
    """Return the places that a `Cut` names among ``count`` requests. None where they are none.

    Raises:
        TypeError: ``take`` is neither a whole number nor a tuple of such.
    """
    if not isinstance(take, tuple):
        first = index(take)
        return list(range(min(first, count))) if first >= 0 else None
    places = [index(place) for place in take]
    if len(set(places)) < len(places) or not all(0 <= place < count for place in places):
        return None
    return places
