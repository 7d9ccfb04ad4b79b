"""The bound of a queue: it counts the requests that entered there, whatever way they came and went."""

from __future__ import annotations

import internals
import pytest
from sending import WAYS

import headrace
from headrace import errors


def send(pipe, request, way):
    """Send one request; give its error, or None."""
    try:
        WAYS[way](pipe, request)
    except errors.HeadraceError as error:
        return error
    return None


def held(pipe, gate, data="held", **more):
    """Let one request run and keep its instance."""
    return gate.entered(pipe.submit({"data": data, **more}))


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
def test_a_full_queue_is_no_failure_of_an_element(gate, client, waiting, way):
    node = {"backend": "Gate", "each": "data", "each_errors": "none"}
    config = {"elements": {**node, "queue_size": 1, "queue_full": "reject"}}
    with headrace.pipe(config) as pipe:
        first = held(pipe, gate, [0])
        second = client(send, pipe, {"data": [1, 2]}, way)
        waiting(pipe, 2, node="elements")
        assert isinstance(send(pipe, {"data": [3, 4]}, way), errors.OverloadedError)
        gate.open()
        assert second.outcome() is None
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


def test_who_finds_the_front_taken_meets_the_bound_of_the_entry_there(gate, waiting, monkeypatch):
    monkeypatch.setattr(internals.builder, "ENTRYPOINT_WIDTH", 2)
    config = {
        "global": {"entrypoint": "S[Identity,DagDispatcher]"},
        "a": {"backend": "Gate", "next": "b", "queue_size": 3, "queue_full": "reject"},
        "b": {"backend": "Identity"},
    }
    with headrace.pipe(config) as pipe:
        inside = [held(pipe, gate), pipe.submit({"data": "inside"})]
        waiting(pipe, 1, node="a")
        line = pipe.submit([{"data": n} for n in range(3)])
        newest = pipe.submit({"data": "newest"})
        error = newest.exception(60)
        assert isinstance(error, errors.OverloadedError)
        assert (error.queue_size, error.waiting, error.node) == (3, 3, "entrypoint")
        gate.open()
        assert all("result" in future.result(60) for future in (*inside, *line))


def test_the_rules_of_a_full_queue_are_the_names_that_its_key_may_have():
    key = headrace.PipelineConfig.key_schemas()["node"]["queue_full"]
    assert {*key["enum"]} == {"wait", "reject"}


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
