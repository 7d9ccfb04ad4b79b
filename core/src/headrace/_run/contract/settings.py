"""What a blueprint says of one node: how it is linked to the others, and the keys of its queue."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Links:
    """How a node is linked to the others.

    Attributes:
        next: The nodes after it.
        map: For each node in its ``map``, the key or keys that each key of that node becomes.
        otherwise: The key ``or``: the node runs only where the node before gave no result.
        each: ``"source:target"``: the node runs once per element of the list under ``source``.
        each_errors: ``"none"`` if a failed element gives None.
        reposts: The nodes its backends send requests on to (`headrace.Backend.nodes_called`).
        name: The name of the node.
        calls: The nodes called in its expression with ``Forward[node.x]``.
    """

    next: tuple[str, ...] = ()
    map: Mapping[str, Mapping[str, str | tuple[str, ...]]] = field(default_factory=dict)
    otherwise: bool = False
    each: str | None = None
    each_errors: str | None = None
    reposts: tuple[str, ...] = ()
    name: str = field(default="", repr=False, compare=False)
    calls: tuple[str, ...] = field(default=(), repr=False, compare=False)

    @property
    def _each_keys(self) -> tuple[str, str]:
        """The two keys of ``each``: of the list, and of an element at the node."""
        source, _, target = (self.each or "").partition(":")
        return source, target


@dataclass(frozen=True)
class Limits:
    """The queue keys of a node.

    Attributes:
        queue_size: How many requests may wait.
        queue_full: What becomes of a request that finds it full. See
            `headrace._run.requests.queue.QueueFull`.
        timeout_ms: Longest time from arrival to the end, None for no limit.
        batching_timeout_ms: How long the oldest request waits for others.
        batch_sizes: The weights a batch may have. Empty for all.
        pad: Whether a batch that is too small is filled up with copies of its items, the last one
            first.
        deadlock_after_s: How long a request waits until circles of calls are looked for, in
            seconds. 0 for never.
        shortcut: Whether a caller that finds the node idle may skip the queue.
    """

    queue_size: int = 1024
    queue_full: str = "wait"
    timeout_ms: float | None = None
    batching_timeout_ms: float = 0.0
    batch_sizes: tuple[int, ...] = ()
    pad: bool = False
    deadlock_after_s: float = 5.0
    shortcut: bool = True
