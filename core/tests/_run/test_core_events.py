"""What a node tells its subscribers: whoever wants failures alone hears of each once."""

from __future__ import annotations

import threading

import pytest
from sending import WAYS, backend

import headrace
from headrace.errors import (
    BackendError,
    DeadlineExceededError,
    InputError,
    OverloadedError,
    RequestsFailed,
)
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


def test_a_request_that_fails_after_its_last_backend_is_told_with_its_dict(shortcut):
    class Sealed(dict):
        def __setitem__(self, key, value):
            if key == "data":
                raise ValueError("sealed")
            super().__setitem__(key, value)

    probe, sealed = Failures(), Sealed(data=1)
    failed = pytest.raises(RequestsFailed)
    with headrace.pipe({"backend": "Refuses"}) as pipe, attached(pipe, probe), failed:
        pipe([sealed])
    ((node, request, error),) = probe.failed
    assert (node, error) == ("main", InputError)
    assert request is sealed


@pytest.mark.parametrize("way", WAYS)
def test_what_fails_between_two_nodes_is_told_in_no_step_before_its_caller_knows(shortcut, way):
    told = []

    class Asks:
        def request_failed(self, node, request, error):
            asking = threading.Thread(target=pipe.stats)
            asking.start()
            asking.join(60)
            told.append((node, request, type(error), asking.is_alive()))

    last = {"backend": "Refuses", "map": {"first": {"missing": "data"}}}
    config, request = {"first": {"backend": "Refuses", "next": "last"}, "last": last}, {"data": 1}
    with headrace.pipe(config) as pipe, attached(pipe, Asks()):
        with pytest.raises(InputError):
            WAYS[way](pipe, request)
        assert told == [("last", request, InputError, False)]


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
