"""A batch that its caller puts together, past the queue and its policies: how backends are tried by themselves.

What the backend keeps as PENDING goes on as ever: it is queued again and run by the workers of the node, or finished.
"""

from __future__ import annotations

import threading
from threading import get_ident
from typing import TYPE_CHECKING

from headrace._checked import PENDING
from headrace._scheduling.entry import RUNNING, Entry

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from typing import Any

    from headrace._scheduling.instance import Instance
    from headrace._scheduling.node import Node
    from headrace.keys import Request


class _Ends:
    """The owner of the entries of one batch."""

    def __init__(self) -> None:
        self._ended = threading.Semaphore(0)

    def finished(self, entry: Entry) -> None:
        """Note an outcome."""
        self._ended.release()

    def wait(self, count: int) -> None:
        """Wait for as many outcomes."""
        for _ in range(count):
            self._ended.acquire()


def call_directly(node: Node, instance: Instance, batch: list[Request]) -> list[Exception | None]:
    """Call an instance, in the thread that owns it if any; return an error or None per request, once all have ended."""
    backend, thread, ends = instance.backend, instance.thread, _Ends()
    entries = [Entry(request, ends) for request in batch]
    with node.section:
        node.collect()
        is_mine = instance in node.free  # else another thread calls it, for a test of just that
        if is_mine:
            node.free.remove(instance)
            instance.entries, instance.holder = entries, ends
            instance.ident = get_ident() if thread is None else thread.ident
            for entry in entries:
                entry.state = RUNNING
    outcomes: Sequence[Exception | None] | None = None
    try:
        outcomes = backend(batch) if thread is None else thread.call(backend, batch)
    finally:
        kept = [
            entry
            for entry, outcome in zip(entries, outcomes or (), strict=False)
            if outcome is PENDING and is_mine
        ]
        if is_mine:
            with node.section:
                for entry in kept:
                    node.pending.pend(entry, instance)
                node.give_back(instance)
                node.dispatch()
    if not kept:
        return [None] * len(batch) if outcomes is None else list(outcomes)
    ends.wait(len(kept))
    errors: Iterator[Any] = iter([entry.take_error() for entry in kept])
    return [next(errors) if outcome is PENDING else outcome for outcome in outcomes or ()]
