"""Standby: callers of brief backends wait a moment for an instance before they queue.

A caller that finds no idle instance sleeps for at most `STANDBY_S`. Then its request enters by the
box, as all others do. Until then it holds nothing, and no step knows of it. Whoever frees an
instance wakes the caller that has waited longest, one at a time. That caller takes the instance as
a newcomer does, and newcomers leave one to it meanwhile. So an instance passes from caller to
caller without a step.
"""

from __future__ import annotations

from _thread import allocate_lock
from collections import deque
from contextlib import suppress
from threading import get_ident
from typing import TYPE_CHECKING, Any

from headrace._run.steps.box import in_steps

if TYPE_CHECKING:
    from headrace._run.node import Node

STANDBY_S = 0.02
"""How long a caller stands by at most."""

ENTRY_S = 500e-6
"""How long it stands by per queued request, which goes first: the time that the box needs for one.

With a shorter time callers enter before the queue is empty, and never leave it again."""

WAKE_S = 1e-3
"""How long newcomers leave an instance to a caller that was called in and does not come."""

TENURE_S = 250e-6
"""How long threads that come back at once may take an instance again, before the next caller."""

LOOK_S = 2e-3
"""When the timer looks whether who was expected to take an instance has come."""

TINY_S, BRIEF_S = 10e-6, 120e-6
"""Callers stand by where a batch takes longer than the first time, and an instance comes free
after less than the second."""


class Standby:
    """The callers that stand by at one node, first come first served.

    Attributes:
        turns: Who stands by: the lock of each caller.
        until: Until when newcomers leave the last free instance to who was called in.
        left: The thread that has freed an instance last.
    """

    def __init__(self, node: Node) -> None:
        self._node = node
        self.turns: deque[Any] = deque()
        self.until = self._next_at = 0.0
        self.left = 0
        self._returns = self._looks = False

    # In any thread.

    def wait(self) -> float:
        """Wait to be called in, to take an instance.

        Returns:
            How long that took, in seconds. 0 where the request enters by the box.
        """
        node, turns = self._node, self.turns
        brief = TINY_S <= node.instances[0].least_s < BRIEF_S * len(node.instances)
        if not brief or node.special or node.events.each:
            return 0.0
        me = get_ident()
        if me in in_steps or node.room.full or node.is_held_by_this_thread():
            return 0.0
        if me == self.left:
            self._returns = True
        turn = allocate_lock()
        turn.acquire()
        since, put = node.clock(), turns.append
        until = since + STANDBY_S
        ahead = node.queue.count + len(node.inbox)
        if ahead:
            until = min(until, since + ENTRY_S * (2 + ahead))
        while True:
            put(turn)
            self.call_in()
            if not turn.acquire(True, max(0.0, until - node.clock())):
                try:
                    turns.remove(turn)
                except ValueError:  # it is called just now
                    self.until = 0.0
                self._returns = False
                self.call_in()
                return 0.0
            if node.free and not node.queue.count and not node.inbox:
                return node.clock() - since or TINY_S
            self.until, put = 0.0, turns.appendleft

    def call_in(self) -> None:
        """Call in who has stood by longest, where an instance is free and nobody is on its way."""
        node = self._node
        if not self.turns or not node.free or node.queue.count or node.inbox:
            return
        now = node.clock()
        if now < self.until or (self._returns and now < self._next_at and len(node.free) < 2):
            if not self._looks:
                with suppress(RuntimeError):  # no thread can be started for the timer
                    node.box.threads.timer.call_at(now + LOOK_S, self._look)
                    self._looks = True
            return
        try:
            turn = self.turns.popleft()
        except IndexError:
            return
        self.until = now + WAKE_S
        self._next_at = now + min(TENURE_S, STANDBY_S / 3 / (len(self.turns) + 1))
        turn.release()

    def _look(self) -> None:
        self._looks = False
        if self._node.free:  # who was expected has not come
            self._returns = False
            self.call_in()
