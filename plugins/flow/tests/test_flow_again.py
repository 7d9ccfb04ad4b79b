"""Loop and Restart."""

from __future__ import annotations

import pytest

import headrace
from headrace import PENDING, errors


def register(name, function):
    def forward(self, batch):
        for request in batch:
            function(request)

    headrace.register(name, type(name, (headrace.Backend,), {"forward": forward}), replace=True)


def countdown(request):
    request["result"] = request["data"] - 1
    request["runs"] = request.get("runs", 0) + 1
    if request["result"] <= 0:
        request["done"] = True


register("Countdown", countdown)
register("AddTen", lambda r: r.__setitem__("result", r["data"] + 10))
register("Silent", lambda r: None)


@pytest.mark.parametrize("brought", [True, False, None, 0, "", "x"])
def test_a_loop_runs_an_item_that_brings_the_key_all_the_same(brought):
    with headrace.pipe({"backend": "Loop(until=done)[Countdown]", "max": 4}) as pipe:
        requests = pipe([{"data": n, "done": brought} for n in (3, 1, 2)] + [{"data": 4}])
        assert [r["result"] for r in requests] == [0, 0, 0, 0]
        assert [r["runs"] for r in requests] == [3, 1, 2, 4]


def test_a_dict_that_is_sent_a_second_time_loops_again():
    with headrace.pipe({"backend": "Loop(until=done)[Countdown]"}) as pipe:
        request = {"data": 3}
        assert [pipe(request)["runs"] for _ in range(3)] == [3, 6, 9]
        assert request["result"] == 0


def test_a_loop_in_a_loop_begins_anew_each_time():
    # Each run of the inner loop adds 1 three times; the outer one goes on until 10 is reached.
    def third(request):
        request["result"] = request["data"] + 1
        if request["result"] % 3 == 0:
            request["third"] = True

    def ten(request):
        request["result"] = request["data"]
        if request["data"] > 9:
            request["ten"] = True

    register("AddsThree", third)
    register("Ten", ten)
    inner = "Loop(until=ten)[S[Loop(until=third)[AddsThree],Ten]]"
    with headrace.pipe({"backend": inner}) as pipe:
        assert pipe({"data": 0})["result"] == 12
        assert pipe({"data": 0, "third": 1, "ten": 1})["result"] == 12


def test_a_loop_whose_key_every_item_has_runs_once():
    with headrace.pipe({"backend": "Loop(until=data)[Countdown]"}) as pipe:
        assert pipe({"data": 3})["result"] == 2


def test_a_loop_past_its_limit_fails_that_item_alone():
    config = {"backend": "Loop(until=done,limit=2)[Countdown]", "max": 4}
    requests = [{"data": 1}, {"data": 9}]
    with headrace.pipe(config) as pipe, pytest.raises(errors.RequestsFailed) as caught:
        pipe(requests)
    assert caught.value.errors[0] is None
    assert isinstance(caught.value.errors[1], errors.LimitError)
    assert caught.value.errors[1].limit == 2
    assert requests[0]["result"] == 0


def test_a_loop_whose_child_writes_nothing_says_so():
    with (
        headrace.pipe({"backend": "Loop(until=done)[Silent]"}) as pipe,
        pytest.raises(errors.NoResultError, match="the backend in Loop wrote no 'result'"),
    ):
        pipe({"data": 1})


def test_a_loop_has_the_range_of_what_it_runs():
    body = {
        "forward": lambda self, batch: [countdown(r) for r in batch] and None,
        "min": 2,
        "max": 4,
    }
    headrace.register("Pair", type("Pair", (headrace.Backend,), body), replace=True)
    with headrace.pipe({"backend": "Loop(until=done)[Pair]"}) as pipe:
        assert pipe.describe()["nodes"]["main"]["range"] == [2, 4]
        with pytest.raises(errors.RequestsFailed) as caught:
            pipe([{"data": 1}, {"data": 2}])
        assert caught.value.errors[0] is None
        assert isinstance(caught.value.errors[1], errors.BatchRangeError)
    with headrace.pipe({"backend": "Loop(until=done)[Pair]", "pad": True}) as pipe:
        assert [r["runs"] for r in pipe([{"data": 1}, {"data": 2}])] == [1, 2]


def test_a_key_that_the_map_does_not_bring_to_what_a_loop_runs_is_named():
    body = {"reads": ("mask",), "forward": lambda self, batch: None}
    headrace.register("ReadsMask", type("ReadsMask", (headrace.Backend,), body), replace=True)
    nodes = {
        "a": {"backend": "AddTen", "next": "b"},
        "b": {"backend": "Loop(until=x)[ReadsMask]", "map": "a[result:data]"},
    }
    with pytest.raises(errors.ConfigError, match="'mask'"):
        headrace.PipelineConfig.load(nodes)


def test_what_a_loop_runs_cannot_be_answered_later():
    body = {"forward": lambda self, batch: [PENDING for _ in batch]}
    headrace.register("Later", type("Later", (headrace.Backend,), body), replace=True)
    with (
        headrace.pipe({"backend": "Loop(until=done)[Later]"}) as pipe,
        pytest.raises(errors.ContractError, match="returned PENDING") as caught,
    ):
        pipe({"data": 1})
    assert caught.value.backend == "Later"


def test_an_instance_that_is_lost_inside_a_loop_gets_no_further_batch():
    def lost(request):
        if request["data"] < 0:
            raise errors.InstanceLostError("the device is gone")
        request["result"] = request["data"]
        request["done"] = True

    register("Loses", lost)
    with headrace.pipe({"backend": "Loop(until=done)[Loses]", "instance_num": 2}) as pipe:
        with pytest.raises(errors.InstanceLostError) as caught:
            pipe({"data": -1})
        alive = [one["alive"] for one in pipe.stats()["nodes"]["main"]["instances"]]
        assert alive == [index != caught.value.instance for index in range(2)]
