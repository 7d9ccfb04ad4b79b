"""Threads that wait for each other in a circle: off the path of requests one is found and freed.

A call that would wait for an instance which its own thread holds is refused where it enters. A
longer circle, over several threads, nodes and pipelines, is looked for only once a request has
waited long: a thread of the pool reads who waits for whom, twice, a second apart, without stopping
anybody. A circle that is the same in both, with no instance having begun another batch in between,
stays for ever: the newest request that waits in it fails. What is read need not fit together at any
one moment, so one look proves nothing.

It sees callers, futures, coroutines and streams that a thread waits for, and backends with a thread
of their own. A thread that awaits several requests, as an event loop does, is stuck once all of
them are. It does not see threads that wait for something else: a lock, or
`concurrent.futures.wait`, which does not say whether its thread waits or goes on.
"""

from __future__ import annotations

import logging
import weakref
from collections import defaultdict
from itertools import chain
from math import inf
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from headrace._run.requests.entry import NEW, OUTSIDE, QUEUED, RUNNING
from headrace._run.requests.refusals import endless_wait
from headrace._run.steps import threads
from headrace._run.steps.box import post
from headrace.errors import ContractError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from headrace._run.batches.instance import Instance
    from headrace._run.node import Node
    from headrace._run.requests.entry import Entry
    from headrace._run.steps.threads import Threads

_log = logging.getLogger("headrace.scheduling")

APART_S = 1.0
"""How long after the first look the second one is."""

engines: weakref.WeakSet[Any] = weakref.WeakSet()
"""All pipelines of the process."""


class Wait(NamedTuple):
    """One step of a circle: a thread waits for an entry, for which it needs an instance.

    Attributes:
        thread: The thread.
        entry: For what it waits.
        holds: The instance that the next thread of the circle holds.
        runs: How many batches all instances of that node have begun.
    """

    thread: int
    entry: Entry
    holds: Instance
    runs: tuple[int, ...]


class _Look:
    """Who waits for whom, as read now."""

    def __init__(self) -> None:
        self.waits: dict[int, dict[object, list[Entry]]] = defaultdict(lambda: defaultdict(list))
        self.calls = {call.caller: ident for ident, call in threads.calls_run.copy().items()}
        self.running: dict[Entry, Instance] = {}
        for engine in [*engines]:
            for node in engine.nodes:
                waiting = [entry for entry in node.inbox.copy() if entry.node is node]
                waiting += [*node.queue.snapshot(), *node.room.outside.copy()]
                for instance in [*node.instances]:
                    for entry in [*(instance.entries or ())]:
                        self.running[entry] = instance
                        waiting.append(entry)
                waiting += [
                    pended for pended in [*node.pending.open] if pended.held.away is not None
                ]
                for entry in waiting:
                    self._note(entry, [entry])
            if engine.graph is not None:
                for request in engine.graph.open.copy():
                    if request.entry.awaited:
                        self._note(request.entry, [*request.open])
        self.stuck = {*self.waits, *self.calls}
        while going := {thread for thread in self.stuck if not self._is_stuck(thread)}:
            self.stuck -= going

    def _note(self, entry: Entry, waits_for: list[Entry]) -> None:
        waits_for = [*chain.from_iterable(map(_at_work, waits_for))]
        waiter = entry.waiter
        if waiter is not None:
            self.waits[waiter.ident][waiter] += waits_for
        elif entry.awaited:
            # Perhaps one of several that the thread awaits: any of them lets it go on.
            self.waits[entry.awaited][entry] += waits_for

    def _is_stuck(self, thread: int) -> bool:
        if thread in self.calls:
            return self.calls[thread] in self.stuck
        return all(any(map(self._stops, entries)) for entries in self.waits[thread].values())

    def _stops(self, entry: Entry) -> bool:
        """Tell whether an entry cannot go on while all threads that are taken for stuck stay so."""
        if entry.state == RUNNING:
            instance = self.running.get(entry)
            return instance is not None and instance.ident in self.stuck
        if entry.state == OUTSIDE:  # whichever of these goes on makes room
            before = _node_of(entry).room.waiting_entries()
            return bool(before) and all(map(self._stops, before))
        if entry.state not in (NEW, QUEUED) or entry.node is None or _node_of(entry).free:
            return False
        living = [instance for instance in _node_of(entry).instances if instance.living]
        return bool(living) and all(instance.ident in self.stuck for instance in living)

    def circle(self) -> list[Wait]:
        """Return one circle of threads that wait for each other; empty for none.

        It leaves out calls in a backend's own thread.
        """
        way: dict[int, Wait | None] = {}
        thread = next(iter(self.stuck), 0)
        while thread not in way:
            if thread in self.calls:
                way[thread], thread = None, self.calls[thread]
                continue
            entries = chain.from_iterable(self.waits[thread].values())
            entry = next(filter(self._stops, entries), None)
            if entry is None:
                return []
            outside = entry.state == OUTSIDE
            stops = _node_of(entry).room.waiting_entries()[0] if outside else entry
            living = [instance for instance in _node_of(stops).instances if instance.living]
            holds = self.running.get(entry) or next(iter(living), None)
            if holds is None:
                return []
            runs = tuple([instance.batches for instance in living])
            way[thread], thread = Wait(thread, entry, holds, runs), holds.ident
        return [*filter(None, [*way.values()][[*way].index(thread) :])]


def _node_of(entry: Entry) -> Node:
    """Return the node of an entry that waits there."""
    return cast("Node", entry.node)


def _at_work(entry: Entry) -> list[Entry]:
    """Return the entries that run or wait for one that was sent to another node; else itself."""
    sent = None if entry.held is None else entry.held.away
    return [entry] if sent is None else [*chain.from_iterable(map(_at_work, sent.entries))]


class Search:
    """Looks for circles as long as there seems to be one."""

    def __init__(self) -> None:
        self._next = -inf  # nobody else looks before this time
        self._before: list[Wait] = []
        self._seen = -inf  # when the circle of the look before was seen

    def start(self, threads: Threads) -> None:
        """Look now, unless that is done already."""
        now = threads.clock()
        if now >= self._next:
            self._next = now + 2 * APART_S
            threads.pool.run(self._look, threads)

    def _look(self, threads: Threads) -> None:
        goes_on = False
        try:
            goes_on = self._look_once(threads.clock())
        except RuntimeError:  # what it read was changed meanwhile: something goes on
            pass
        except Exception as error:  # the next look may succeed
            _log.warning("looking for calls that wait for each other failed", exc_info=error)
        now = threads.clock()
        self._next = now + 2 * APART_S if goes_on else now
        if goes_on:
            threads.timer.call_at(now + APART_S, lambda: threads.pool.run(self._look, threads))

    def _look_once(self, now: float) -> bool:
        """Free the newest request of a circle that was there at the look before.

        Returns:
            Whether there is any circle.
        """
        circle = _Look().circle()
        entries = [wait.entry for wait in circle if wait.entry.state in (NEW, OUTSIDE, QUEUED)]
        apart = now - self._seen >= 0.9 * APART_S
        same = apart and bool(entries) and {*circle} == {*self._before}
        if apart or not circle:
            self._before, self._seen = [] if same else circle, now
        if same:
            newest = max(entries, key=lambda entry: entry.arrival)
            post(newest.node.box, _release, newest, _error(circle, newest))
        return bool(circle)


_searches: weakref.WeakKeyDictionary[Threads, Search] = weakref.WeakKeyDictionary()
"""The search of each pool and timer."""


def is_endless(node: Node, thread: int) -> bool:
    """Tell whether a thread would wait for itself.

    It holds an instance while none is free, or owns one that it does not run now.
    """
    owns, free = thread in threads.own_threads, node.free
    for instance in node.instances:
        if instance.ident == thread:
            if not free:
                return True
        elif owns and instance.thread is not None and instance.thread.ident == thread:
            return True
    return False


def refuse(entries: Iterable[Entry]) -> None:
    """Fail entries that wait for the instance of their own caller; in a step."""
    for entry in entries:
        if entry.state in (NEW, OUTSIDE):
            error = endless_wait(entry.node.name)
            entry.node.fail(entry, lambda *_, error=error, **__: error)


def watch(node: Node) -> None:
    """Look in a while whether a request still waits at a node where one waits now; in a step."""
    there = weakref.ref(node)  # the timer keeps no pipeline alive

    def look() -> None:
        node = there()
        if node is not None:
            post(node.box, _look_at, node)

    node.box.threads.timer.call_at(node.clock() + node.limits.deadlock_after_s, look)
    node.watched = True


def _look_at(node: Node) -> None:
    node.take_in()
    node.watched = False
    outside = node.room.outside
    waiting = [next(iter(outside)).arrival] if outside else []
    waiting += [node.queue.oldest()] if node.queue.count else []
    if waiting and node.clock() - min(waiting) >= node.limits.deadlock_after_s:
        pool_threads = node.box.threads
        node.box.later(_searches.setdefault(pool_threads, Search()).start, pool_threads)
    if waiting:
        watch(node)
    node.set_calls_at()
    if node.inbox:
        node.note_change()


def after_fork() -> None:
    """Begin anew in a child process."""
    engines.clear()
    _searches.clear()


def _release(entry: Entry, error: ContractError) -> None:
    if entry.state in (NEW, OUTSIDE, QUEUED):
        entry.node.fail(entry, lambda *_, **__: error)


def _error(circle: list[Wait], newest: Entry) -> ContractError:
    """Make the error of the request that is failed so that the others go on."""
    holders = [wait.holds for wait in circle]
    waits = [
        f"{_name_of(holds)}, instance {holds.index}) waits for {_name_of(needed)})"
        for holds, needed in zip([holders[-1], *holders], holders, strict=False)
    ]
    message = f"calls wait for each other in a circle: {', '.join(waits)}"
    hint = "Give a node of the circle more instances, or compose the backends in one expression."
    return ContractError(message, node=newest.node.name, hint=hint)


def _name_of(instance: Instance) -> str:
    return f"{instance.backend._label()} (node {instance.liveness.node.name!r}"
