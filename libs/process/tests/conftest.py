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


class Client(threading.Thread):
    """Calls a function in a thread of its own and keeps what came of it."""

    def __init__(self, function, *args, **kwargs):
        super().__init__(daemon=True)
        self._call = (function, args, kwargs)
        self.value = None
        self.error = None
        self.start()

    def run(self):
        function, args, kwargs = self._call
        try:
            self.value = function(*args, **kwargs)
        except BaseException as error:
            self.error = error

    def outcome(self):
        self.join(FAILS_LATE_S)
        assert not self.is_alive(), "the caller got no answer"
        if self.error is not None:
            raise self.error
        return self.value


@pytest.fixture
def takes_turns():
    """Skip a test where the interpreter has no lock: there no call runs a batch in the main thread."""
    if not getattr(sys, "_is_gil_enabled", lambda: True)():
        pytest.skip("threads do not take turns in this interpreter")


@pytest.fixture
def client():
    """Return the class `Client`."""
    return Client


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
