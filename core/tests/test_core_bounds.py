"""The bound of a queue: it counts the requests that entered there, whatever way they came and went."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import get_args

import pytest

import headrace
from headrace import errors
from headrace._scheduling import admission
from headrace._scheduling.queue import QUEUE_FULL, QueueFull

WAYS = ["call", "timeout", "list", "submit", "async"]


def send(pipe, request, way):
    """Send one request; give its error, or None."""
    try:
        if way == "call":
            pipe(request)
        elif way == "timeout":
            pipe(request, timeout=60)
        elif way == "list":
            pipe([request])
        elif way == "submit":
            return pipe.submit(request).exception(60)
        else:
            asyncio.run(pipe.call_async(request))
    except errors.RequestsFailed as error:
        return error.errors[0]
    except errors.HeadraceError as error:
        return error
    return None


def held(pipe, gate, data="held", **more):
    """Let one request run and keep its instance."""
    future = pipe.submit({"data": data, **more})
    gate.wait_entered()
    return future


# What other nodes hand over.


def test_what_comes_from_other_nodes_takes_no_room_from_who_enters_here(gate, waiting, shortcut):
    config = {
        "a": {"backend": "Identity", "next": "b"},
        "b": {"backend": "Gate", "queue_size": 2, "queue_full": "reject"},
    }
    with headrace.pipe(config) as pipe:
        futures = [held(pipe, gate)]
        futures += pipe.submit([{"data": n} for n in range(5)])
        waiting(pipe, 5, node="b")
        futures += pipe.submit([{"data": n, "node_name": "b"} for n in range(2)])
        for way in WAYS:
            error = send(pipe, {"data": 9, "node_name": "b"}, way)
            assert isinstance(error, errors.OverloadedError)
            assert (error.queue_size, error.waiting, error.node) == (2, 2, "b")
        gate.open()
        assert [f.result(60)["result"] for f in futures] == ["held", 0, 1, 2, 3, 4, 0, 1]


@pytest.mark.parametrize("link", ["next", "expression"])
def test_who_enters_here_makes_nobody_give_way_who_comes_from_another_node(
    gate, waiting, shortcut, link
):
    config = {
        "a": {"backend": "Identity", "next": "b", "instance_num": 4},
        "b": {"backend": "Gate", "queue_size": 1, "queue_full": "shed_oldest"},
    }
    if link == "expression":
        config["a"] = {"backend": "S[Identity,Forward[node.b]]", "instance_num": 4}
    with headrace.pipe(config) as pipe:
        futures = [held(pipe, gate, node_name="a")]
        futures += pipe.submit([{"data": n, "node_name": "a"} for n in range(2)])
        waiting(pipe, 2, node="b")
        first = pipe.submit({"data": "first", "node_name": "b"})
        second = pipe.submit({"data": "second", "node_name": "b"})
        assert isinstance(first.exception(60), errors.OverloadedError)
        gate.open()
        assert [f.result(60)["result"] for f in (*futures, second)] == ["held", 0, 1, "second"]


# Elements count as their one request, also where it enters.


EACH = {
    "elements": {"backend": "Gate", "each": "data", "queue_size": 2, "queue_full": "reject"},
    "after": {"backend": "Identity"},
}


@pytest.mark.parametrize("way", WAYS)
def test_the_elements_of_a_request_count_as_one_where_it_enters(gate, client, waiting, way):
    config = {"elements": {**EACH["elements"], "next": "after"}, "after": EACH["after"]}
    with headrace.pipe(config) as pipe:
        first = held(pipe, gate, [0])
        second = client(send, pipe, {"data": [1, 2, 3, 4]}, way)
        waiting(pipe, 4, node="elements")
        third = pipe.submit({"data": [5, 6, 7]})
        waiting(pipe, 7, node="elements")
        error = send(pipe, {"data": [8, 9]}, way)
        assert isinstance(error, errors.OverloadedError)
        assert (error.queue_size, error.waiting, error.node) == (2, 2, "elements")
        gate.open()
        assert second.outcome() is None
        assert [f.result(60)["result"] for f in (first, third)] == [[0], [5, 6, 7]]
        assert not any(9 in batch for batch in gate.batches)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("full", ["reject", "shed_oldest"])
def test_a_full_queue_is_no_failure_of_an_element(gate, client, waiting, way, full):
    node = {"backend": "Gate", "each": "data", "each_errors": "none"}
    config = {"elements": {**node, "queue_size": 1, "queue_full": full}}
    with headrace.pipe(config) as pipe:
        first = held(pipe, gate, [0])
        second = client(send, pipe, {"data": [1, 2]}, way)
        waiting(pipe, 2, node="elements")
        if full == "reject":
            assert isinstance(send(pipe, {"data": [3, 4]}, way), errors.OverloadedError)
            gate.open()
            assert second.outcome() is None
        else:
            third = pipe.submit({"data": [3, 4]})
            gate.open()
            assert isinstance(second.outcome(), errors.OverloadedError)
            assert third.result(60)["result"] == [3, 4]
        assert first.result(60)["result"] == [0]


def test_a_request_of_many_elements_waits_for_room_as_one(gate, client, waiting):
    with headrace.pipe({"elements": {"backend": "Gate", "each": "data", "queue_size": 1}}) as pipe:
        first = held(pipe, gate, [0])
        second = pipe.submit({"data": [1, 2]})
        waiting(pipe, 2, node="elements")
        submits = client(pipe.submit, {"data": [3, 4]})
        waiting(pipe, 4, node="elements")  # its elements are outside, together
        assert submits.is_alive()
        called = client(pipe, {"data": [5, 6]})
        gate.open()
        assert submits.outcome().result(60)["result"] == [3, 4]
        assert called.outcome()["result"] == [5, 6]
        assert [f.result(60)["result"] for f in (first, second)] == [[0], [1, 2]]


@pytest.mark.parametrize("front", ["Forward[node.elements]", "S[Identity,Forward[node.elements]]"])
def test_who_waits_for_room_is_let_in_when_a_failed_element_ends_the_others(
    gate, client, waiting, front
):
    elements = {"backend": "Gate", "each": "data", "queue_size": 1, "max": 1}
    with headrace.pipe({"global": {"entrypoint": front}, "elements": elements}) as pipe:
        gate.raises["bad"] = ValueError("no")
        failing = client(send, pipe, {"data": ["bad", 2, 3]}, "call")
        gate.wait_entered()
        waiting(pipe, 2, node="elements")
        called = client(pipe, {"data": [4]})
        waiting(pipe, 3, node="elements")
        gate.open()
        assert isinstance(failing.outcome(), errors.BackendError)
        assert called.outcome()["result"] == [4]
        assert gate.batches == [["bad"], [4]]


def test_when_an_element_is_refused_those_after_it_do_not_run(gate):
    with headrace.pipe({"elements": {"backend": "Gate", "each": "items:request_size"}}) as pipe:
        gate.open()
        error = pipe.submit({"data": 1, "items": [5, 1, 1]}).exception(60)
        assert isinstance(error, errors.BatchRangeError)
        assert gate.batches == []


# Fronts.

FRONTS = {
    "words": "S[Identity,DagDispatcher]",
    "call": "S[Identity,Forward[node.a]]",
    "dispatcher": "DagDispatcher",
    "own": "IoC[Identity,DagDispatcher;S[Identity,DagDispatcher]]",
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("front", FRONTS.values(), ids=FRONTS)
def test_the_bound_of_the_entry_counts_behind_a_front(gate, waiting, shortcut, front, way):
    config = {
        "global": {"entrypoint": front},
        "a": {"backend": "Gate", "queue_size": 2, "queue_full": "reject"},
    }
    with headrace.pipe(config) as pipe:
        futures = [held(pipe, gate)]
        futures += pipe.submit([{"data": n} for n in range(2)])
        waiting(pipe, 2, node="a")
        error = send(pipe, {"data": 9}, way)
        assert isinstance(error, errors.OverloadedError)
        assert (error.queue_size, error.waiting, error.node) == (2, 2, "a")
        assert pipe.stats()["nodes"]["a"]["failed"] == {"overloaded": 1}
        gate.open()
        assert [f.result(60)["result"] for f in futures] == ["held", 0, 1]


def behind_a_front(**keys):
    return {
        "global": {"entrypoint": "S[Identity,DagDispatcher]", "queue_size": 1, **keys},
        "a": {"backend": "Identity", "next": "b"},
        "b": {"backend": "Gate"},
    }


def test_behind_a_front_the_oldest_makes_way(gate, waiting):
    with headrace.pipe(behind_a_front(queue_full="shed_oldest")) as pipe:
        running = held(pipe, gate)
        oldest = pipe.submit({"data": "oldest"})
        waiting(pipe, 1, node="b")
        newer = pipe.submit({"data": "newer"})
        assert isinstance(oldest.exception(60), errors.OverloadedError)
        gate.open()
        assert [f.result(60)["data"] for f in (running, newer)] == ["held", "newer"]


@pytest.mark.usefixtures("takes_turns")
def test_behind_a_front_callers_wait_for_room(gate, client, waiting):
    with headrace.pipe(behind_a_front()) as pipe:
        running = held(pipe, gate)
        callers = [client(pipe, {"data": n}) for n in range(4)]
        waiting(pipe, 1, node="b")
        waiting(pipe, 3, node="a")
        gate.open()
        assert sorted(c.outcome()["result"] for c in callers) == [0, 1, 2, 3]
        assert running.result(60)["result"] == "held"


def test_close_fails_who_waits_for_room_behind_a_front(gate, client, waiting):
    config = {
        "global": {"entrypoint": "S[Identity,DagDispatcher]"},
        "a": {"backend": "Gate", "queue_size": 1},
    }
    pipe = headrace.pipe(config)
    running = held(pipe, gate)
    queued = pipe.submit({"data": "queued"})
    waiting(pipe, 1, node="a")
    outside = client(pipe, {"data": "outside"})
    waiting(pipe, 2, node="a")
    closes = client(pipe.close)
    with pytest.raises(errors.ClosedError):
        outside.outcome()
    gate.open()
    closes.outcome()
    assert [f.result(60)["result"] for f in (running, queued)] == ["held", "queued"]


@pytest.mark.parametrize("front", ["DagDispatcher", "BackgroundThread[DagDispatcher]"])
@pytest.mark.parametrize("how", ["cancel", "deadline", "close"])
def test_who_waits_behind_such_a_front_is_taken_out_of_the_queue(gate, front, how):
    config = {
        "global": {"entrypoint": front},
        "a": {"backend": "Gate", "queue_size": 1, "queue_full": "reject"},
    }
    with headrace.pipe(config) as pipe:
        held(pipe, gate)
        waits = pipe.submit({"data": "waits"}, timeout=0.01 if how == "deadline" else None)
        if how == "cancel":
            assert waits.cancel()
        elif how == "deadline":
            error = waits.exception(60)
            assert isinstance(error, errors.DeadlineExceededError)
            assert error.abandoned is False
        else:
            assert isinstance(pipe.submit({"data": "more"}).exception(60), errors.OverloadedError)
            pipe.close(drain=False, timeout=0.01)
            error = waits.exception(60)
            assert isinstance(error, errors.ClosedError)
            assert not getattr(error, "abandoned", False)
        gate.open()
    assert gate.batches == [["held"]]


@pytest.mark.parametrize("full", ["reject", "shed_oldest"])
def test_who_finds_the_front_taken_meets_the_bound_of_the_entry_there(
    gate, waiting, monkeypatch, full
):
    monkeypatch.setattr("headrace._build.builder.FRONT_WIDTH", 2)
    config = {
        "global": {"entrypoint": "S[Identity,DagDispatcher]"},
        "a": {"backend": "Gate", "next": "b", "queue_size": 3, "queue_full": full},
        "b": {"backend": "Identity"},
    }
    with headrace.pipe(config) as pipe:
        inside = [held(pipe, gate), pipe.submit({"data": "inside"})]
        waiting(pipe, 1, node="a")
        line = pipe.submit([{"data": n} for n in range(3)])
        newest = pipe.submit({"data": "newest"})
        if full == "shed_oldest":
            line, newest = [*line[1:], newest], line[0]
        error = newest.exception(60)
        assert isinstance(error, errors.OverloadedError)
        assert (error.queue_size, error.waiting, error.node) == (3, 3, "entrypoint")
        gate.open()
        assert all("result" in future.result(60) for future in (*inside, *line))


@pytest.mark.parametrize(
    ("oldest", "newcomer", "elsewhere", "gives_way"),
    [
        (None, 0, None, None),
        (1, 0, None, None),  # the lower one elsewhere began to run in between
        (1, 1, None, "here"),
        (1, 2, None, "here"),
        (1, 2, "there", "there"),
        (None, 0, "there", "there"),
    ],
)
def test_only_one_of_no_greater_priority_makes_way(oldest, newcomer, elsewhere, gives_way):
    settled, errors_told, afterwards, asked = [], [], [], []

    def shed(priority):
        asked.append(priority)
        return elsewhere and (
            elsewhere,
            lambda entry, error: (settled.append(entry), errors_told.append(str(error))),
        )

    node = SimpleNamespace(
        name="n",
        limits=SimpleNamespace(queue_size=1),
        quota=SimpleNamespace(shed=shed),
        afterwards=afterwards,
        fail_waiting=lambda error, entries: (
            settled.extend(entries),
            errors_told.append(str(error)),
        ),
    )
    here = None if oldest is None else SimpleNamespace(priority=oldest)
    assert admission._shed(node, here, newcomer, 1) is (gives_way is not None)
    for call in afterwards:
        call()
    assert settled == {None: [], "here": [here], "there": ["there"]}[gives_way]
    assert asked == [newcomer if oldest is None else min(oldest, newcomer)]
    assert all(text.startswith("made way for a newer request: 1 request") for text in errors_told)


def test_a_rule_of_queue_full_is_one_file():
    """The names that a node key may have are those of the policies, and a policy that never sheds says so."""
    key = headrace.PipelineConfig.key_schemas()["node"]["queue_full"]
    assert set(key["enum"]) == set(get_args(QueueFull)) == set(QUEUE_FULL)
    for policy in QUEUE_FULL.values():
        decisions = {policy.decide(0, lowest) for lowest in (None, -1, 0, 1)}
        assert ("shed" in decisions) is policy.sheds


@pytest.mark.parametrize(
    ("state", "internal", "waits", "refused"),
    [
        ({}, False, False, None),
        ({"refusing": True}, False, False, "closed"),
        ({"refusing": True}, True, False, None),
        ({"refusing": True, "dead": True}, True, False, "closed"),
        ({"refusing": True, "drains": False}, True, False, "closed"),
        ({"refusing": True, "drains": False, "has_idle": True}, True, False, None),
        ({"refusing": True, "lost": True}, True, False, "instance_lost"),
        ({"lost": True}, False, True, "instance_lost"),
        ({"held": True}, False, True, "contract"),
        ({"held": True}, False, False, None),
        ({"held": True, "has_idle": True}, False, True, None),
        ({}, False, True, None),
    ],
)
def test_who_may_not_enter_is_told_why(state, internal, waits, refused, monkeypatch):
    monkeypatch.setattr(admission, "held_here", lambda node: state.get("held", False))
    node = SimpleNamespace(
        name="n",
        refusing=errors.ClosedError() if state.get("refusing") else None,
        dead=state.get("dead", False),
        drains=state.get("drains", True),
        lost=state.get("lost", False),
        has_idle=state.get("has_idle", False),
        no_instance=lambda: errors.InstanceLostError("none lives"),
    )
    error = admission._refusal(node, internal=internal, waits=waits)
    assert (error and errors.code_of(error)) == refused


@pytest.mark.parametrize(
    ("most", "weight", "deadline", "refused"),
    [
        (4, 4, None, None),
        (None, 99, None, None),
        (4, 5, None, "batch_range"),
        (4, 1, 10.1, None),
        (4, 1, 10.0, "deadline"),
        (None, 1, 9.0, "deadline"),
    ],
)
def test_what_comes_too_late_or_fits_no_instance_is_refused(most, weight, deadline, refused):
    node = SimpleNamespace(name="n", min=2, max=most)
    entry = SimpleNamespace(weight=weight, deadline=deadline, arrival=10.0)
    error = admission.unfit(node, entry)
    assert (error and error.code) == refused
    if refused == "deadline":
        assert "waited" in str(error)
        assert not error.abandoned
    if refused == "batch_range":
        assert (error.weight, error.min, error.max, error.node) == (5, 2, 4, "n")


def test_what_an_expression_hands_to_a_node_is_not_refused_there():
    config = {
        "a": {"backend": "S[Identity,Forward[node.b]]", "max": 4},
        "b": {"backend": "Identity", "queue_size": 1, "queue_full": "reject"},
    }
    with headrace.pipe(config) as pipe:
        batch = [{"data": number, "node_name": "a"} for number in range(4)]
        assert [request["result"] for request in pipe(batch)] == [0, 1, 2, 3]


@pytest.mark.parametrize(("more", "got"), [({}, "nothing"), ({"boxes": 3}, "int")])
def test_a_list_of_elements_that_is_missing_is_told_from_one_that_is_none(more, got):
    config = {"a": {"backend": "Identity", "each": "boxes"}, "b": {"backend": "Identity"}}
    with headrace.pipe(config) as pipe, pytest.raises(errors.InputError) as caught:
        pipe({"data": 1, "node_name": "a", **more})
    assert (caught.value.node, caught.value.key, caught.value.got) == ("a", "boxes", got)
