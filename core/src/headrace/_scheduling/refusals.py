"""The errors of requests that a scheduler refuses, sheds or gives up."""

from __future__ import annotations

from concurrent.futures import CancelledError
from typing import TYPE_CHECKING, Any

from headrace.errors import (
    BackendError,
    BatchRangeError,
    ClosedError,
    ContractError,
    DeadlineExceededError,
    OverloadedError,
)

if TYPE_CHECKING:
    from headrace._scheduling.entry import Entry


def deadline_error(node: Any, *, running: bool, begun: bool = False) -> DeadlineExceededError:
    """Make the error of a request whose deadline has passed; ``begun``: a backend runs on it, or on a copy of it."""
    when = "while a backend ran on it" if running or begun else "while it waited"
    what = f"the time of the request was over {when}"
    hint = f"{'Do not use its dict again. ' * running}Allow more time (timeout, timeout_ms), or more instances."
    return DeadlineExceededError(what, hint=hint, node=node.name, abandoned=running)


def interrupted(node: Any, *, running: bool) -> BackendError:
    """Make the error of a request for which its caller, interrupted, waits no more."""
    return BackendError("the caller was interrupted", node=node.name, abandoned=running)


def withdrawn(_: Any, *, running: bool) -> CancelledError:
    """Make the error of a request whose owner has taken it back."""
    error = CancelledError()
    error.abandoned = running  # type: ignore[attr-defined]
    return error


def left_open(text: str, _: Any, *, running: bool) -> ClosedError:
    """Make the error of a request that was still open when the time of a close was over."""
    return ClosedError(text, abandoned=running)


def cancelled() -> CancelledError:
    """Make the outcome of a request that nobody wants any more."""
    return CancelledError()


def endless_wait(node: str) -> ContractError:
    """Make the error of a call that needs an instance whose thread waits for that same call."""
    what = "a backend called its own pipeline, which waits for the instance that it holds"
    hint = "Call another pipeline, or compose the backends in one expression."
    return ContractError(what, node=node, hint=hint)


def unfit(node: Any, entry: Entry) -> BaseException | None:
    """Give the error of an entry that came after its deadline, or that no instance can ever take; else None."""
    if entry.deadline is not None and entry.deadline <= entry.arrival:
        return deadline_error(node, running=False)
    if node.max is None or entry.weight <= node.max:
        return None
    what = f"a request of weight {entry.weight} fits no instance: the greatest max is {node.max}"
    owned = [one.limit for one in node.instances if one.limit is not None]
    hint = "Send fewer rows in one request, or raise the node's max."
    if owned and len(owned) == len(node.instances):  # a greater max of the node changes nothing
        name, most = max(owned, key=lambda one: one[1])
        hint = f"Send fewer rows in one request: {name} itself takes at most {most}, whatever the node says."
    limits: Any = {"weight": entry.weight, "min": node.min, "max": node.max}
    return BatchRangeError(what, **limits, node=node.name, hint=hint)


def overloaded(node: Any, waiting: int, *, shed: bool) -> OverloadedError:
    """Make the error of a request that finds the queue full, or makes way for a newer one."""
    size, wait = node.limits.queue_size, "request waits" if waiting == 1 else "requests wait"
    why = "made way for a newer request" if shed else "the queue is full"
    what = f"{why}: {waiting} {wait}, queue_size is {size}"
    hint = "Send fewer at a time, raise queue_size, or set queue_full = 'wait'."
    return OverloadedError(what, queue_size=size, waiting=waiting, node=node.name, hint=hint)
