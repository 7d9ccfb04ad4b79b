"""A batch that its caller puts together, past queue and policies, to try a backend alone."""

from __future__ import annotations

import threading
from threading import get_ident
from typing import TYPE_CHECKING, Any

from headrace._run.batches.runners import Waiter, wait
from headrace._run.contract.checked import PENDING, Outcomes
from headrace._run.requests.entry import RUNNING, UNTOUCHED, Entry
from headrace._run.steps.box import ask

if TYPE_CHECKING:
    from collections.abc import Iterator

    from headrace._run.batches.instance import Instance
    from headrace._run.node import Node
    from headrace.keys import Request


_PAUSE_S = 0.001
"""Until a call looks again whether its instance is free."""


def call_directly(node: Node, instance: Instance, batch: list[Request]) -> list[Exception | None]:
    """Call an instance, in the thread that owns it if any, and wait for all outcomes.

    Returns:
        An error or None per request.
    """
    backend, thread, waiter = instance.backend, instance.thread, Waiter()
    entries = [Entry(request) for request in batch]

    def claim() -> bool | None:
        if not node.claim(instance):
            return False if type(instance.holder) is Waiter else None
        # As `Instance.begin`. Nothing counts it.
        instance.holder, instance.entries = waiter, entries
        instance.ident = get_ident() if thread is None else thread.ident
        for entry in entries:
            entry.node, entry.state, entry.cut = node, RUNNING, node.clock()
            entry.data = UNTOUCHED
        return True

    def release(pending: list[Entry]) -> None:
        for entry in pending:
            node.pending.pend(entry, instance)
        node.give_back(instance)
        node.note_change()

    # False: another thread calls it, as a test does. None: the node runs a kept request on it.
    while (is_mine := ask(node.box, claim)) is None:
        threading.Event().wait(_PAUSE_S)
    outcomes: Outcomes = None
    pending: list[Entry] = []
    try:
        outcomes = backend(batch) if thread is None else thread.call(backend, batch)
    finally:
        if is_mine:
            pairs = zip(entries, outcomes or (), strict=False)
            pending = [entry for entry, outcome in pairs if outcome is PENDING]
            waiter.expects(pending)
            ask(node.box, release, pending)
    if not pending:
        return [None] * len(batch) if outcomes is None else list(outcomes)
    wait(node.box, waiter, pending, bool)
    errors: Iterator[Any] = iter([entry.take_error() for entry in pending])
    return [next(errors) if outcome is PENDING else outcome for outcome in outcomes or ()]
