"""Fixtures that the tests of core share."""

from __future__ import annotations

import sys
import threading
import time
from pathlib import Path

import pytest

import headrace

sys.path.append(str(Path(__file__).parent))  # for what several modules of tests share
import internals
from internals import KNOWN_ELSEWHERE, KNOWN_POLICIES, registry

FAILS_LATE_S = 60.0
"""A test that hangs fails after this; nothing else is measured in seconds."""


@pytest.fixture(params=[True, False], ids=["shortcut", "queue"])
def shortcut(request, monkeypatch):
    """Run a test twice: callers skip the queue of an idle node, and never do."""
    if not request.param:
        internals.never_skips_the_queue(monkeypatch)
    return request.param


class GateControl:
    """What a test sees and steers of the backend ``Gate``, all instances together.

    Attributes:
        batches: The ``data`` of each batch, in the order of their begin.
        idents: The thread of each.
        shut: Whether a batch waits to be let go.
        raises: What to raise for a batch that holds this ``data``.
        calls: A function to call in the batch that holds this ``data``.
    """

    def __init__(self):
        self.batches = []
        self.idents = []
        self.shut = True
        self.raises = {}
        self.calls = {}
        self.closed = 0
        self._closes = threading.Semaphore(0)
        self._entered = threading.Semaphore(0)
        self._leave = threading.Semaphore(0)

    def wait_entered(self, times=1):
        for _ in range(times):
            assert self._entered.acquire(timeout=FAILS_LATE_S), "no batch began"

    def entered(self, sent):
        """Return what was sent, once a batch has begun."""
        self.wait_entered()
        return sent

    def wait_closed(self, times=1):
        for _ in range(times):
            assert self._closes.acquire(timeout=FAILS_LATE_S), "no instance was closed"

    def let_go(self, times=1):
        for _ in range(times):
            self._leave.release()

    def open(self):
        self.shut = False
        self.let_go(64)

    def run(self, batch):
        self.batches.append([request["data"] for request in batch])
        self.idents.append(threading.get_ident())
        self._entered.release()
        if self.shut:
            assert self._leave.acquire(timeout=FAILS_LATE_S), "nobody let the batch go"
        for request in batch:
            key = request["data"]
            if isinstance(key, (str, int)) and key in self.calls:
                self.calls[key]()
            if isinstance(key, (str, int)) and key in self.raises:
                raise self.raises[key]
        for request in batch:
            request["result"] = request["data"]


@pytest.fixture
def gate():
    """Register the backends ``Gate`` and ``OwnGate`` (which owns its thread); give their control."""
    control = GateControl()

    class Gate(headrace.Backend):
        max = None

        def forward(self, batch):
            control.run(batch)

        def close(self):
            control.closed += 1
            control._closes.release()

    class OwnGate(Gate):
        owns_thread = True

    headrace.register("Gate", Gate, replace=True)
    headrace.register("OwnGate", OwnGate, replace=True)
    yield control
    control.open()


@pytest.fixture
def threads_named():
    """Give a function that finds the threads of a name which began in this test.

    Those of the pipelines of earlier tests may not have ended yet. `threading.enumerate` gives also a thread that has
    not begun, which nobody can join: the function waits until it has.
    """
    earlier = set(threading.enumerate())

    def find(name):
        found = [t for t in threading.enumerate() if t not in earlier and t.name.startswith(name)]
        assert all(one._started.wait(FAILS_LATE_S) for one in found)
        return found

    return find


@pytest.fixture
def until(monkeypatch):
    """Return a function that waits until a condition on what schedulers show holds.

    It looks again whenever steps of some pipeline have run. What changes besides it sees a moment later.
    """
    changed = threading.Event()
    internals.after_steps(monkeypatch, changed.set)

    def wait(condition):
        fails_at = time.monotonic() + FAILS_LATE_S
        while True:
            changed.clear()
            if condition():
                return
            changed.wait(0.1)
            assert time.monotonic() < fails_at, "it never came to that"

    return wait


@pytest.fixture
def expire():
    """Return a function that lets the time of the open requests with such data be over.

    So a test waits for no clock. It gives their deadlines.
    """

    def now(pipe, *wanted):
        deadlines = []
        for entry, scheduler in internals.open_entries(pipe):
            if entry.data in wanted:
                deadlines.append(entry.deadline)
                internals.expire(scheduler, entry)
        return deadlines

    return now


@pytest.fixture
def nothing_registered(monkeypatch):
    """Let nothing be registered: not even what modules of tests have registered as they were imported."""
    monkeypatch.setattr(registry, "local", {})


@pytest.fixture
def known_elsewhere(monkeypatch):
    """Return a function that says which distribution, which is not installed here, has a backend, or a policy."""

    def known(name, distribution, table=KNOWN_ELSEWHERE):
        monkeypatch.setitem(table, name, distribution)

    known.policies = KNOWN_POLICIES
    return known


@pytest.fixture
def waiting(until):
    """Return a function that waits until so many requests wait at a node."""

    def wait(pipe, count, node="main"):
        until(lambda: pipe.stats()["nodes"][node]["waiting"] == count)

    return wait
