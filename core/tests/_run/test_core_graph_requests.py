"""Requests in a graph that fail, are cancelled, or run out of time: counted once, at the right node."""

from __future__ import annotations

import asyncio
import gc
import inspect
import sys
import threading
import weakref

import internals
import pytest
from internals import terms_of
from sending import WAYS, Sender, backend

import headrace
from headrace import errors

backend("Inc", lambda r: r["data"] + 1)
backend("Nothing", lambda r: None)
backend("Even", lambda r: r["data"] if r["data"] % 2 == 0 else None)
backend("Length", lambda r: len(r["data"]))
backend("Split", lambda r: r["data"].split())
backend("Pair", lambda r: (r["data"], r["other"]))


def fail(request):
    raise ValueError(f"cannot take {request['data']}")


backend("Fail", fail)


@pytest.fixture(params=WAYS)
def send(request, shortcut):
    """Send one request in one of the ways there are."""
    return Sender(request.param)


# Failures between nodes.


INC = {"backend": "Inc"}
OR = {"a": {"backend": "Nothing", "next": "b"}, "b": {"backend": "Nothing", "or": True}}
ALIAS = {
    "x": {"backend": "Nothing", "next": "y"},
    "y": {**INC, "or": True, "next": "alias"},
    "alias": {"backend": "Forward[node.x]"},
}
FAILURES = {
    "a missing source, at the node that asks for it": (
        {
            "a": {**INC, "next": "b"},
            "b": {**INC, "map": "a[result:data,color:color]", "next": "c"},
            "c": INC,
        },
        {"data": 1},
        errors.InputError(node="a"),
        {"a": (1, 1, {}), "b": (1, 0, {"input": 1}), "c": (0, 0, {})},
    ),
    "a missing result after branches": (
        {**OR, "b": {**OR["b"], "next": "c"}, "c": INC},
        {"data": 1},
        errors.NoResultError(node="b"),
        {"b": (1, 0, {"no_result": 1}), "c": (0, 0, {})},
    ),
    "an element without result, where an or allows that of a request": (
        {"a": {"backend": "Even", "each": "data", "next": "b"}, "b": {**INC, "or": True}},
        {"data": [1, 2]},
        errors.NoResultError(node="a"),
        {"a": (2, 1, {"no_result": 1}), "b": (0, 0, {})},
    ),
    "no result of the node that answers for an alias, though an or follows that node": (
        {**ALIAS, "alias": {**ALIAS["alias"], "next": "z"}, "z": INC},
        {"data": 1},
        errors.NoResultError(node="x"),
        {"x": (2, 1, {"no_result": 1}), "alias": (1, 0, {"no_result": 1}), "z": (0, 0, {})},
    ),
    "each over no list": (
        {"a": {**INC, "next": "b"}, "b": {**INC, "each": "data"}},
        {"data": 1},
        errors.InputError(node="b"),
        {"a": (1, 1, {}), "b": (1, 0, {"input": 1})},
    ),
    "an element with a wrong weight": (
        {**INC, "each": "sizes:request_size"},
        {"data": 1, "sizes": ["no number"]},
        errors.InputError(node="main"),
        {"main": (1, 0, {"input": 1})},
    ),
}


@pytest.mark.parametrize(("config", "request_", "error", "counts"), FAILURES.values(), ids=FAILURES)
def test_a_failure_counts_once_and_where_it_is_found(send, config, request_, error, counts):
    with pytest.raises(type(error)) as caught:
        send(config, **request_)
    assert caught.value.node == error.node
    assert {name: send.counts[name] for name in counts} == counts


@pytest.mark.parametrize("keys", [{}, {"boxes": (1, 2)}, {"boxes": "ab"}, {"boxes": {1: 2}}])
def test_each_at_the_entry_over_no_list_counts_once(send, keys):
    with pytest.raises(errors.InputError, match="expected a list, got"):
        send({**INC, "each": "boxes"}, 1, **keys)
    assert send.counts == {"main": (1, 0, {"input": 1})}


def test_each_errors_hold_where_a_node_is_called_by_forward(send):
    config = {
        "page": {"backend": "S[Split,Forward[node.word]]"},
        "word": {"backend": "Fail", "each": "data", "each_errors": "none"},
    }
    assert send(config, "a bb")["result"] == [None, None]
    config["word"]["each_errors"] = "fail"
    with pytest.raises(errors.BackendError) as caught:
        send(config, "a bb")
    assert caught.value.node == "word"


# each.


def test_the_limit_of_an_alias_holds_for_aliases_of_it(send):
    config = {
        "word": {"backend": "Length"},
        "quick": {"backend": "Forward[node.word]", "timeout_ms": 1e-6},
        "words": {"backend": "Forward[node.quick]", "each": "data"},
    }
    assert send(config, "ab", node_name="word")["result"] == 2
    for name, data in (("quick", "ab"), ("words", ["ab"])):
        with pytest.raises(errors.DeadlineExceededError):
            send(config, data, node_name=name)


@pytest.mark.parametrize("name", ["alias", "page"])
def test_who_is_called_from_an_expression_needs_a_result_whatever_follows(send, name):
    config = {
        "word": {"backend": "Nothing", "next": "else"},
        "else": {"backend": "Identity", "or": True, "next": "page,alias"},
        "alias": {"backend": "Forward[node.word]", "next": "never"},
        "never": {"backend": "Identity", "or": True},
        "page": {"backend": "S[Identity,Forward[node.word]]"},
    }
    with pytest.raises(errors.NoResultError) as caught:
        send(config, 5, node_name=name)
    assert caught.value.node == "word"
    assert send.counts["word"] == (1, 0, {"no_result": 1})
    assert send.counts["never"] == (0, 0, {})


def test_many_nodes_with_nothing_to_do_follow_each_other():
    """None of them takes more of the stack: there is no room for a call per node."""
    config = {f"n{i}": {**INC, "each": "data", "next": f"n{i + 1}"} for i in range(300)}
    config["n300"] = {**INC, "each": "data"}
    room = sys.getrecursionlimit()
    with headrace.pipe(config) as pipe:
        try:
            sys.setrecursionlimit(len(inspect.stack()) + 250)
            for way in WAYS.values():
                request = {"data": []}
                way(pipe, request)
                assert request["result"] == []
        finally:
            sys.setrecursionlimit(room)


# Ends before the end.


@pytest.mark.usefixtures("takes_turns")
@pytest.mark.parametrize(
    ("keys", "named"),
    [
        ({"a": {"next": "b"}, "b": {}}, {}),
        ({"a": {"next": "b"}, "b": {}}, {"node_name": "b"}),
        ({"a": {"next": "b"}, "b": {}, "other": {}}, {"node_name": "a"}),
        ({"a": {"next": "b"}, "b": {"or": True, "next": "c"}, "c": {}}, {}),
        (
            {
                "a": {"next": "b,c"},
                "b": {"next": "d"},
                "c": {"next": "d"},
                "d": {"map": "b[result:data],c[result:other]"},
            },
            {},
        ),
    ],
    ids=["line", "named", "several roots", "or", "diamond"],
)
def test_a_caller_walks_its_own_request(keys, named):
    ran_in = []

    class Noting(headrace.Backend):
        def forward(self, batch):
            ran_in.append(threading.get_ident())
            for item in batch:
                item["result"] = item["data"]

    headrace.register(Noting)
    with headrace.pipe(
        {name: {"backend": "Noting", **more} for name, more in keys.items()}
    ) as pipe:
        pipe({"data": 1, **named})
        assert set(ran_in) == {threading.get_ident()}


def test_a_failing_branch_cancels_what_has_not_started(gate, until):
    config = {
        "x": {"backend": "Identity", "next": "y,z"},
        "y": {"backend": "Gate", "next": "y2"},
        "y2": INC,
        "z": {"backend": "FailLater"},
    }
    may_fail = threading.Event()

    def fail_later(request):
        assert may_fail.wait(60)
        raise ValueError("z")

    backend("FailLater", fail_later)
    with headrace.pipe(config) as pipe:
        busy = gate.entered(pipe.submit({"data": 1, "node_name": "y"}))
        request = {"data": 2}
        future = pipe.submit(request)
        until(lambda: pipe.stats()["nodes"]["y"]["waiting"] == 1)
        may_fail.set()
        with pytest.raises(errors.BackendError) as caught:
            future.result(60)
        assert caught.value.node == "z"
        assert request == {"data": 2}
        assert pipe.stats()["nodes"]["y"]["waiting"] == 0
        assert pipe.stats()["nodes"]["y"]["failed"] == {"cancelled": 1}
        gate.open()
        assert busy.result(60)["result"] == 2
        assert gate.batches == [[1]]


def test_a_deadline_runs_through_all_nodes(gate, client, expire):
    config = {"a": {**INC, "next": "b"}, "b": {"backend": "Gate", "next": "c"}}
    config["c"] = INC
    with headrace.pipe(config) as pipe:
        calling = gate.entered(client(pipe, {"data": 1}, timeout=60))
        (deadline,) = expire(pipe, 2)
        assert deadline is not None
        with pytest.raises(errors.DeadlineExceededError) as caught:
            calling.outcome()
        assert caught.value.node == "b"
        gate.open()
        assert pipe.stats()["nodes"]["c"]["submitted"] == 0


@pytest.mark.parametrize("way", ["deadline", "close"])
@pytest.mark.parametrize("order", ["bc", "cb"])
def test_who_is_freed_in_a_queue_is_told_of_the_branch_that_still_runs(
    gate, client, expire, until, order, way
):
    config = {"a": {**INC, "next": "b,c"}}
    with headrace.pipe(config | {name: {"backend": "Gate"} for name in order}) as pipe:
        busy = gate.entered(pipe.submit({"data": 0, "node_name": "b"}))
        calling = gate.entered(client(pipe, {"data": 1}, timeout=60))
        until(lambda: pipe.stats()["nodes"]["b"]["waiting"] == 1)
        if way == "deadline":
            expire(pipe, 2)
        else:
            client(pipe.close, drain=False)
        wanted = (errors.DeadlineExceededError, errors.ClosedError)
        with pytest.raises(wanted) as caught:
            calling.outcome()
        assert caught.value.abandoned
        gate.open()
        assert busy.result(60)["result"] == 0


def test_a_request_between_nodes_can_be_taken_back_only_while_it_waits(gate, until):
    config = {"a": {**INC, "next": "b"}, "b": {"backend": "Gate", "next": "c"}}
    config["c"] = INC
    with headrace.pipe(config) as pipe:
        first = gate.entered(pipe.submit({"data": 1}))
        request = {"data": 5}
        second = pipe.submit(request)
        until(lambda: pipe.stats()["nodes"]["b"]["waiting"] == 1)
        assert not first.cancel()
        assert second.cancel()
        assert request == {"data": 5}
        gate.open()
        assert first.result(60)["result"] == 3
        assert not first.cancel()
        assert pipe.stats()["nodes"]["b"]["failed"] == {"cancelled": 1}


def test_a_backend_may_wait_for_its_own_graph_where_another_instance_is_left(monkeypatch):
    internals.circles_are_looked_for_at_once(monkeypatch)

    def count_down(request):
        if request["data"] == 1:
            return ["done"]
        return ["waits", *pipe.submit({"data": request["data"] - 1}).result(60)["result"]]

    backend("CountDown", count_down)
    config = {
        "a": {"backend": "Identity", "next": "b"},
        "b": {"backend": "CountDown", "instance_num": 2},
        "global": {"deadlock_after_s": 0.05},
    }
    with headrace.pipe(config) as pipe:
        assert pipe({"data": 2})["result"] == ["waits", "done"]
        with pytest.raises(errors.ContractError, match="wait for each other in a circle"):
            pipe({"data": 3})  # both instances are held by threads that wait
        assert pipe({"data": 1})["result"] == ["done"]


def test_taking_back_who_waits_elsewhere_makes_room_at_the_entry(gate, until):
    config = {
        "a": {**INC, "next": "b", "queue_size": 1},
        "b": {"backend": "Gate"},
    }
    with headrace.pipe(config) as pipe:
        first = gate.entered(pipe.submit({"data": 1}))
        second = pipe.submit({"data": 2})
        until(lambda: pipe.stats()["nodes"]["b"]["waiting"] == 1)
        third = []
        client = threading.Thread(target=lambda: third.append(pipe.submit({"data": 3})))
        client.start()
        until(lambda: pipe.stats()["nodes"]["a"]["waiting"] == 1)
        assert second.cancel()
        client.join(60)
        assert third
        gate.open()
        assert [first.result(60)["result"], third[0].result(60)["result"]] == [2, 4]


def own_error(error):
    """Return the error of the coroutine: before 3.11, who awaits its task gets another one around it."""
    return error if sys.version_info >= (3, 11) else error.__context__


@pytest.mark.parametrize("nodes", [1, 2])
def test_a_task_cancelled_just_after_its_request_ended_leaves_no_result(gate, until, nodes):
    config = {"b": {"backend": "Gate"}}
    if nodes == 2:
        config = {"a": {"backend": "Identity", "next": "b"}, **config}

    async def main(pipe):
        request = {"data": 1}
        task = asyncio.ensure_future(pipe.call_async(request))
        await asyncio.to_thread(gate.wait_entered)
        gate.open()
        until(lambda: pipe.stats()["nodes"]["b"]["ok"] == 1)  # the loop stands still meanwhile
        pipe({"data": 2})
        task.cancel()
        with pytest.raises(asyncio.CancelledError) as caught:
            await task
        assert not own_error(caught.value).abandoned
        assert request == {"data": 1}

    with headrace.pipe(config) as pipe:
        asyncio.run(main(pipe))


def test_who_keeps_the_future_does_not_keep_what_the_nodes_wrote():
    class Large(list):
        pass

    seen = []

    def large(request):
        value = Large([request["data"]])
        seen.append(weakref.ref(value))
        return value

    backend("Large", large)
    config = {
        "x": {"backend": "Large", "next": "y,z"},
        "y": {"backend": "Length", "next": "w"},
        "z": {"backend": "Length", "next": "w"},
        "w": {"backend": "Pair", "map": "y[result:data],z[result:other]"},
    }
    with headrace.pipe(config) as pipe:
        future = pipe.submit({"data": 1})
        assert future.result(60)["result"] == (1, 1)
    gc.collect()
    assert [ref() for ref in seen] == [None]


# Bounds.


def test_tiny_queues_let_no_chain_stand_still(shortcut):
    config = {
        "global": {"queue_size": 1},
        "a": {**INC, "next": "b,c"},
        "b": {"backend": "Split2", "next": "d"},
        "c": {**INC, "next": "d"},
        "d": {**INC, "map": "b[result:list,data:data],c[result:other]", "next": "e"},
        "e": {**INC, "each": "list", "max": 4},
    }
    backend("Split2", lambda r: [r["data"], -r["data"], 0])
    with headrace.pipe(config) as pipe:
        answers = []

        def client(number):
            for n in range(20):
                way = (number + n) % 3
                request = {"data": n}
                if way == 0:
                    pipe(request)
                elif way == 1:
                    pipe(request, timeout=60)
                else:
                    pipe.submit(request).result(60)
                answers.append(request["result"] == [n + 2, -n, 1])

        clients = [threading.Thread(target=client, args=(k,), daemon=True) for k in range(12)]
        for one in clients:
            one.start()
        for one in clients:
            one.join(60)
        assert answers == [True] * 240


# What belongs to the request as a whole: its deadline, its priority, the close.


backend("Limits", lambda r: [terms_of(r)])


@pytest.mark.parametrize("way", ["submit", "async"])
def test_the_limit_of_a_node_is_not_that_of_the_nodes_after_it(way):
    config = {
        "a": {"backend": "Limits", "timeout_ms": 60_000, "next": "b"},
        "b": {"backend": "Limits", "next": "c"},
        "c": {"backend": "Pair", "map": "a[result:data],b[result:other]"},
    }
    with headrace.pipe(config) as pipe:
        (limited, _), (free, _) = (one for (one,) in WAYS[way](pipe, {"data": 1})["result"])
    assert limited is not None
    assert free is None


@pytest.mark.parametrize(
    "a",
    [
        {"backend": "Identity", "next": "b"},
        {"backend": "CatSplit[Identity,Forward[node.b],Identity]", "max": 2},
    ],
    ids=["graph", "cat split"],
)
def test_deadline_and_priority_go_along(a):
    with headrace.pipe({"a": a, "b": {"backend": "Limits"}}) as pipe:
        request = {"data": 1, "node_name": "a"}
        ((deadline, priority),) = pipe(request, timeout=60, priority=3)["result"]
        assert (deadline is not None, priority) == (True, 3)
        ((deadline, priority),) = pipe.submit(request, priority=-2).result(60)["result"]
        assert (deadline, priority) == (None, -2)
        ran = pipe.stats()["nodes"]["b"]
    assert (ran["submitted"], ran["ok"]) == (2, 2)


def test_what_stands_for_several_has_their_latest_deadline_and_greatest_priority(gate, waiting):
    config = {
        "a": {"backend": "S[Gate,CatSplit[Joined,Forward[node.b],Apart]]", "max": 4},
        "b": {"backend": "Limits", "max": 4},
    }

    backend("Joined", lambda r: 0)
    backend("Apart", lambda r: r["data"], max=None)

    def asked(pipe, *terms):
        first = gate.entered(pipe.submit({"data": 0, "node_name": "a"}))
        both = [pipe.submit({"data": 1, "node_name": "a"}, **one) for one in terms]
        waiting(pipe, len(both), node="a")
        gate.let_go(2)
        gate.wait_entered()
        first.result(60)
        return [one.result(60)["result"] for one in both]

    with headrace.pipe(config) as pipe:
        ((deadline, priority),) = asked(pipe, {"timeout": 50}, {"timeout": 5000, "priority": 1})[0]
        assert (deadline is not None, priority) == (True, 1)
        ((deadline, priority),) = asked(pipe, {"timeout": 50}, {"priority": -1})[0]
        assert (deadline, priority) == (None, 0)


BY_EACH = {
    "alone": {"a": {"backend": "Gate", "each": "data", "each_errors": "none"}},
    "line": {
        "z": {"backend": "Identity", "next": "a"},
        "a": {"backend": "Gate", "each": "data", "each_errors": "none"},
    },
    "called": {
        "z": {"backend": "S[Identity,Forward[node.a]]"},
        "a": {"backend": "Gate", "each": "data", "each_errors": "none"},
    },
}


@pytest.mark.parametrize("config", BY_EACH.values(), ids=BY_EACH)
def test_the_deadline_of_a_request_is_no_failure_of_its_elements(gate, config):
    with headrace.pipe(config) as pipe:
        with pytest.raises(errors.DeadlineExceededError):
            pipe({"data": [1, 2, 3]}, timeout=0.02)
        gate.open()


@pytest.mark.parametrize("config", BY_EACH.values(), ids=BY_EACH)
def test_a_close_is_no_failure_of_elements(gate, config):
    pipe = headrace.pipe(config)
    future = gate.entered(pipe.submit({"data": [1, 2, 3]}))
    threading.Thread(target=pipe.close, kwargs={"drain": False, "timeout": 0}).start()
    failure = future.exception(60)
    assert isinstance(failure, errors.ClosedError) or isinstance(
        failure.__cause__, errors.ClosedError
    )


def test_the_limit_of_a_node_leaves_none_for_elements_that_are_not_done(gate):
    config = {"a": {**BY_EACH["alone"]["a"], "timeout_ms": 20}}
    with headrace.pipe(config) as pipe:
        assert pipe({"data": [1, 2, 3]})["result"] == [None, None, None]
        gate.open()


@pytest.mark.parametrize("way", ["call", "list", "submit"])
@pytest.mark.parametrize("name", ["nope", "C", 3, ["a"], None], ids=str)
def test_a_request_that_names_no_node_is_told_which_there_are(name, way):
    nodes = {"a": {"next": "c"}, "b": {}, "c": {}}
    config = {"global": {"backend": "Identity"}, **nodes}
    with headrace.pipe(config) as pipe, pytest.raises(errors.InputError) as caught:
        WAYS[way](pipe, {"data": 1, "node_name": name})
    error = caught.value
    there = "one of a, b" if name is None else "one of a, b, c"  # it may enter at any node
    assert (error.key, error.expected) == ("node_name", there)
    assert error.got == (None if name is None else repr(name))
    assert ("names none" in str(error)) == (name is None)
    assert error.hint == ("Did you mean 'c'?" if name == "C" else None)


@pytest.mark.parametrize("entry", ["a", "page"])
def test_when_an_element_fails_none_of_the_others_takes_its_place(send, entry):
    """The one instance is busy with the element that fails; all others are cancelled at once."""
    ran = []
    backend("Picky", lambda r: 1 // r["data"] if ran.append(r["data"]) is None else None)
    config = {
        "a": {"backend": "Picky", "each": "data"},
        "page": {"backend": "S[Identity,Forward[node.a]]"},
    }
    with pytest.raises(errors.BackendError, match="ZeroDivisionError"):
        send(config, [0, *[1] * 50], node_name=entry)
    assert ran == [0]
    assert send.counts["a"][2]["backend"] == 1


def test_what_a_node_refuses_names_no_backend_and_instance_of_those_who_call_it():
    nodes = {
        "a": {"backend": "S[Identity,Forward[node.b]]", "instance_num": 2, "max": 8},
        "b": {"backend": "Identity", "max": 4},
    }
    with headrace.pipe(nodes) as pipe, pytest.raises(errors.BatchRangeError) as caught:
        pipe({"data": 1, "request_size": 5})
    error = caught.value
    assert (error.node, error.backend, error.instance, error.weight) == ("b", None, None, 5)
