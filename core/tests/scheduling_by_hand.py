"""Schedulers without threads and time of their own: what a test moves by hand."""

from __future__ import annotations

import heapq
import itertools

from headrace._scheduling.instance import Instance


class HandAlarm:
    def __init__(self, action):
        self.action = action

    def cancel(self):
        self.action = None


class HandTimer:
    """Calls what is due when the test moves the clock."""

    def __init__(self, clock):
        self.clock = clock
        self.order = itertools.count()
        self.heap = []

    def call_at(self, at, action):
        alarm = HandAlarm(action)
        heapq.heappush(self.heap, (at, next(self.order), alarm))
        return alarm

    def run_due(self):
        while self.heap and self.heap[0][0] <= self.clock():
            _, _, alarm = heapq.heappop(self.heap)
            action, alarm.action = alarm.action, None
            if action is not None:
                action()


class Hand:
    """A thread that does nothing until the test lets it.

    Attributes:
        wanted: Whether it has other work besides, so that it is given one batch at a time.
    """

    ident = -2
    cause = None

    def __init__(self, *, wanted=True):
        self.jobs = []
        self.alive = True
        self.wanted = wanted

    def post(self, run, lost):
        if not self.alive:
            return False
        self.jobs.append((run, lost))
        return True


class Still(Instance):
    """Takes every batch to have lasted the same, however long this machine took."""

    def timed(self, duration_s):
        super().timed(50e-6)


class Owner:
    def __init__(self):
        self.notified = 0

    def finished(self, entry):
        entry.give_back()
        self.notified += 1
