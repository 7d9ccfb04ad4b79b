"""The bound of a queue: it counts the requests that entered there, whatever way they came and went."""

from __future__ import annotations

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


def test_who_waits_for_room_is_let_in_when_a_failed_element_ends_the_others(gate, client, waiting):
    elements = {"backend": "Gate", "each": "data", "queue_size": 1, "max": 1}
    with headrace.pipe({"elements": elements}) as pipe:
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


# Graphs.


def two_nodes(**keys):
    return {
        "global": {"queue_size": 1, **keys},
        "a": {"backend": "Identity", "next": "b"},
        "b": {"backend": "Gate"},
    }


@pytest.mark.usefixtures("takes_turns")
def test_in_a_graph_callers_wait_for_room(gate, client, waiting):
    with headrace.pipe(two_nodes()) as pipe:
        running = held(pipe, gate)
        callers = [client(pipe, {"data": n}) for n in range(4)]
        waiting(pipe, 1, node="b")
        waiting(pipe, 3, node="a")
        gate.open()
        assert sorted(c.outcome()["result"] for c in callers) == [0, 1, 2, 3]
        assert running.result(60)["result"] == "held"


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
