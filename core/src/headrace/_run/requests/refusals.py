"""The errors of requests that a node refuses or gives up."""

from __future__ import annotations

from concurrent.futures import CancelledError
from typing import TYPE_CHECKING, Any

from headrace._run.steps.tracebacks import set_abandoned, with_cause
from headrace.errors import (
    BackendError,
    BatchRangeError,
    ContractError,
    DeadlineExceededError,
    OverloadedError,
)

if TYPE_CHECKING:
    from headrace._run.node import Node
    from headrace._run.requests.entry import Entry


def deadline_error(node: Node, *, running: bool, begun: bool = False) -> DeadlineExceededError:
    """Make the error of a request whose deadline has passed.

    Args:
        node: Where it was.
        running: Whether a backend runs on its dict.
        begun: Whether a backend runs on it, or on a copy of it.
    """
    when = "while a backend ran on it" if running or begun else "while it waited"
    message = f"the time of the request was over {when}"
    hint = "Allow more time (timeout, timeout_ms), or more instances."
    if running:
        hint = f"Do not use its dict again. {hint}"
    return DeadlineExceededError(message, hint=hint, node=node.name, abandoned=running)


def withdrawn(_: object, *, running: bool) -> CancelledError:
    """Make the error of a request whose caller has cancelled it."""
    error = CancelledError()
    set_abandoned(error, running)
    return error


def no_thread_error(node: str, act: str, cause: BaseException) -> BackendError:
    """Make the error of a request for which no thread can be started, whose act it needs."""
    error = BackendError(f"no thread could be started to {act}: {cause}", node=node)
    return with_cause(error, cause)


def endless_wait(node: str) -> ContractError:
    """Make the error of a call that waits for the instance of its own caller."""
    message = "deadlock: a backend called its own pipeline, and waits for the instance it holds"
    hint = "Call another pipeline, or compose the backends in one expression."
    return ContractError(message, node=node, hint=hint)


def unfit_error(node: Node, entry: Entry) -> BaseException | None:
    """Return the error of an entry that came too late or that no instance can take; else None."""
    if entry.deadline is not None and entry.deadline <= entry.arrival:
        error = deadline_error(node, running=False)
        error.hint = f"{error.hint} A timeout is in seconds from now, and None has no end."
        return error
    if node.max is None or entry.weight <= node.max:
        return None
    message = f"a request of weight {entry.weight} fits no instance: the greatest max is {node.max}"
    owned = [bound.limit for bound in node.instances if bound.limit is not None]
    cure = ", or raise the node's max."
    if owned and len(owned) == len(node.instances):  # a greater max of the node changes nothing
        name, most = max(owned, key=lambda bound: bound[1])
        cure = f": {name} itself takes at most {most}, whatever the node says."
    limits: Any = {"weight": entry.weight, "min": node.min, "max": node.max}
    hint = f"Send fewer rows in one request{cure}"
    return BatchRangeError(message, **limits, node=node.name, hint=hint)


def overload_error(node: Node, waiting: int) -> OverloadedError:
    """Make the error of a request that finds the queue full."""
    size, wait = node.limits.queue_size, "request waits" if waiting == 1 else "requests wait"
    message = f"the queue is full: {waiting} {wait}, queue_size is {size}"
    hint = "Send fewer at a time, raise queue_size, or set queue_full = 'wait'."
    return OverloadedError(message, queue_size=size, waiting=waiting, node=node.name, hint=hint)
