"""What a node tells its subscribers: whoever wants failures alone hears of each once, and slows no call."""

from __future__ import annotations

import sys
import threading

import pytest
from sending import WAYS, backend

import headrace
from headrace.errors import BackendError, DeadlineExceededError, InputError, OverloadedError
from headrace.hookspecs import attached


class Failures:
    """Keeps the requests that failed."""

    def __init__(self):
        self.failed = []

    def request_failed(self, node, request, error):
        self.failed.append((node, request, type(error)))


class Refuses(headrace.Backend):
    """Fails the requests that say so."""

    max = 4

    def forward(self, batch):
        for request in batch:
            request["result"] = -request["data"]
        return [ValueError("no") if request["data"] < 0 else None for request in batch]


headrace.register("Refuses", Refuses)


def calls_of(function):
    """Return how many functions of Python run in this thread until ``function`` has ended."""
    counted = []
    sys.setprofile(lambda _frame, event, _: counted.append(event == "call"))
    try:
        function()
    finally:
        sys.setprofile(None)
    return sum(counted)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("expression", ["Refuses", "BackgroundThread[Refuses]"])
def test_a_failed_request_is_told_once_before_its_caller_knows(shortcut, way, expression):
    probe = Failures()
    with headrace.pipe({"backend": expression}) as pipe, attached(pipe, probe):
        good, bad = {"data": 1}, {"data": -1}
        assert WAYS[way](pipe, good)["result"] == -1
        with pytest.raises(BackendError):
            WAYS[way](pipe, bad)
        assert [(node, error) for node, _, error in probe.failed] == [("main", BackendError)]
        assert probe.failed[0][1] is bad
        assert bad == {"data": -1}


@pytest.mark.parametrize("way", WAYS)
def test_a_request_that_never_enters_is_told(shortcut, way):
    probe = Failures()
    refused = pytest.raises(InputError)
    with headrace.pipe({"backend": "Refuses"}) as pipe, attached(pipe, probe), refused:
        WAYS[way](pipe, {"other": 1})
    assert probe.failed == [("main", {"other": 1}, InputError)]


def test_what_fails_as_it_waits_is_told(shortcut):
    probe = Failures()
    entered, leaves = threading.Event(), threading.Event()

    def wait(request):
        entered.set()
        leaves.wait(60)
        return request["data"]

    backend("WaitsHere", wait, max=1)
    config = {"backend": "WaitsHere", "queue_size": 1, "queue_full": "reject"}
    with headrace.pipe(config) as pipe, attached(pipe, probe):
        running = pipe.submit({"data": 1})
        assert entered.wait(60)
        late = pipe.submit({"data": 2}, timeout=0.001)
        with pytest.raises(OverloadedError):
            pipe.submit({"data": 3}).result(60)
        with pytest.raises(DeadlineExceededError):
            late.result(60)
        leaves.set()
        assert running.result(60)["result"] == 1
        shown = pipe.stats()["nodes"]["main"]["failed"]
    errors = sorted(error.__name__ for _, _, error in probe.failed)
    assert errors == ["DeadlineExceededError", "OverloadedError"]
    assert sum(shown.values()) == 2


def test_a_probe_of_failures_alone_costs_an_idle_call_nothing():
    def called():
        with headrace.pipe({"backend": "Refuses"}) as pipe:
            pipe({"data": 1})
            plain = min(calls_of(lambda: pipe({"data": 1})) for _ in range(20))
            with attached(pipe, Failures()):
                pipe({"data": 1})
                counts.append((plain, min(calls_of(lambda: pipe({"data": 1})) for _ in range(20))))

    counts = []
    thread = threading.Thread(target=called)
    thread.start()
    thread.join()
    ((plain, told),) = counts
    assert told == plain
