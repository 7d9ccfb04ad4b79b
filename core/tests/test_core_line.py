"""Callers that find all instances busy stand in line, here before an instance with a thread of its own."""

from __future__ import annotations

import internals
import pytest

import headrace
from headrace.errors import BackendError, ClosedError

OWN = {"backend": "OwnGate", "max": 2}


@pytest.fixture
def busy(gate, client, until):
    """Return a function that sends requests to a pipeline whose instance is busy, and whose line holds the others."""

    def send(pipe, *data):
        clients = [client(pipe, {"data": 0})]
        gate.wait_entered()
        clients.append(client(pipe, {"data": 1}))
        until(lambda: internals.in_line(pipe) == 1)
        for count, one in enumerate(data, start=2):
            clients.append(client(pipe, {"data": one}))
            until(lambda count=count: internals.in_line(pipe) == count)
        return clients

    return send


def test_they_enter_together_and_in_their_order(gate, busy):
    with headrace.pipe(OWN) as pipe:
        clients = busy(pipe, 2, 3, 4)
        gate.open()
        assert [one.outcome()["result"] for one in clients] == [0, 1, 2, 3, 4]
        assert gate.batches == [[0], [1, 2], [3, 4]]
        assert len({*gate.idents}) == 1
        assert pipe.stats()["nodes"]["main"]["ok"] == 5


def test_they_are_counted_where_they_stand(gate, busy):
    with headrace.pipe(OWN) as pipe:
        clients = busy(pipe, 2, 3)
        counts = pipe.stats()["nodes"]["main"]
        assert (counts["submitted"], counts["waiting"]) == (4, 3)
        assert internals.in_line(pipe) == 3
        gate.open()
        assert [one.outcome()["result"] for one in clients] == [0, 1, 2, 3]


def test_one_that_fails_raises_its_own_error_and_has_its_data_back(gate, busy, client, until):
    gate.raises[3] = ValueError("three")
    with headrace.pipe(OWN | {"max": 1}) as pipe:
        clients = busy(pipe, 2)
        request = {"data": 3, "result": "stale"}
        clients.append(client(pipe, request))
        until(lambda: internals.in_line(pipe) == 3)
        gate.open()
        with pytest.raises(BackendError, match="three"):
            clients.pop().outcome()
        assert request == {"data": 3}
        assert [one.outcome()["result"] for one in clients] == [0, 1, 2]


def test_their_wait_begins_as_they_come(gate, busy, monkeypatch):
    timer = internals.time_by_hand(monkeypatch)
    with headrace.pipe(OWN) as pipe:
        clients = busy(pipe, 2)
        timer.clock.advance(1.5)
        gate.let_go()
        clients[0].outcome()
        gate.open()
        assert [one.outcome()["result"] for one in clients[1:]] == [1, 2]
        assert pipe.stats()["nodes"]["main"]["queue_ms"]["p50"] > 1000


def test_if_no_batch_ends_the_look_for_circles_lets_them_in(gate, busy, until, monkeypatch):
    timer = internals.time_by_hand(monkeypatch)
    with headrace.pipe({"global": {"deadlock_after_s": 5}, "main": OWN}) as pipe:
        clients = busy(pipe, 2)
        timer.clock.advance(5.1)
        timer.run_due()
        until(lambda: internals.in_queue(pipe) == 2)
        gate.open()
        assert [one.outcome()["result"] for one in clients] == [0, 1, 2]


@pytest.mark.parametrize("drain", [True, False])
def test_a_close_answers_or_refuses_them(gate, busy, client, drain):
    pipe = headrace.pipe(OWN)
    clients = busy(pipe, 2, 3)
    closing = client(pipe.close, drain=drain)
    if drain:
        gate.open()
        assert [one.outcome()["result"] for one in clients] == [0, 1, 2, 3]
    else:
        for one in clients[1:]:
            with pytest.raises(ClosedError):
                one.outcome()
        gate.open()
        assert clients[0].outcome()["result"] == 0
    closing.outcome()


def test_what_is_submitted_enters_at_once_behind_all_in_line(gate, busy, client, until):
    """So `submit` waits for room: who stands in line counts."""
    with headrace.pipe({**OWN, "queue_size": 4}) as pipe:
        clients = busy(pipe, 2)
        kept, withdrawn = client(
            lambda: [pipe.submit({"data": 3}), pipe.submit({"data": 4})]
        ).outcome()
        assert internals.in_line(pipe) == 0
        waits = client(pipe.submit, {"data": 5})
        until(lambda: pipe.stats()["nodes"]["main"]["waiting"] == 5)
        assert waits.is_alive()
        assert withdrawn.cancel()
        last = waits.outcome()
        gate.open()
        assert kept.result()["result"] == 3
        assert last.result()["result"] == 5
        assert [one.outcome()["result"] for one in clients] == [0, 1, 2]
        assert all(4 not in batch for batch in gate.batches)


def test_what_is_submitted_with_a_deadline_enters_at_once(gate, busy, client, until):
    """Else nobody would fail it in time."""
    with headrace.pipe(OWN) as pipe:
        clients = busy(pipe)
        future = client(pipe.submit, {"data": 2}, timeout=60).outcome()
        until(lambda: internals.in_queue(pipe) == 2)
        gate.open()
        assert [one.outcome()["result"] for one in clients] == [0, 1]
        assert future.result()["result"] == 2


@pytest.mark.parametrize(
    ("config", "keys", "request_keys"),
    [
        ({}, {"timeout": 60}, {}),
        ({}, {"priority": 1}, {}),
        ({"queue_full": "reject"}, {}, {}),
        ({"timeout_ms": 60_000}, {}, {}),
        ({}, {}, {"request_size": 2}),
    ],
)
def test_others_enter_at_once(gate, client, until, config, keys, request_keys):
    with headrace.pipe(OWN | config) as pipe:
        clients = [client(pipe, {"data": 0})]
        gate.wait_entered()
        for count, more in enumerate((({}, {}), (keys, request_keys)), start=1):
            clients.append(client(pipe, {"data": count, **more[1]}, **more[0]))
            until(lambda count=count: internals.in_queue(pipe) == count)
        assert internals.in_line(pipe) == 0
        gate.open()
        assert [one.outcome()["result"] for one in clients] == [0, 1, 2]
