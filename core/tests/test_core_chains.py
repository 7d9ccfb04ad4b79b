"""Requests that own threads take along a chain of nodes, while their callers sleep."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

import headrace
from headrace.errors import BackendError, ContractError, InputError, OverloadedError
from headrace.policies import BestFit

LATE_S = 60.0

CHAIN = {
    "a": {"backend": "BackgroundThread[Adds]", "next": "b"},
    "b": {"backend": "BackgroundThread[Adds]", "next": "c"},
    "c": {"backend": "BackgroundThread[Adds]"},
}


class Adds(headrace.Backend):
    """Adds 1, after the function that the request brings for this node."""

    def init(self, options, context):
        self.node = context.node_name

    def forward(self, batch):
        for request in batch:
            if self.node in request:
                request[self.node]()
            request["result"] = request["data"] + 1


class Gate:
    """Lets whoever passes wait until it is opened, and tells that somebody has come."""

    def __init__(self):
        self.come = threading.Event()
        self.opened = threading.Event()

    def __call__(self, *_):
        self.come.set()
        assert self.opened.wait(LATE_S)

    def wait(self):
        assert self.come.wait(LATE_S)

    def open(self):
        self.opened.set()


@pytest.fixture(autouse=True)
def _adds():
    headrace.register("Adds", Adds, replace=True)


@pytest.fixture
def clients():
    with ThreadPoolExecutor(8) as pool:
        yield pool


def counts(pipe):
    return {
        name: (node["submitted"], node["ok"], node["waiting"])
        for name, node in pipe.stats()["nodes"].items()
    }


@pytest.mark.parametrize("node", "abc")
def test_an_error_names_its_node_and_gives_the_dict_back(clients, node):
    def breaks():
        raise ValueError("broken")

    with headrace.pipe(CHAIN) as pipe:
        request = {"data": 1, node: breaks}
        with pytest.raises(BackendError, match="broken") as raised:
            clients.submit(pipe, request).result(LATE_S)
        assert raised.value.node == node
        assert request == {"data": 1, node: breaks}
        assert clients.submit(pipe, {"data": 1}).result(LATE_S)["result"] == 4


def test_what_the_next_node_refuses_fails_in_its_name(clients):
    def spoil():
        request["request_size"] = "two"

    request = {"data": 1, "a": spoil}
    with headrace.pipe(CHAIN) as pipe:
        with pytest.raises(InputError) as raised:
            clients.submit(pipe, request).result(LATE_S)
        assert raised.value.node == "b"
        assert request["data"] == 1
        assert "result" not in request
        assert pipe.stats()["nodes"]["b"]["failed"] == {"input": 1}


def test_bounds_count_a_request_where_it_entered(clients, until):
    config = {**CHAIN, "a": {**CHAIN["a"], "queue_size": 1, "queue_full": "reject"}}
    gate = Gate()
    with headrace.pipe(config) as pipe:
        first = clients.submit(pipe, {"data": 1, "b": gate})
        gate.wait()
        second = clients.submit(pipe, {"data": 2})
        until(lambda: pipe.stats()["nodes"]["b"]["waiting"] == 1)
        with pytest.raises(OverloadedError):
            clients.submit(pipe, {"data": 3}).result(LATE_S)
        gate.open()
        assert [first.result(LATE_S)["result"], second.result(LATE_S)["result"]] == [4, 5]
        assert clients.submit(pipe, {"data": 3}).result(LATE_S)["result"] == 6


def test_who_waits_for_room_enters_when_a_request_has_left_another_node(clients, until):
    config = {**CHAIN, "a": {**CHAIN["a"], "queue_size": 1}}
    gate = Gate()
    with headrace.pipe(config) as pipe:
        answers = [clients.submit(pipe, {"data": 1, "b": gate})]
        gate.wait()
        answers.append(clients.submit(pipe, {"data": 2}))
        until(lambda: pipe.stats()["nodes"]["b"]["waiting"] == 1)
        answers.append(clients.submit(pipe, {"data": 3}))
        until(lambda: pipe.stats()["nodes"]["a"]["waiting"] == 1)
        gate.open()
        assert [one.result(LATE_S)["result"] for one in answers] == [4, 5, 6]


def test_a_request_that_is_moved_on_into_a_cycle_is_refused(clients, until):
    """A backend of another pipeline waits for a request; the node that it comes to waits for that."""
    at_a, in_b = Gate(), Gate()
    with headrace.pipe(CHAIN) as pipe, headrace.pipe({"backend": "Adds"}) as other:
        name = next(iter(other.config.nodes))
        inner = {"data": 1, "a": at_a}
        outer = clients.submit(other, {"data": 1, name: lambda: pipe(inner)})
        at_a.wait()

        def calls():
            in_b.come.set()
            other({"data": 1})

        request = {"data": 1, "node_name": "b", "b": calls}
        second = clients.submit(pipe, request)
        in_b.wait()
        until(lambda: other.stats()["nodes"][name]["waiting"] == 1)
        at_a.open()
        with pytest.raises(BackendError) as raised:
            outer.result(LATE_S)
        assert isinstance(raised.value, ContractError) or isinstance(
            raised.value.__cause__, ContractError
        )
        assert second.result(LATE_S)["result"] == 3


def test_many_callers_get_one_answer_each_whatever_happens_to_the_next_node(clients):
    config = {name: {**node, "max": 4, "instance_num": 2} for name, node in CHAIN.items()}
    config["c"] = {"backend": "Adds", "max": 2}
    with headrace.pipe(config) as pipe:

        def run(client):
            answers = []
            for number in range(60):
                request = {"data": 1000 * client + number}
                pipe(request)
                answers.append(request["result"] - request["data"])
            return answers

        answers = [clients.submit(run, client) for client in range(6)]
        for _ in range(5):
            pipe.reload("b", {"max": 4})
        assert [one.result(LATE_S) for one in answers] == [[3] * 60] * 6
        assert counts(pipe) == dict.fromkeys("abc", (360, 360, 0))


@pytest.mark.parametrize("own", [False, True])
def test_a_runner_goes_on_with_the_greatest_priority_and_asks_a_policy_of_others(
    gate, own, waiting
):
    asked = []

    @headrace.register("Asked", replace=True)
    class Asked(BestFit):
        def choose(self, weight, free):
            asked.append(weight)
            return super().choose(weight, free)

    with headrace.pipe(
        {"backend": "Gate", **({"dispatch_policy": "Asked"} if own else {})}
    ) as pipe:
        first = pipe.submit({"data": "first"})
        gate.wait_entered()
        others = [pipe.submit({"data": n}, priority=n) for n in (1, 3, 2)]
        waiting(pipe, 3)
        gate.open()
        assert first.result(LATE_S)["result"] == "first"
        assert [one.result(LATE_S)["result"] for one in others] == [1, 3, 2]
        assert gate.batches == [["first"], [3], [2], [1]]
        assert asked == ([1, 3, 2, 1] if own else [])
        assert pipe.stats()["nodes"]["main"]["batch_size"]["histogram"] == {"1": 4}
