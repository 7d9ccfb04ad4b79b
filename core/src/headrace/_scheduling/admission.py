"""Entering a node: refused, let into the queue, or left outside until there is room."""

from __future__ import annotations

from concurrent.futures import CancelledError
from functools import partial
from operator import attrgetter
from threading import get_ident
from typing import TYPE_CHECKING, Any

from headrace._scheduling.entry import DONE, ENTERED, OUTSIDE, QUEUED, own_error
from headrace._scheduling.queue import QUEUE_FULL
from headrace._scheduling.threads import Served, held_by, served_here, waited_for
from headrace.errors import (
    BackendError,
    BatchRangeError,
    ContractError,
    DeadlineExceededError,
    OverloadedError,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headrace._scheduling.entry import Entry
    from headrace._scheduling.node import Node


_ident = attrgetter("ident")


def enter(
    node: Node, entries: Sequence[Entry], *, internal: bool = False, waits: bool = False
) -> None:
    """Let new entries in one by one; an entry that is refused fails alone. Under the lock.

    Batches that are due are given to free instances before an entry finds the queue full.

    Args:
        node: The node.
        entries: New entries.
        internal: Whether the entries come from a backend of this pipeline: closing lets these in.
        waits: Whether the calling thread will wait for the entries.
    """
    refused = None
    if node.refusing is not None or node.lost or waits:
        refused = _refusal(node, internal=internal, waits=waits)
    for entry in entries:
        if entry.state != DONE:  # else its owner took it back before it came here
            _admit(node, entry, refused)


def _admit(node: Node, entry: Entry, refused: BaseException | None) -> None:
    """Let a new entry into the queue, or leave it outside, or fail it. Under the lock.

    Args:
        node: The node.
        entry: The entry.
        refused: The error with which every entry is refused now; None where entries are let in.
    """
    node.entered += 1
    entry.state = ENTERED
    if refused is None and (
        entry.deadline is not None or (node.max is not None and entry.weight > node.max)
    ):
        refused = unfit(node, entry)
    if refused is not None:
        node.settle(entry, own_error(refused))
        return
    # Bounds hold where a request enters the pipeline, not between its nodes.
    quota = entry.quota
    size = node.limits.queue_size
    if (quota is None or not quota.entered) and (node.outside or node.bounded >= size):
        node.dispatch(None)
        if node.outside or node.full:
            _enter_full(node, entry)
            return
    node.queue.push(entry)


def held_here(node: Node, ident: int | None = None) -> bool:
    """Tell whether a thread (None: the calling one), or a thread that waits for it, runs a batch of the node."""
    me = ident or get_ident()
    served: Served = served_here(me) if waited_for(me) else {me: None}
    if served.keys().isdisjoint(map(_ident, node.every)):
        return False
    return any(held_by(served, one) for one in node.every)


def deadline_error(node: Node, *, running: bool, begun: bool = False) -> DeadlineExceededError:
    """Make the error of a request whose deadline has passed; ``begun``: a backend runs on it, or on a copy of it."""
    when = "while a backend ran on it" if running or begun else "while it waited"
    what = f"the time of the request was over {when}"
    hint = f"{'Do not use its dict again. ' * running}Allow more time (timeout, timeout_ms), or more instances."
    return DeadlineExceededError(what, hint=hint, node=node.name, abandoned=running)


def interrupted(node: Node, *, running: bool) -> BackendError:
    """Make the error of a request for which its caller, interrupted, waits no more."""
    return BackendError("the caller was interrupted", node=node.name, abandoned=running)


def withdrawn(_: Node, *, running: bool) -> CancelledError:
    """Make the error of a request whose owner has taken it back."""
    error = CancelledError()
    error.abandoned = running  # type: ignore[attr-defined]
    return error


def _refusal(node: Node, *, internal: bool, waits: bool) -> BaseException | None:
    goes_on = internal and not node.dead and (node.drains or node.has_idle)
    if node.refusing is not None and not goes_on:
        return node.refusing
    if node.lost:
        return node.no_instance()
    if waits and not node.has_idle and held_here(node):
        return endless_wait(node.name)
    return None


def refuse_endless(node: Node, entries: Sequence[Entry]) -> None:
    """Fail those of the entries that wait, as they would wait for an instance for ever. Under the lock."""
    node.fail_waiting(endless_wait(node.name), [e for e in entries if e.state in (QUEUED, OUTSIDE)])


def endless_wait(node: str) -> ContractError:
    """Make the error of a call that needs an instance whose thread waits for that same call."""
    what = "a backend called its own pipeline, which waits for the instance that it holds"
    hint = "Call another pipeline, or compose the backends in one expression."
    return ContractError(what, node=node, hint=hint)


def unfit(node: Node, entry: Entry) -> BaseException | None:
    """Give the error of an entry that came after its deadline, or that no instance can ever take; else None."""
    if entry.deadline is not None and entry.deadline <= entry.arrival:
        return deadline_error(node, running=False)
    if node.max is None or entry.weight <= node.max:
        return None
    what = f"a request of weight {entry.weight} fits no instance: the greatest max is {node.max}"
    instances = getattr(node, "instances", ())
    owned = [i.limit for i in instances if i.limit is not None]
    hint = "Send fewer rows in one request, or raise the node's max."
    if owned and len(owned) == len(instances):  # a greater max of the node changes nothing
        name, most = max(owned, key=lambda one: one[1])
        hint = f"Send fewer rows in one request: {name} itself takes at most {most}, whatever the node says."
    limits: Any = {"weight": entry.weight, "min": node.min, "max": node.max}
    return BatchRangeError(what, **limits, node=node.name, hint=hint)


def _enter_full(node: Node, entry: Entry) -> None:
    waiting = node.bounded
    oldest = node.queue.oldest_of_lowest()
    priorities = (None if oldest is None else oldest.priority, node.quota.lowest)
    found = [priority for priority in priorities if priority is not None]
    policy = QUEUE_FULL[node.limits.queue_full]
    decision = policy.decide(entry.priority, min(found, default=None))
    if decision == "wait":
        node.outside[entry] = None
        entry.state = OUTSIDE
    elif decision == "shed" and _shed(node, oldest, entry.priority, waiting):
        node.queue.push(entry)
    else:
        node.settle(entry, _overloaded(node, waiting, shed=False))


def _shed(node: Node, oldest: Entry | None, priority: int, waiting: int) -> bool:
    """Fail the oldest request of the lowest priority, if that priority is ``priority`` or lower.

    Of requests of the same priority, those that wait at other nodes are the older ones.

    Args:
        node: The node.
        oldest: The oldest entry of the lowest priority in the queue of this node, None for none.
        priority: The priority of the newcomer.
        waiting: How many requests wait.

    Returns:
        Whether a request made way; one at another node may begin to run before it is failed there.
    """
    error = _overloaded(node, waiting, shed=True)
    here = priority + 1 if oldest is None else oldest.priority
    found = node.quota.shed(min(here, priority))
    if found is not None:
        other, evict = found
        node.afterwards.append(partial(evict, other, error))
        return True
    if oldest is None or here > priority:
        return False
    node.fail_waiting(error, [oldest])
    return True


def _overloaded(node: Node, waiting: int, *, shed: bool) -> OverloadedError:
    size, wait = node.limits.queue_size, "request waits" if waiting == 1 else "requests wait"
    why = "made way for a newer request" if shed else "the queue is full"
    what = f"{why}: {waiting} {wait}, queue_size is {size}"
    hint = "Send fewer at a time, raise queue_size, or set queue_full = 'wait'."
    return OverloadedError(what, queue_size=size, waiting=waiting, node=node.name, hint=hint)
