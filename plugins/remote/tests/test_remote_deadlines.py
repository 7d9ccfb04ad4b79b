"""The time of a call is that of its requests; what nobody waits for is not sent."""

from __future__ import annotations

import threading
import time
from types import SimpleNamespace

import numpy as np
import pytest
from remote_servers import fails, look_at

import headrace
from headrace.errors import BackendError, DeadlineExceededError, InputError
from headrace_remote import Remote, ServersAwayError
from headrace_testing import FakeClock


@pytest.fixture
def backend():
    """Make a `Remote` outside of any pipeline, whose requests say when their time is over and whether they are wanted."""
    made = []

    def start(url, **options):
        asked = headrace.InitContext.Requests(
            deadline=lambda request: request.get("until"),
            keep=lambda request: request,
            unwanted=lambda request: request.get("unwanted", False),
        )
        context = headrace.InitContext(request=asked)
        one = Remote()
        one.init(Remote.Options(model="m", urls=[url], **options), context)
        made.append(context)
        return one

    yield start
    for context in made:
        context.store.node.close()


def sample(k, **keys):
    return {"data": np.float32([k, 0, 0]), **keys}


def rows_of(call):
    return np.frombuffer(call[0].raw_input_contents[0], np.float32).reshape(-1, 3)[:, 0].tolist()


@pytest.mark.parametrize("submitted", [True, False])
def test_the_time_of_a_request_travels(stand_in, remote, submitted):
    server = stand_in()
    pipe = remote([server.url], **{"Remote::timeout_ms": 4_000_000})
    if submitted:
        pipe.submit(sample(1), timeout=2000).result(300)
    else:
        pipe(sample(1), timeout=2000)
    assert 1500 < server.calls[-1][2] < 2100  # gRPC rounds it up
    pipe(sample(1))
    assert server.calls[-1][2] > 3500


def test_timeout_ms_of_the_backend_is_the_longest_time(stand_in, remote):
    server = stand_in()
    remote([server.url])(sample(1), timeout=5000)
    assert 30 < server.calls[-1][2] < 63


def test_a_call_has_the_time_of_the_request_that_has_the_most(stand_in, remote):
    server = stand_in()
    options = {"min": 2, "batching_timeout": 1e9, "Remote::timeout_ms": 9_000_000}
    pipe = remote([server.url], **options)
    futures = [pipe.submit(sample(k), timeout=1000 * k) for k in (4, 2)]
    assert [one.result(300)["result"][0] for one in futures] == [8, 4]
    (call,) = server.calls
    assert 3500 < call[2] < 4100


def test_what_is_over_is_not_sent(stand_in, backend):
    server = stand_in()
    one = backend(server.url)
    batch = [sample(1, until=time.monotonic() - 1), sample(2)]
    outcomes = one.forward(batch)
    assert [type(outcome) for outcome in outcomes] == [DeadlineExceededError, type(None)]
    assert ["result" in request for request in batch] == [False, True]
    assert [rows_of(call) for call in server.calls] == [[2]]
    assert len(one.forward([batch[0]])) == 1
    assert len(server.calls) == 1


def test_an_answer_that_comes_too_late_for_some_fails_these(stand_in, backend, monkeypatch):
    server = stand_in()
    one = backend(server.url, timeout_ms=4_000_000)
    clock = FakeClock(time.monotonic())
    monkeypatch.setattr("headrace_remote.backend.time", SimpleNamespace(monotonic=clock))

    def later(request, context):
        clock.advance(100)

    server.script.append(later)
    batch = [sample(1, until=clock() + 50), sample(2, until=clock() + 1000), sample(3)]
    outcomes = one.forward(batch)
    assert isinstance(outcomes[0], DeadlineExceededError)
    assert outcomes[1:] == [None, None]
    assert [rows_of(call) for call in server.calls] == [[1, 2, 3]]
    assert batch[1]["result"].tolist() == [4, 0, 0]


def test_what_became_unwanted_is_not_sent_again_alone(stand_in, backend):
    server = stand_in()
    one = backend(server.url, rerun=True)
    batch = [sample(1), sample(2), sample(3)]

    def refuses(request, context):
        batch[1]["unwanted"] = True
        fails("INVALID_ARGUMENT", "a row is wrong")(request, context)

    server.script.append(refuses)
    outcomes = one.forward(batch)
    assert isinstance(outcomes[1], DeadlineExceededError)
    assert [rows_of(call) for call in server.calls] == [[1, 2, 3], [1], [3]]


def test_a_server_is_not_to_blame_for_requests_that_had_little_time(stand_in, backend):
    server = stand_in()
    one = backend(server.url, failures=1, health_ms=60_000)
    leave = threading.Event()

    def stays(request, context):
        assert leave.wait(60)

    try:
        server.script.append(stays)
        (late,) = one.forward([sample(1, until=time.monotonic() + 0.3)])
        assert isinstance(late, DeadlineExceededError)
        assert one.describe()["servers"][0]["state"] == "there"
    finally:
        leave.set()


def test_what_became_unwanted_while_no_server_was_there_is_not_sent(stand_in, backend):
    server = stand_in()
    one = backend(server.url, health_ms=20)
    server.stop()
    asked = threading.Event()
    # A call may be on its way as the server ends; what comes after it finds that none is there.
    while one.describe()["servers"][0]["state"] == "there":
        (error,) = one.forward([sample(0, until=time.monotonic() + 0.2)])
        assert isinstance(error, (BackendError, DeadlineExceededError))

    class Asked(dict):
        def get(self, key, default=None):
            if key == "until":
                asked.set()
            return super().get(key, default)

    batch = [sample(1), Asked(sample(2))]
    found = []
    thread = threading.Thread(target=lambda: found.extend(one.forward(batch)))
    thread.start()
    assert asked.wait(60)
    batch[1]["unwanted"] = True
    again = stand_in(port=server.port)
    thread.join(60)
    assert [type(outcome) for outcome in found] == [type(None), DeadlineExceededError]
    assert [rows_of(call) for call in again.calls] == [[1]]


def test_stats_say_whether_a_server_is_there(stand_in, remote):
    server = stand_in()
    pipe = remote([server.url], health_ms=20)

    def said(*, ready):
        look_at(server, ready=ready)
        (found,) = pipe.stats()["remote"]["main"]
        return found

    there = said(ready=True)
    state = {"url": server.url, "state": "there", "outstanding": 0}
    assert there == {"model": "m", "ready": True, "servers": [state]}
    away = said(ready=False)
    assert (away["ready"], away["servers"][0]["state"]) == (False, "away")
    assert said(ready=True)["ready"]


def test_the_pipeline_is_not_ready_while_all_servers_are_away(stand_in, remote):
    servers = [stand_in(), stand_in()]
    urls = [one.url for one in servers]
    pipe = remote(urls, health_ms=20, when_away="refuse", instance_num=2)
    assert pipe.ready
    look_at(servers[0], ready=False)
    assert pipe.ready
    look_at(servers[1], ready=False)
    assert not pipe.ready
    assert pipe.stats()["state"] == "degraded"
    with pytest.raises(ServersAwayError):  # it is asked all the same, and refuses
        pipe(sample(1))
    look_at(servers[0], ready=True)
    assert pipe.ready
    assert pipe(sample(1))["result"].tolist() == [2, 0, 0]


def test_a_request_that_waits_for_a_server_is_answered_once_one_is_back(stand_in, remote):
    server = stand_in()
    pipe = remote([server.url], health_ms=20)
    look_at(server, ready=False)
    assert not pipe.ready
    waiting = pipe.submit(sample(3))
    look_at(server, ready=True)
    assert waiting.result(60)["result"].tolist() == [6, 0, 0]
    assert pipe.ready


def test_what_is_neither_over_nor_right_is_refused_as_before(stand_in, backend):
    one = backend(stand_in().url)
    (error,) = one.forward([{"data": "text", "until": time.monotonic() + 1000}])
    assert isinstance(error, InputError)
