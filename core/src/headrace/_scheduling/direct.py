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


_PAUSE_S = 0.001
"""Until a call looks again whether its instance is free."""


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


def _claimed(node: Node, instance: Instance, ends: _Ends, entries: list[Entry]) -> bool | None:
    """Claim an instance for a call; None while the node runs on it what was kept, False while another thread calls it."""
    with node.section:
        node.collect()
        if instance not in node.free:  # two threads may call it, for a test of just that
            return False if instance.holder is None or isinstance(instance.holder, _Ends) else None
        node.free.remove(instance)
        instance.entries, instance.holder = entries, ends
        instance.ident = get_ident() if instance.thread is None else instance.thread.ident
        for entry in entries:
            entry.state = RUNNING
        return True


def call_directly(node: Node, instance: Instance, batch: list[Request]) -> list[Exception | None]:
    """Call an instance, in the thread that owns it if any; return an error or None per request, once all have ended."""
    backend, thread, ends = instance.backend, instance.thread, _Ends()
    entries = [Entry(request, ends) for request in batch]
    while (is_mine := _claimed(node, instance, ends, entries)) is None:
        threading.Event().wait(_PAUSE_S)
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
