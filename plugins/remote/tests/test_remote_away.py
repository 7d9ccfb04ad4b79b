"""A server that falls silent: its calls in flight are given up, and nothing else; each has one outcome."""

from __future__ import annotations

import threading
from collections import Counter
from concurrent.futures import wait

import grpc
import pytest
from remote_servers import Relay, drain

from headrace.errors import BackendError
from headrace_remote import ConnectionLostError, Remote, ServersAwayError
from headrace_remote.servers import Server, connect, reconnect

SOON = {"health_ms": 20, "health_timeout_ms": 300, "max": 1, "instance_num": 8}


@pytest.fixture
def relay():
    """Start relays, which end with the test."""
    made = []

    def start(server, *sees):
        made.append(Relay(server.port, *sees))
        return made[-1]

    yield start
    for one in made:
        one.close()


class Stay:
    """Holds calls of a stand-in until it is let go."""

    def __init__(self):
        self.inside = threading.Semaphore(0)
        self.leave = threading.Event()

    def __call__(self, request, context):
        self.inside.release()
        assert self.leave.wait(120)

    def all_in(self, number):
        for _ in range(number):
            assert self.inside.acquire(timeout=60)


@pytest.fixture
def stay():
    made = Stay()
    yield made
    made.leave.set()


def sample(k):
    return {"data": [k, 0, 0]}


def first(answer):
    return answer["result"].tolist()[0]


def server_of(pipe):
    return pipe.stats()["remote"]["main"][0]["servers"][0]


def state(pipe):
    return server_of(pipe)["state"]


def test_calls_at_a_server_that_falls_silent_are_given_up(stand_in, remote, relay, stay):
    server = stand_in()
    hole = relay(server)
    pipe = remote([hole.url], when_away="refuse", **SOON)
    server.script += [stay] * 4
    futures = [pipe.submit(sample(k)) for k in range(4)]
    stay.all_in(4)
    hole.open()
    # Without giving up they would wait for timeout_ms, which is a minute.
    assert not wait(futures, 50).not_done
    errors = [one.exception() for one in futures]
    assert {type(one) for one in errors} == {ConnectionLostError}
    assert all(hole.url in str(one) and "answers nothing" in str(one) for one in errors)
    assert all("rerun = true" in one.hint for one in errors)
    assert len(server.calls) == 4
    with pytest.raises(ServersAwayError):
        pipe(sample(9))


def test_with_rerun_they_run_at_another_server_and_have_one_outcome(stand_in, remote, relay, stay):
    lost, other = stand_in(), stand_in()
    hole = relay(lost)
    pipe = remote([hole.url, other.url], rerun=True, **SOON)
    lost.script += [stay] * 4
    # Both hold what they get, so that each gets half.
    other.script += [held := Stay()] * 4
    futures = [pipe.submit(sample(k)) for k in range(8)]
    stay.all_in(4)
    held.all_in(4)
    hole.open()
    held.leave.set()
    assert not wait(futures, 50).not_done
    assert [first(one.result()) for one in futures] == [2 * k for k in range(8)]
    assert Counter(len(one.calls) for one in (lost, other)) == Counter([4, 8])


def test_with_rerun_they_wait_for_the_server_to_come_back(stand_in, remote, relay, stay):
    server = stand_in()
    hole = relay(server)
    pipe = remote([hole.url], rerun=True, **SOON)
    server.script += [stay] * 3
    futures = [pipe.submit(sample(k)) for k in range(3)]
    stay.all_in(3)
    hole.open()
    while server_of(pipe)["outstanding"]:  # until they are given up
        threading.Event().wait(0.002)
    stay.leave.set()
    hole.mend()
    assert not wait(futures, 60).not_done
    assert [first(one.result()) for one in futures] == [0, 2, 4]
    assert first(pipe(sample(7))) == 14


@pytest.mark.parametrize("rerun", [False, True])
def test_a_server_whose_model_takes_long_is_not_away(stand_in, remote, stay, rerun):
    server = stand_in()
    pipe = remote([server.url], rerun=rerun, **SOON)
    server.script += [stay] * 4
    futures = [pipe.submit(sample(k)) for k in range(4)]
    stay.all_in(4)
    drain(server.looks)
    for _ in range(40):
        assert server.looks.acquire(timeout=60)
    assert state(pipe) == "there"
    stay.leave.set()
    assert [first(one.result(60)) for one in futures] == [0, 2, 4, 6]
    assert len(server.calls) == 4


def test_one_that_answers_no_look_while_its_model_runs_keeps_its_calls(
    stand_in, remote, relay, stay
):
    """All threads of a server may be busy; that it takes connections shows that it lives."""
    server = stand_in()
    seen = relay(server)
    pipe = remote([seen.url], **SOON)
    server.script += [stay] * 8  # as many as it has threads
    futures = [pipe.submit(sample(k)) for k in range(8)]
    stay.all_in(8)
    with seen.changed:  # a look without an answer, and then a new connection, which ends again
        while not seen.ended:
            assert seen.changed.wait(60)
    assert state(pipe) == "away"
    stay.leave.set()
    assert [first(one.result(60)) for one in futures] == [2 * k for k in range(8)]
    assert len(server.calls) == 8
    while state(pipe) == "away":
        server.looks.acquire(timeout=1)
    assert first(pipe(sample(9))) == 18


def test_one_that_says_it_is_not_ready_ends_what_it_has_begun(stand_in, remote, stay):
    server = stand_in()
    pipe = remote([server.url], **SOON)
    server.script += [stay] * 2
    futures = [pipe.submit(sample(k)) for k in range(2)]
    stay.all_in(2)
    server.ready = False
    while state(pipe) == "there":
        server.looks.acquire(timeout=1)
    stay.leave.set()
    assert [first(one.result(60)) for one in futures] == [0, 2]


def test_a_step_of_a_sequence_is_given_up_and_not_sent_again(stand_in, remote, relay, stay):
    lost, other = stand_in(), stand_in()
    hole = relay(lost)
    pipe = remote([hole.url, other.url], rerun=True, when_away="refuse", **SOON)
    lost.script += [stay] * 8
    steps = [
        pipe.submit({**sample(k), "sequence_id": k, "sequence_start": True}) for k in range(1, 9)
    ]
    stay.all_in(1)
    hole.open()
    assert not wait(steps, 50).not_done
    outcomes = Counter(type(one.exception()) for one in steps)
    # Those whose turn came when it was known to be away were sent nowhere.
    assert outcomes[ConnectionLostError] >= len(lost.calls) >= 1
    assert outcomes[type(None)] == len(other.calls) >= 1
    assert set(outcomes) <= {ConnectionLostError, ServersAwayError, type(None)}


# A thread of grpcio that watches the channel may raise ValueError as the channel is closed.
@pytest.mark.filterwarnings(
    r"ignore:Exception in thread Thread-\d+ \(_run\):pytest.PytestUnhandledThreadExceptionWarning"
)
def test_closing_ends_a_new_connection_that_is_being_made(stand_in, relay):
    hole = relay(stand_in())
    hole.open()
    (server,) = connect(Remote.Options(model="m", urls=[hole.url]), lambda: None)
    asking = threading.Thread(target=reconnect, args=([server], 1e6))
    asking.start()
    with hole.changed:
        while not hole.accepted:
            assert hole.changed.wait(60)
    server.close()
    asking.join(60)
    assert not asking.is_alive()
    with pytest.raises(ValueError, match="closed channel"):
        server.infer(b"")


@pytest.mark.parametrize("timeout_ms", [1000, 60_000, 600_000, 1e15, float("inf")])
def test_no_call_is_long_enough_for_many_pings(monkeypatch, stand_in, timeout_ms):
    """gRPC's servers end a connection after two pings too many in a row between which they send nothing."""
    made = []
    monkeypatch.setattr(grpc, "insecure_channel", lambda url, options: made.append(dict(options)))
    monkeypatch.setattr(Server, "_use", lambda self, channel: None)
    connect(Remote.Options(model="m", urls=["a:1"], timeout_ms=timeout_ms), lambda: None)
    every_ms = made[0]["grpc.keepalive_time_ms"]
    assert 20_000 <= every_ms <= 2**31 - 1
    assert 3 * every_ms >= min(timeout_ms, 2**31 - 1) - 3


class Pings:
    """Counts the pings of a client among its frames of HTTP/2: RFC 9113, sections 4.1 and 6.7."""

    def __init__(self):
        self.seen = 0
        self._bytes = b""
        self._rest = 24  # of the preface, or of the payload of a frame

    def __call__(self, data):
        self._bytes += data
        while len(self._bytes) >= self._rest + 9:
            head = self._bytes[self._rest : self._rest + 9]
            self._bytes = self._bytes[self._rest + 9 :]
            self._rest = int.from_bytes(head[:3], "big")
            if head[3] == 6 and not head[4] & 1:  # a ping, and not the answer to one
                self.seen += 1


@pytest.fixture
def faster(monkeypatch):
    """Let gRPC's keepalive run so many times faster than the options of the channel say."""
    make = grpc.insecure_channel

    def start(times):
        def insecure_channel(url, options):
            given = dict(options)
            for key in given:
                if "keepalive" in key or "ping" in key:
                    given[key] //= times
            return make(url, options=[*given.items()])

        monkeypatch.setattr(grpc, "insecure_channel", insecure_channel)

    return start


NO_LOOKS = {"health_ms": 1e8, "max": 1, "instance_num": 4}


def test_a_ping_without_an_answer_ends_the_calls_of_a_dead_connection(
    stand_in, remote, relay, stay, faster
):
    faster(100)
    server = stand_in()
    hole = relay(server)
    pipe = remote([hole.url], **NO_LOOKS)
    server.script += [stay] * 3
    futures = [pipe.submit(sample(k)) for k in range(3)]
    stay.all_in(3)
    hole.open()
    assert not wait(futures, 50).not_done
    assert [type(one.exception()) for one in futures] == [ConnectionLostError] * 3


@pytest.mark.slow
def test_pings_do_not_end_a_call_that_takes_long(stand_in, remote, relay, stay, faster):
    faster(20)
    server, pings = stand_in(), Pings()
    pipe = remote([relay(server, pings).url], **NO_LOOKS)
    server.script += [stay]
    future = pipe.submit(sample(4))
    stay.all_in(1)
    before = pings.seen
    while pings.seen < before + 2:
        threading.Event().wait(0.002)
    stay.leave.set()
    assert first(future.result(60)) == 8
    assert len(server.calls) == 1


@pytest.mark.parametrize("rerun", [False, True])
def test_an_answer_that_is_too_long_is_not_received(stand_in, remote, rerun):
    servers = [stand_in(), stand_in()]
    pipe = remote([one.url for one in servers], max=500, max_message_bytes=1000, rerun=rerun)
    assert first(pipe(sample(1))) == 2
    with pytest.raises(BackendError, match="longer than max_message_bytes") as caught:
        pipe({"data": [[1, 2, 3]] * 500, "request_size": 500})
    assert "Raise max_message_bytes" in caught.value.hint
    assert sum(len(one.calls) for one in servers) == 2
    assert first(pipe(sample(3))) == 6


def test_a_short_answer_that_unpacks_to_a_long_one_is_too_long(stand_in, remote):
    server = stand_in()

    def packed(request, context):
        context.set_compression(grpc.Compression.Gzip)

    server.script += [packed, packed]
    pipe = remote([server.url], max=8000, max_message_bytes=5000)
    assert first(pipe(sample(1))) == 2
    with pytest.raises(BackendError, match="longer than max_message_bytes"):
        pipe({"data": [[0, 0, 0]] * 8000, "request_size": 8000})


def test_with_rerun_the_rows_of_an_answer_that_is_too_long_come_alone(stand_in, remote):
    server = stand_in()
    pipe = remote([server.url], max_message_bytes=80, rerun=True)
    requests = [sample(k) for k in range(8)]
    pipe(requests)
    assert [first(one) for one in requests] == [2 * k for k in range(8)]
    assert len(server.calls) == 9
