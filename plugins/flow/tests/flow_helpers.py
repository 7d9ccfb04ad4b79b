"""What several files of tests of words say."""

from __future__ import annotations

import threading
import time
from types import SimpleNamespace

WAIT_S = 60.0
"""A test that hangs fails after this; nothing else is measured in seconds."""


def wait_until(condition):
    """Wait until something that no event tells is so."""
    ends, pause = time.monotonic() + WAIT_S, threading.Event()
    while not condition():
        assert time.monotonic() < ends
        pause.wait(0.002)


def instance(most=4, least=1):
    """Return what a policy sees of an instance that runs nothing."""
    return SimpleNamespace(
        index=0, min=least, max=most, device=None, busy=False, running_weight=0, batches=0
    )


class PlainQueue(list):
    """A queue that tells no more than its length, its weight and its requests, as `headrace.policies.Queue` asks."""

    @property
    def weight(self):
        """Return what all requests weigh together."""
        return sum(item.weight for item in self)


def plain_queue(policy, *requests):
    """Return such a queue of requests that have all come at once."""
    return PlainQueue(
        SimpleNamespace(weight=1, arrival=0.0, deadline=None, priority=0, trait=policy.trait(sent))
        for sent in requests
    )
