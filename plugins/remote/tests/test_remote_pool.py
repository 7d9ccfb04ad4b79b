"""Which server is chosen, and when one that is away is looked at again; the clock is the test's."""

from __future__ import annotations

import threading

import pytest

from headrace.errors import DeadlineExceededError, InputError, NoMemoryError, OverloadedError
from headrace_remote.errors import error_of, is_refusal, never_sent
from headrace_remote.pool import Breaker, Pool
from headrace_testing import FakeClock


class One:
    def __init__(self, name, clock, failures=3):
        self.name = name
        self.breaker = Breaker(failures, 1.0, clock)
        self.closed = False

    def close(self):
        self.closed = True


@pytest.fixture
def clock():
    return FakeClock(100.0)


def pool_of(clock, names, ready=None):
    ready = {} if ready is None else ready
    asked, silent = [], []

    def look(servers):
        asked.append([one.name for one in servers])
        return [ready.get(one.name, True) for one in servers]

    made = Pool(
        [One(name, clock) for name in names],
        look,
        clock,
        silent=lambda ones: silent.append([(one.name, one.breaker.away) for one in ones]),
    )
    made.asked, made.given_up = asked, silent
    return made


def test_a_breaker_opens_after_failures_in_a_row(clock):
    breaker = Breaker(3, 1.0, clock)
    for _ in range(2):
        breaker.failed()
    breaker.succeeded()
    for _ in range(2):
        breaker.failed()
    assert not breaker.away
    breaker.failed()
    assert breaker.away


def test_one_failure_that_says_so_opens_it(clock):
    breaker = Breaker(3, 1.0, clock)
    breaker.failed(at_once=True)
    assert breaker.away


def test_looks_come_less_and_less_often_down_to_one_in_30_s_until_one_succeeds(clock):
    breaker = Breaker(1, 1.0, clock)
    waits = []
    for _ in range(8):
        breaker.looked(ready=False)
        waits.append(breaker.due_in_s())
        clock.advance(waits[-1])
        assert breaker.due_in_s() == 0
    assert waits == [1, 2, 4, 8, 16, 30, 30, 30]
    breaker.looked(ready=True)
    assert (breaker.away, breaker.due_in_s()) == (False, 1)
    breaker.looked(ready=False)
    assert breaker.due_in_s() == 1


def test_calls_take_turns_among_servers_with_equally_many(clock):
    pool = pool_of(clock, "abc")
    assert [pool.take().name for _ in range(6)] == list("abcabc")


def test_the_fewest_outstanding_first(clock):
    pool = pool_of(clock, "ab")
    first, _, third = pool.take(), pool.take(), pool.take()
    assert (first.name, third.name) == ("a", "a")
    pool.give_back(first)
    pool.give_back(third)
    assert [pool.take().name for _ in range(2)] == ["a", "b"]
    assert [pool.outstanding(one) for one in pool.servers] == [1, 2]


def test_who_is_away_or_left_out_is_not_taken(clock):
    pool = pool_of(clock, "abc")
    a, b, c = pool.servers
    pool.failed(a, at_once=True)
    assert [pool.take([b]).name for _ in range(3)] == ["c"] * 3
    assert pool.take([b, c]) is None


def test_only_a_look_brings_back_who_is_away(clock):
    ready = {"a": False}
    pool = pool_of(clock, "ab", ready)
    a, _ = pool.servers
    pool.failed(a, at_once=True)
    pool.answered(a)  # a call that was on its way has come back
    assert a.breaker.away
    pool.look()
    assert pool.asked == []  # none is due yet
    clock.advance(1)
    pool.look()
    assert a.breaker.away
    ready["a"] = True
    clock.advance(1)
    pool.look()
    assert not a.breaker.away
    assert pool.asked == [["a", "b"], ["a", "b"]]


def test_who_waits_is_told_when_a_server_is_there(clock):
    pool = pool_of(clock, "a")
    pool.failed(pool.servers[0], at_once=True)
    found = []
    waiting = threading.Thread(target=lambda: found.append(pool.wait(clock() + 1e6)))
    waiting.start()
    clock.advance(1)
    pool.look()
    waiting.join(60)
    assert found == [True]
    pool.failed(pool.servers[0], at_once=True)
    assert pool.wait(clock()) is False


def test_the_calls_of_servers_that_do_not_answer_are_given_up_once_they_are_away(clock):
    ready = {"a": None, "b": False, "c": True}
    pool = pool_of(clock, "abc", ready)
    taken = [pool.take() for _ in range(3)]
    clock.advance(1)
    pool.look()
    assert pool.given_up == [[("a", True)]]
    # The calls of b, which has said that it takes no more, may end although it is silent now.
    ready["b"] = None
    clock.advance(1)
    pool.look()
    assert pool.asked[-1] == ["a", "b", "c"]
    assert [name for ones in pool.given_up[1:] for name, _ in ones] == []
    for one in taken:
        pool.give_back(one)
    clock.advance(2)
    pool.look()
    assert sorted(pool.given_up[-1]) == [("a", True), ("b", True)]


def test_close_frees_who_waits_ends_the_thread_and_closes_the_servers(clock):
    pool = pool_of(clock, "ab")
    before = set(threading.enumerate())
    pool.start()
    for one in pool.servers:
        pool.failed(one, at_once=True)
    found = []
    waiting = threading.Thread(target=lambda: found.append(pool.wait(clock() + 1e6)))
    waiting.start()
    pool.close()
    waiting.join(60)
    assert found == [False]
    assert [one.closed for one in pool.servers] == [True, True]
    assert not [one for one in set(threading.enumerate()) - before if one.is_alive()]


@pytest.mark.parametrize(
    ("status", "code", "text", "refused"),
    [
        ("RESOURCE_EXHAUSTED", "overloaded", "the queue is full", True),
        ("RESOURCE_EXHAUSTED", "overloaded", "item 0: the queue is full", False),
        ("RESOURCE_EXHAUSTED", "memory", "model 'm:1' needs 9 bytes on host", True),
        ("INTERNAL", "memory", "the request failed", False),
        ("RESOURCE_EXHAUSTED", "body_too_large", "the message has 9 bytes", False),
        ("RESOURCE_EXHAUSTED", "", "SERVER: Received message larger than max (9 vs. 4)", False),
        ("UNAVAILABLE", "closed", "the server is shutting down", True),
        ("UNAVAILABLE", "closed", "the request failed [code 'closed']", False),
        ("UNAVAILABLE", "instance_lost", "the request failed", False),
        ("UNAVAILABLE", "", "Socket closed", False),
        ("UNAVAILABLE", "", "[request id: a] Exceeds maximum queue size", True),
        ("INTERNAL", "backend", "the request failed", False),
        ("UNAVAILABLE", "", "Request for unknown model: 'm' version 1 is not at ready state", True),
        ("UNAVAILABLE", "", "[request id: a] Request for unknown model: 'm' is not found", True),
        (
            "UNAVAILABLE",
            "",
            "GRPC server is shutting down and has stopped accepting new requests",
            True,
        ),
        ("UNAVAILABLE", "", "Model with name m is not ready.", True),
        ("INVALID_ARGUMENT", "", "Model m with version 2 is not ready yet.", True),
        ("NOT_FOUND", "", "Model m not found", True),
        ("NOT_FOUND", "unknown_model", "unknown model 'm'", False),
        ("INVALID_ARGUMENT", "", "unexpected shape for input 'x' of model 'm'", False),
        ("CANCELLED", "", "CANCELLED", False),
    ],
)
def test_what_counts_as_refused_without_having_run(status, code, text, refused):
    assert is_refusal(status, code, text) is refused


def test_what_never_left_this_process():
    said = "failed to connect to all addresses; last error: UNKNOWN: ipv4:127.0.0.1:1: refused"
    assert never_sent("UNAVAILABLE", said)
    assert never_sent("UNAVAILABLE", "DNS resolution failed for nowhere:1")
    assert not never_sent("UNAVAILABLE", "recvmsg:Connection reset by peer")
    assert not never_sent("INTERNAL", said)


def test_a_server_without_room_for_a_model_is_overloaded():
    for status, expected in (("RESOURCE_EXHAUSTED", OverloadedError), ("INTERNAL", NoMemoryError)):
        assert type(error_of("gpu1:8001", status, "memory", "no memory")) is expected


def test_texts_of_servers_without_codes():
    def error(status, text):
        return type(error_of("gpu1:8001", status, "", text))

    late = "[request id: a] Request timeout expired"
    assert error("UNAVAILABLE", late) is DeadlineExceededError
    assert error("UNAVAILABLE", "Exceeds maximum queue size") is OverloadedError
    assert error("RESOURCE_EXHAUSTED", "Received message larger than max (9 vs. 4)") is InputError
    assert "gpu1:8001, own_code" in str(error_of("gpu1:8001", "INTERNAL", "own_code", "no"))
