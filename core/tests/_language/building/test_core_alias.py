"""Aliases: a node whose whole backend is ``Forward[node.x]`` hands on to x, and no thread waits meanwhile."""

from __future__ import annotations

import threading

import pytest
from sending import WAYS, Sender, backend

import headrace
from headrace import errors

backend("Inc", lambda r: r["data"] + 1)
backend("Negate", lambda r: -r["data"])


@pytest.fixture(params=WAYS)
def send(request, shortcut):
    """Send one request in one of the ways there are."""
    return Sender(request.param)


X = {"x": {"backend": "Inc"}, "alias": {"backend": "Forward[node.x]"}}


def test_it_counts_what_comes_to_it_and_the_other_node_what_it_runs(send):
    assert send(X, 1, node_name="alias")["result"] == 2
    assert send.counts == {"x": (1, 1, {}), "alias": (1, 1, {})}
    assert send({**X, "x": {"backend": "Negate"}}, 1)["result"] == -1  # the alias is the root
    with pytest.raises(errors.BackendError) as caught:
        send(X, "text", node_name="alias")
    assert (caught.value.node, send.counts["alias"]) == ("x", (1, 0, {"backend": 1}))


def test_an_alias_of_an_alias_is_answered_by_the_same_node(send):
    config = {**X, "outer": {"backend": "Forward[node.alias]", "each": "data"}}
    assert send(config, [1, 2, 3])["result"] == [2, 3, 4]
    assert {name: counts[:2] for name, counts in send.counts.items()} == {
        "x": (3, 3),
        "alias": (3, 3),
        "outer": (3, 3),
    }


def test_what_comes_through_it_shares_batches_with_all_others(gate):
    config = {"x": {"backend": "Gate", "max": 8}, "alias": X["alias"], "other": X["alias"]}
    with headrace.pipe(config) as pipe:
        first = gate.entered(pipe.submit({"data": 0, "node_name": "x"}))
        names = ["alias", "x", "other", "alias"]
        futures = [pipe.submit({"data": n, "node_name": one}) for n, one in enumerate(names)]
        while pipe.stats()["nodes"]["x"]["waiting"] < 4:
            pass
        gate.open()
        assert [one.result(60)["result"] for one in (first, *futures)] == [0, 0, 1, 2, 3]
        assert pipe.stats()["nodes"]["x"]["batch_size"]["histogram"] == {"1": 1, "4": 1}


def test_it_holds_no_instance_while_the_other_node_runs(gate):
    """With one instance of its own it keeps all instances of the other node busy."""
    config = {"x": {"backend": "Gate", "instance_num": 5}, "alias": X["alias"]}
    with headrace.pipe(config) as pipe:
        futures = [pipe.submit({"data": n, "node_name": "alias"}) for n in range(5)]
        gate.wait_entered(5)
        (instance,) = pipe.stats()["nodes"]["alias"]["instances"]
        assert not instance["busy"]
        gate.open()
        assert [one.result(60)["result"] for one in futures] == [0, 1, 2, 3, 4]


def test_what_waits_at_the_other_node_can_be_taken_back_and_what_runs_cannot(gate):
    with headrace.pipe({"x": {"backend": "Gate"}, "alias": X["alias"]}) as pipe:
        running = gate.entered(pipe.submit({"data": 1, "node_name": "alias"}))
        request = {"data": 2, "node_name": "alias"}
        waiting = pipe.submit(request)
        while not pipe.stats()["nodes"]["x"]["waiting"]:
            pass
        assert waiting.cancel()
        assert request == {"data": 2, "node_name": "alias"}
        assert running.running()
        assert not running.cancel()
        gate.open()
        assert running.result(60)["result"] == 1
        assert pipe.stats()["nodes"]["x"]["failed"] == {"cancelled": 1}


def test_its_time_limit_ends_a_request_that_the_other_node_runs(gate):
    config = {"x": {"backend": "Gate"}, "alias": {**X["alias"], "timeout_ms": 30}}
    with headrace.pipe(config) as pipe:
        with pytest.raises(errors.DeadlineExceededError) as caught:
            pipe({"data": 1, "node_name": "alias"})
        assert caught.value.abandoned
        gate.open()


def test_its_queue_size_bounds_what_waits_at_the_other_node(gate, until):
    limits = {"queue_size": 2, "queue_full": "reject"}
    config = {"x": {"backend": "Gate"}, "alias": {**X["alias"], **limits}}
    with headrace.pipe(config) as pipe:
        futures = [pipe.submit({"data": n, "node_name": "alias"}) for n in range(2)]
        gate.wait_entered()
        until(lambda: pipe.stats()["nodes"]["x"]["waiting"] == 1)
        with pytest.raises(errors.OverloadedError):
            pipe({"data": 3, "node_name": "alias"})
        gate.open()
        assert [one.result(60)["result"] for one in futures] == [0, 1]


def test_a_close_that_drains_waits_for_what_it_handed_on(gate, client):
    pipe = headrace.pipe({"x": {"backend": "Gate"}, "alias": X["alias"]})
    futures = [pipe.submit({"data": n, "node_name": "alias"}) for n in range(3)]
    gate.wait_entered()
    closing = client(pipe.close)
    gate.open()
    closing.outcome()
    assert [one.result(60)["result"] for one in futures] == [0, 1, 2]


def test_the_plan_says_which_node_answers():
    nodes = headrace.PipelineConfig.load({**X, "x": {"backend": "Inc", "max": 4}}).plan().nodes
    alias = nodes["alias"]
    assert (alias.alias_of, alias.range, alias.instance_num) == ("x", (1, None), 1)
    assert nodes["x"].alias_of is None
    assert headrace.explain(X)["nodes"]["alias"]["expression"] == "Forward[node.x]"


def test_a_circle_of_calls_that_leads_through_aliases_is_found(client):
    both = threading.Barrier(2)

    def call(other):
        def function(request):
            if "deep" not in request:
                return request["data"]
            both.wait(60)
            return pipe({"data": 1, "node_name": other})["result"]

        return function

    backend("CallsX", call("alias_x"))
    backend("CallsY", call("alias_y"))
    config = {
        "global": {"deadlock_after_s": 0.1},
        "x": {"backend": "CallsY"},
        "y": {"backend": "CallsX"},
        "alias_x": {"backend": "Forward[node.x]"},
        "alias_y": {"backend": "Forward[node.y]", "next": "end"},
        "end": {"backend": "Identity"},
    }
    with headrace.pipe(config) as pipe:
        calls = [client(pipe, {"data": 1, "deep": 1, "node_name": name}) for name in "xy"]
        found = []
        for one in calls:
            try:
                found.append(one.outcome()["result"])
            except errors.ContractError as error:
                found.append(str(error))
    (circle,) = (one for one in found if one != 1)
    assert "(node 'x')" in circle
    assert "(node 'y')" in circle


# Which nodes are roots.


def test_a_node_that_is_only_called_is_no_root():
    config = {
        "page": {"backend": "S[Forward[node.word],Negate]"},
        "word": {"backend": "Inc"},
    }
    with headrace.pipe(config) as pipe:
        assert pipe({"data": 1})["result"] == -2
        assert pipe({"data": 1, "node_name": "word"})["result"] == 2


@pytest.mark.parametrize(
    ("alias", "x", "data", "result"),
    [
        ({"each": "data:rows"}, {"each": "rows"}, [[1, 2], []], [[2, 3], []]),
        ({"next": "z"}, {}, 1, -2),
        ({}, {"next": "z"}, 1, 2),
    ],
)
def test_what_answers_for_an_alias_is_no_root(alias, x, data, result):
    config = {
        "x": {"backend": "Inc", **x},
        "alias": {"backend": "Forward[node.x]", **alias},
        **({"z": {"backend": "Negate"}} if "next" in {**alias, **x} else {}),
    }
    with headrace.pipe(config) as pipe:
        assert pipe({"data": data})["result"] == result
