"""Fixtures of the tests: clients, conditions that come to hold, and deadlines that pass."""

from __future__ import annotations

import sys
import threading
import time
from pathlib import Path

import pytest

from headrace.isolation import run_in_pool

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))  # from here on the tests find it among the modules that are loaded
try:
    import programs  # noqa: F401
finally:
    sys.path.remove(str(HERE))

FAILS_LATE_S = 60.0
"""A test that hangs fails after this; nothing else is measured in seconds."""


@pytest.fixture
def until():
    """Return a function that waits until a condition holds."""
    poll = threading.Event()

    def wait(condition):
        fails_at = time.monotonic() + FAILS_LATE_S
        while not condition():
            poll.wait(0.002)
            assert time.monotonic() < fails_at, "it never came to that"

    return wait


@pytest.fixture
def expire():
    """Return a function that lets the time of the open requests with such data be over.

    So a test waits for no clock.
    """

    def expire_all(wanted, nodes):
        for node in nodes:
            running = [entry for one in node.instances for entry in one.entries or ()]
            for entry in [*running, *node.queue, *node.room.outside]:
                if entry.data in wanted:
                    node.fail_late(entry)

    def now(pipe, *wanted):
        box = pipe._engine.box
        box.steps.append((expire_all, (wanted, pipe._engine.nodes)))
        run_in_pool(box.run)

    return now
