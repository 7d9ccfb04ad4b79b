"""A clock of tests."""

from __future__ import annotations

from headrace_vision import Clock


class Quick(Clock):
    """A clock on which waiting takes no time."""

    def __init__(self, time=0.0):
        self.time = time
        self.waits = []

    def now(self):
        return self.time

    def wait(self, stop, seconds):
        self.waits.append(seconds)
        self.time += seconds
        return stop.is_set()
