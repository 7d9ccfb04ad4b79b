"""Servers that refuse, break, are slow or go away: each request has one outcome, and is sent twice only with `rerun`."""

from __future__ import annotations

import signal
import threading
from concurrent.futures import wait

import grpc
import numpy as np
import pytest
from remote_servers import ROWS, drain, fails, look_at

from headrace.errors import (
    BackendError,
    DeadlineExceededError,
    InputError,
    OverloadedError,
    RequestsFailed,
)
from headrace_remote import ConnectionLostError, ServersAwayError
from headrace_serve import Server

SAMPLE = {"data": [1, 2, 3]}


def doubles(pipe):
    return pipe(dict(SAMPLE))["result"].tolist() == [2, 4, 6]


def broken(request, context):
    """End a call as a connection that breaks does: UNAVAILABLE, and no word of a server."""
    fails("UNAVAILABLE", "Socket closed")(request, context)


@pytest.mark.parametrize(
    ("status", "text", "code"),
    [
        ("RESOURCE_EXHAUSTED", "the queue is full", "overloaded"),
        ("UNAVAILABLE", "[request id: 1] Exceeds maximum queue size", None),
    ],
)
def test_what_one_server_refuses_another_one_gets_at_once(stand_in, remote, status, text, code):
    servers = [stand_in(), stand_in()]
    for one in servers:
        one.script.append(fails(status, text, code=code))
    pipe = remote([one.url for one in servers], health_ms=60_000)
    servers[1].script.clear()
    while not servers[0].calls:
        assert doubles(pipe)
    assert len(servers[1].calls) >= 1


def test_when_all_have_too_much_to_do_the_request_is_refused(stand_in, remote):
    servers = [stand_in(), stand_in()]
    pipe = remote([one.url for one in servers])
    for one in servers:
        one.script.append(fails("RESOURCE_EXHAUSTED", "the queue is full", code="overloaded"))
    with pytest.raises(OverloadedError, match="the queue is full"):
        pipe(dict(SAMPLE))
    assert [len(one.calls) for one in servers] == [1, 1]
    assert doubles(pipe)


def test_the_overload_of_one_item_of_several_sends_nothing_again(stand_in, remote):
    servers = [stand_in(), stand_in()]
    pipe = remote([one.url for one in servers])
    for one in servers:
        one.script.append(
            fails("RESOURCE_EXHAUSTED", "item 1: the queue is full", code="overloaded")
        )
    with pytest.raises(RequestsFailed) as caught:
        pipe([dict(SAMPLE), dict(SAMPLE)])
    assert {type(one) for one in caught.value.errors} == {OverloadedError}
    assert sum(len(one.calls) for one in servers) == 1


@pytest.fixture
def channels(monkeypatch):
    """Return the channels that are made, by address."""
    made = {}
    make = grpc.insecure_channel

    def insecure_channel(url, **how):
        made[url] = make(url, **how)
        return made[url]

    monkeypatch.setattr(grpc, "insecure_channel", insecure_channel)
    return made


def test_a_server_that_refuses_connections_costs_no_request(stand_in, remote, channels):
    servers = [stand_in(), stand_in()]
    pipe = remote([one.url for one in servers], health_ms=60_000)
    ended = threading.Event()

    def watch(state):
        if state is not grpc.ChannelConnectivity.READY:
            ended.set()

    channels[servers[0].url].subscribe(watch)
    servers[0].stop()
    # Until the client knows that the connection has ended, a call may still go out on it, and break.
    assert ended.wait(60)
    for _ in range(6):
        assert doubles(pipe)
    states = [one["state"] for one in built(pipe)["servers"]]
    assert states == ["away", "there"]
    assert len(servers[0].calls) == 0


def built(pipe):
    return pipe.describe()["nodes"]["main"]["tree"]["built"]


def test_a_call_that_breaks_after_sending_is_not_sent_again(stand_in, remote):
    servers = [stand_in(), stand_in()]
    pipe = remote([one.url for one in servers])
    for one in servers:
        one.script.append(broken)
    with pytest.raises(ConnectionLostError, match="rerun = true") as caught:
        pipe(dict(SAMPLE))
    assert isinstance(caught.value, BackendError)
    assert sum(len(one.calls) for one in servers) == 1


@pytest.mark.parametrize("retries", [0, 1, 2])
def test_with_rerun_it_is_sent_again_as_often_as_retries_allows(stand_in, remote, retries):
    server = stand_in()
    pipe = remote([server.url], rerun=True, retries=retries, health_ms=20)
    server.script += [broken] * (retries + 1)
    with pytest.raises(ConnectionLostError):
        pipe(dict(SAMPLE))
    assert len(server.calls) == retries + 1
    server.calls.clear()
    server.script += [broken] * retries
    assert doubles(pipe)
    assert len(server.calls) == retries + 1


def test_with_rerun_another_server_gets_what_broke(stand_in, remote):
    servers = [stand_in(), stand_in()]
    pipe = remote([one.url for one in servers], rerun=True, health_ms=60_000)
    for one in servers:
        one.script.append(broken)
    servers[1].script.clear()
    while not servers[0].calls:
        assert doubles(pipe)


def refuses(bad):
    """Make an entry of a script that fails a call with the row ``bad``, as a model without items does."""

    def act(request, context):
        rows = np.frombuffer(request.raw_input_contents[0], np.float32).reshape(-1, 3)
        if (rows == bad).any():
            fails("INVALID_ARGUMENT", "a row is wrong")(request, context)

    return act


@pytest.mark.parametrize("rerun", [False, True])
def test_a_failed_batch_is_sent_again_item_by_item_only_with_rerun(stand_in, remote, rerun):
    server = stand_in()
    pipe = remote([server.url], rerun=rerun)
    server.script += [refuses(7)] * 4
    requests = [{"data": [k, 0, 0]} for k in (1, 7, 3)]
    with pytest.raises(RequestsFailed) as caught:
        pipe(requests)
    lost = [isinstance(one, InputError) for one in caught.value.errors]
    assert lost == ([False, True, False] if rerun else [True] * 3)
    assert len(server.calls) == (4 if rerun else 1)
    if rerun:
        assert [one["result"][0] for one in (requests[0], requests[2])] == [2, 6]


def test_a_slow_server_runs_into_the_deadline_and_then_counts_as_away(stand_in, remote):
    slow, other = stand_in(), stand_in()
    leave = threading.Event()

    def stays(request, context):
        assert leave.wait(60)

    slow.script += [stays] * 2
    options = {"Remote::timeout_ms": 1000, "failures": 2, "health_ms": 60_000}
    pipe = remote([slow.url, other.url], **options)
    try:
        while built(pipe)["servers"][0]["state"] == "there":
            try:
                assert doubles(pipe)
            except DeadlineExceededError:
                assert len(slow.calls) >= 1
        seen = len(slow.calls)
        assert seen >= 2
        assert built(pipe)["servers"][1]["state"] == "there"
        assert doubles(pipe)
        assert doubles(pipe)
        assert len(slow.calls) == seen
    finally:
        leave.set()


def stop(server, pipe):
    """Stop the only server of a pipeline, and wait until a look has found it away."""
    server.stop()
    while pipe.ready:
        threading.Event().wait(0.002)


def test_they_wait_no_longer_than_their_time(stand_in, remote):
    server = stand_in()
    pipe = remote([server.url], health_ms=20, **{"Remote::timeout_ms": 200})
    stop(server, pipe)
    with pytest.raises(ServersAwayError, match="until the deadline"):
        pipe(dict(SAMPLE))


def test_a_server_that_is_not_ready_gets_nothing_until_it_is(stand_in, remote):
    servers = [stand_in(), stand_in()]
    pipe = remote([one.url for one in servers], health_ms=20)
    look_at(servers[0], ready=False)
    servers[0].calls.clear()
    for _ in range(4):
        assert doubles(pipe)
    assert servers[0].calls == []
    servers[0].ready = True
    while not servers[0].calls:
        assert doubles(pipe)


@pytest.mark.slow
def test_a_closed_pipeline_ends_what_waits_for_a_server(stand_in, remote):
    server = stand_in()
    pipe = remote([server.url], health_ms=20)
    stop(server, pipe)
    future = pipe.submit(dict(SAMPLE))
    assert not wait([future], 0.1).done
    pipe.close(drain=False, timeout=0.1)
    assert future.exception(60) is not None


def test_a_server_that_drains_loses_no_request(remote):
    servers = [Server({"m": ROWS}, port=0, grpc_port=0) for _ in range(2)]
    for one in servers:
        one.start()
    pipe = remote([f"127.0.0.1:{one.grpc_port}" for one in servers], health_ms=20, instance_num=4)
    stop, some = threading.Event(), threading.Semaphore(0)
    errors = []

    def client(k):
        while not stop.is_set() and not errors:
            try:
                assert pipe({"data": [k, 2, 3]})["result"].tolist() == [k, 2, 3]
            except Exception as error:
                errors.append(error)
            some.release()

    threads = [threading.Thread(target=client, args=(k,)) for k in range(4)]
    for thread in threads:
        thread.start()
    for _ in range(40):
        assert some.acquire(timeout=60), errors
        assert not errors
    servers[0].close(timeout=30)
    drain(some)
    for _ in range(40):
        assert some.acquire(timeout=60), errors
        assert not errors
    stop.set()
    for thread in threads:
        thread.join(60)
    pipe.close()
    servers[1].close(timeout=5)
    assert errors == []


CONFIG = 'backend = "Identity"\nmax = 8\nqueue_size = 10000\n'


@pytest.mark.slow
@pytest.mark.parametrize("rerun", [False, True])
def test_a_killed_server_loses_only_what_ran_there(served, remote, rerun):
    (victim, first), (_, second) = served(CONFIG), served(CONFIG)
    pipe = remote([first, second], instance_num=4, rerun=rerun, health_ms=50, retries=2)
    number = 2000
    futures = []
    for k in range(number):
        if k == number // 2:
            victim.send_signal(signal.SIGKILL)
        futures.append(pipe.submit({"data": str(k).encode()}))
    wait(futures, 120)
    outcomes = [future.exception(0) for future in futures]
    answered = [k for k, error in enumerate(outcomes) if error is None]
    assert all(futures[k].result()["result"] == str(k).encode() for k in answered)
    lost = [error for error in outcomes if error is not None]
    assert {type(error) for error in lost} <= {ConnectionLostError}
    # At most what the four instances had sent to the victim.
    assert len(lost) <= (0 if rerun else 4 * 8)
    states = [one["state"] for one in built(pipe)["servers"]]
    assert states == ["away", "there"]


def test_answers_never_reach_another_request(stand_in, remote):
    servers = [stand_in() for _ in range(3)]
    for place, one in enumerate(servers):
        one.script += [None, broken, None, fails("INTERNAL", "no", code="backend")] * (5 + place)
    pipe = remote([one.url for one in servers], instance_num=3, health_ms=20, rerun=True, retries=3)
    futures = [pipe.submit({"data": [k, k, k]}) for k in range(300)]
    wait(futures, 120)
    for k, future in enumerate(futures):
        error = future.exception(0)
        if error is None:
            assert future.result()["result"].tolist() == [2 * k] * 3
        else:
            assert isinstance(error, BackendError)
    assert sum(future.exception(0) is None for future in futures) > 200
