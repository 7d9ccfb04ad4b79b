"""Calls, lists, futures and coroutines: what goes in, and the one outcome of each request."""

from __future__ import annotations

import asyncio
import concurrent.futures
import json
import sys
import threading
from fractions import Fraction

import internals
import numpy as np
import pytest
from processes import run_process
from sending import WAYS

import headrace
from headrace.errors import (
    BackendError,
    ClosedError,
    DeadlineExceededError,
    InputError,
    OverloadedError,
    RequestsFailed,
)

pytestmark = [
    pytest.mark.usefixtures("shortcut"),
    pytest.mark.first("requests of many callers share batches, and several instances run them"),
]

MORE_TIME = "Allow more time (timeout, timeout_ms), or more instances."


def node(pipe):
    return pipe.stats()["nodes"]["main"]


class BrokenError(Exception):
    def __str__(self):
        raise RuntimeError("not even its text works")


# One request.


@pytest.mark.parametrize("way", WAYS)
def test_after_a_failure_data_is_the_callers_and_there_is_no_result(way):
    class Half(headrace.Backend):
        def forward(self, batch):
            for request in batch:
                request["result"] = "half"
                request["data"] = "changed"
            raise ValueError("too late")

    headrace.register("Half", Half, replace=True)
    request = {"data": 5, "result": "stale"}
    with headrace.pipe({"backend": "Half"}) as pipe:
        with pytest.raises(BackendError) as caught:
            WAYS[way](pipe, request)
        assert isinstance(caught.value.__cause__, ValueError)
        assert caught.value.node == "main"
        assert not caught.value.abandoned
        assert node(pipe)["failed"] == {"backend": 1}
    assert request == {"data": 5}


@pytest.mark.parametrize(
    "bad", [None, 3, "text", {}, {"data": 1, "request_size": 0}, {"data": 1, "request_size": True}]
)
def test_what_is_no_request_is_an_input_error_and_counted(gate, bad):
    gate.shut = False
    with headrace.pipe({"backend": "Gate"}) as pipe:
        for way in WAYS.values():
            with pytest.raises(InputError):
                way(pipe, bad)
        assert node(pipe)["failed"] == {"input": len(WAYS)}
        assert node(pipe)["submitted"] == len(WAYS)
        assert pipe({"data": 1})["result"] == 1


class Array:
    """Quacks like an array."""

    def __init__(self, *shape):
        self.shape = shape


@pytest.mark.parametrize("shape", [(0,), (0, 3), (2, 0)])
def test_a_request_without_rows_may_say_so_and_weighs_1(gate, shape):
    gate.shut = False
    none = {"data": Array(*shape), "request_size": 0}
    with headrace.pipe({"backend": "S[Gate]", "max": 2}) as pipe:
        for way in WAYS.values():
            way(pipe, dict(none))
        pipe([dict(none), dict(none), {"data": Array(2, 3), "request_size": 2}])
        assert max(int(size) for size in node(pipe)["batch_size"]["histogram"]) <= 2
        for size in (-1, None, "0"):
            with pytest.raises(InputError):
                pipe({**none, "request_size": size})
        with pytest.raises(InputError, match="of at least 1"):
            pipe({"data": Array(1, 3), "request_size": 0})


class Narrow:
    """An integer as numpy has them: of no class of Python's, and of so few bits that sums do not fit."""

    def __init__(self, value):
        self.value = value

    def __index__(self):
        return self.value


ONE = {"backend": "S[Gate]", "max": 4}
LINE = {"a": {**ONE, "next": "b"}, "b": ONE}


@pytest.mark.parametrize("config", [ONE, LINE], ids=["one", "line"])
def test_weights_and_priorities_are_what_stands_for_an_int(gate, config):
    gate.shut = False
    with headrace.pipe(config) as pipe:
        request = {"data": 1, "request_size": Narrow(3)}
        assert pipe(request, priority=Narrow(2))["result"] == 1
        assert type(request["request_size"]) is int
        assert request["request_size"] == 3
        for wrong in (True, 1.0, "1", Narrow("1")):
            with pytest.raises(InputError, match="an int of at least 1"):
                pipe({"data": 1, "request_size": wrong})
            for ask in (pipe, pipe.submit):
                with pytest.raises(TypeError, match="priority is an int"):
                    ask({"data": 1}, priority=wrong)


def test_an_exception_without_a_text_reaches_the_caller_and_the_instance_goes_on(gate):
    gate.shut = False
    gate.raises["bad"] = BrokenError()
    with headrace.pipe({"backend": "Gate"}) as pipe:
        for _ in range(2):
            with pytest.raises(BackendError):
                pipe({"data": "bad"})
            with pytest.raises(BackendError):
                pipe.submit({"data": "bad"}).result()
        assert pipe({"data": 1})["result"] == 1


def test_any_number_that_is_no_bool_is_a_time_and_any_whole_one_a_priority():
    with headrace.pipe({"backend": "Identity"}) as pipe:
        for number in (Fraction(20), np.float32(20), np.int64(20)):
            assert pipe({"data": 1}, timeout=number)["result"] == 1
        assert pipe.submit({"data": 1}, priority=np.int8(3)).result(60)["result"] == 1
        pipe.close(timeout=np.float32(20))


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("closed", [False, True])
def test_a_request_that_is_refused_on_entry_has_no_result(way, closed):
    config = {"a": {"backend": "Identity", "next": "b"}, "b": {"backend": "Identity"}}
    with headrace.pipe(config) as pipe:
        request = {"data": 1, "result": "of another call", "node_name": "a" if closed else "nobody"}
        if closed:
            pipe.close()
        with pytest.raises((InputError, ClosedError)):
            WAYS[way](pipe, request)
    assert "result" not in request


# Lists.


LIST_DOORS = {
    "call": lambda pipe, requests: pipe(requests),
    "timeout": lambda pipe, requests: pipe(requests, timeout=60),
    "submit": lambda pipe, requests: [f.result(60) for f in pipe.submit(requests)],
    "call_async": lambda pipe, requests: asyncio.run(pipe.call_async(requests)),
}
PAIRS = {"backend": "Gate", "min": 2, "max": 4}


@pytest.mark.parametrize("door", LIST_DOORS)
@pytest.mark.parametrize(
    "config", [PAIRS, {"a": {**PAIRS, "next": "b"}, "b": {"backend": "Identity"}}]
)
def test_the_items_of_a_list_arrive_together(gate, door, config):
    """An idle node sends at once: were the first item there alone, it would be below the min."""
    gate.shut = False
    with headrace.pipe(config) as pipe:
        done = LIST_DOORS[door](pipe, [{"data": number} for number in range(4)])
    assert [one["result"] for one in done] == [0, 1, 2, 3]
    assert gate.batches == [[0, 1, 2, 3]]


@pytest.mark.parametrize("door", LIST_DOORS)
@pytest.mark.parametrize("first", [True, False])
def test_the_elements_of_a_request_arrive_together(gate, door, first):
    gate.shut = False
    nodes = {"a": {**PAIRS, "each": "boxes"}, "b": {"backend": "Identity"}}
    nodes["a" if first else "b"]["next"] = "b" if first else "a"
    with headrace.pipe(nodes) as pipe:
        (done,) = LIST_DOORS[door](pipe, [{"data": "page", "boxes": [0, 1, 2, 3]}])
    assert done["result"] == [0, 1, 2, 3]
    assert gate.batches == [[0, 1, 2, 3]]


def test_an_empty_list_gives_an_empty_list_in_every_way(gate):
    with headrace.pipe({"backend": "Gate"}) as pipe:
        assert pipe([]) == []
        assert pipe.submit([]) == []
        assert asyncio.run(pipe.call_async([])) == []
        assert node(pipe)["submitted"] == 0


@pytest.mark.parametrize("way", ["call", "async", "submit"])
def test_in_a_list_only_what_is_wrong_fails(gate, way):
    gate.shut = False
    gate.raises["bad"] = ValueError("no")
    twice = {"data": 3}
    requests = [{"data": 1}, 7, {"no": 1}, twice, twice, {"data": "bad"}, {"data": 2}]
    with headrace.pipe({"backend": "Gate"}) as pipe:
        if way == "submit":
            errors = [future.exception() for future in pipe.submit(requests)]
        else:
            with pytest.raises(RequestsFailed) as caught:
                pipe(requests) if way == "call" else asyncio.run(pipe.call_async(requests))
            errors = caught.value.errors
        kinds = [type(error) for error in errors]
        none = type(None)
        assert kinds == [none, InputError, InputError, none, InputError, BackendError, none]
        assert twice["result"] == 3
        assert requests[-1]["result"] == 2
        counts = node(pipe)
        assert counts["failed"] == {"input": 3, "backend": 1}
        assert counts["submitted"] == counts["ok"] + 4 == 7


def test_a_list_has_one_deadline_and_what_is_done_by_then_keeps_its_outcome(gate, client, expire):
    with headrace.pipe({"backend": "Gate", "queue_size": 100}) as pipe:
        requests = [{"data": k} for k in range(3)]
        gate.let_go(1)
        calling = client(pipe, requests, timeout=60)
        gate.wait_entered(2)
        assert len(set(expire(pipe, 1, 2))) == 1
        with pytest.raises(RequestsFailed) as caught:
            calling.outcome()
        first, second, third = caught.value.errors
        assert first is None
        assert isinstance(second, DeadlineExceededError)
        assert second.abandoned
        assert isinstance(third, DeadlineExceededError)
        assert not third.abandoned
        assert requests[0]["result"] == 0
        assert requests[2] == {"data": 2}
        gate.open()


# Deadlines.


def test_a_timeout_of_zero_fails_at_once(gate):
    with headrace.pipe({"backend": "Gate"}) as pipe:
        with pytest.raises(DeadlineExceededError) as caught:
            pipe({"data": 1}, timeout=0)
        assert isinstance(caught.value, TimeoutError)
        assert not caught.value.abandoned
        with pytest.raises(DeadlineExceededError):
            pipe.submit({"data": 1}, timeout=0).result()
        with pytest.raises(DeadlineExceededError):
            asyncio.run(pipe.call_async({"data": 1}, timeout=-1))
        assert node(pipe)["failed"] == {"deadline": 3}
        assert gate.batches == []


@pytest.mark.parametrize("way", ["call", "submit", "async", "node key"])
def test_a_deadline_while_running_frees_the_caller_and_says_abandoned(gate, client, expire, way):
    key = {"timeout_ms": 60_000} if way == "node key" else {}
    timeout = None if way == "node key" else 60
    with headrace.pipe({"backend": "Gate", **key}) as pipe:
        if way == "submit":
            calling = client(pipe.submit({"data": 1}, timeout=timeout).result)
        elif way == "async":
            calling = client(lambda: asyncio.run(pipe.call_async({"data": 1}, timeout=timeout)))
        else:
            calling = client(pipe, {"data": 1}, timeout=timeout)
        gate.wait_entered()
        (deadline,) = expire(pipe, 1)
        assert deadline is not None
        with pytest.raises(DeadlineExceededError) as caught:
            calling.outcome()
        assert caught.value.abandoned
        assert caught.value.hint == f"Do not use its dict again. {MORE_TIME}"
        gate.open()
        assert pipe({"data": 2})["result"] == 2
        counts = node(pipe)
        assert (counts["submitted"], counts["ok"]) == (2, 1)


@pytest.mark.parametrize("way", ["call", "submit"])
def test_a_deadline_while_queued_withdraws_the_request(gate, client, way):
    with headrace.pipe({"backend": "Gate"}) as pipe:
        first = gate.entered(client(pipe, {"data": "first"}))
        request = {"data": "late"}
        with pytest.raises(DeadlineExceededError) as caught:  # noqa: PT012
            if way == "call":
                pipe(request, timeout=0.05)
            else:
                pipe.submit(request, timeout=0.05).result()
        assert not caught.value.abandoned
        assert caught.value.hint == MORE_TIME
        assert request == {"data": "late"}
        gate.open()
        assert first.outcome()["result"] == "first"
        assert gate.batches == [["first"]]
        assert node(pipe)["waiting"] == 0


@pytest.mark.parametrize("long", [None, float("inf"), 10**400], ids=["None", "inf", "10**400"])
def test_a_timeout_beyond_all_clocks_is_none(gate, long):
    gate.shut = False
    with headrace.pipe({"backend": "Gate"}) as pipe:
        assert pipe({"data": 1}, timeout=long)["result"] == 1
        pipe.close(timeout=long)


def test_submit_comes_back_at_once_and_the_future_gives_the_dict(gate):
    with headrace.pipe({"backend": "Gate"}) as pipe:
        request = {"data": 1}
        future = gate.entered(pipe.submit(request))
        assert isinstance(future, concurrent.futures.Future)
        assert not future.done()
        assert future.running()
        gate.let_go()
        assert future.result(timeout=60) is request


# Futures.


def test_cancel_is_true_only_while_queued_and_frees_its_slot(gate):
    with headrace.pipe({"backend": "Gate", "queue_size": 1, "queue_full": "reject"}) as pipe:
        running = gate.entered(pipe.submit({"data": "running"}))
        queued = pipe.submit({"data": "queued"})
        assert isinstance(pipe.submit({"data": "no room"}).exception(), OverloadedError)
        assert not running.cancel()
        assert queued.cancel()
        assert queued.cancel()
        assert queued.cancelled()
        with pytest.raises(concurrent.futures.CancelledError):
            queued.result()
        other = pipe.submit({"data": "other"})
        gate.open()
        assert other.result(timeout=60)["result"] == "other"
        assert not running.cancelled()
        assert running.result()["result"] == "running"
        assert not running.cancel()
        assert node(pipe)["failed"] == {"overloaded": 1, "cancelled": 1}
        assert ["queued"] not in gate.batches


def test_a_cancelled_future_calls_back_and_counts_as_done_for_wait(gate):
    called = []
    with headrace.pipe({"backend": "Gate"}) as pipe:
        gate.entered(pipe.submit({"data": "running"}))
        queued = pipe.submit({"data": "queued"})
        queued.add_done_callback(called.append)
        assert queued.cancel()
        assert called == [queued]
        assert concurrent.futures.wait([queued], timeout=0).done == {queued}
        gate.open()


def test_wait_counts_a_future_once_that_ends_while_it_looks_at_it(gate, until, monkeypatch):
    install = concurrent.futures._base._create_and_install_waiters

    def install_late(*args):
        gate.open()  # `wait` has seen that the future is pending, and has yet to leave its waiter
        until(lambda: node(pipe)["ok"] == 1)
        return install(*args)

    monkeypatch.setattr(concurrent.futures._base, "_create_and_install_waiters", install_late)
    with headrace.pipe({"backend": "Gate"}) as pipe:
        future = gate.entered(pipe.submit({"data": 1}))
        for _ in range(2):  # the second time it has ended before
            assert concurrent.futures.wait([future], timeout=60) == ({future}, set())
        assert not future._waiters
        assert "state=finished" in repr(future)


def test_callbacks_that_raise_or_call_the_pipeline_do_no_harm(gate, caplog):
    got = []
    ended = threading.Event()

    def again(future):
        got.append(pipe({"data": "again"})["result"])
        raise ValueError("in a callback")

    with headrace.pipe({"backend": "Gate"}) as pipe:
        future = gate.entered(pipe.submit({"data": 1}))
        future.add_done_callback(again)
        future.add_done_callback(lambda _: ended.set())
        gate.open()
        assert ended.wait(60)
    assert got == ["again"]
    (logged,) = caplog.records
    assert str(logged.exc_info[1]) == "in a callback"


# Coroutines.


def test_coroutines_share_batches_and_never_block_the_loop(gate):
    async def main(pipe):
        first = asyncio.ensure_future(pipe.call_async({"data": "first"}))
        await asyncio.to_thread(gate.wait_entered)
        others = [asyncio.ensure_future(pipe.call_async({"data": k})) for k in range(6)]
        while node(pipe)["waiting"] < 6:
            await asyncio.sleep(0)
        gate.open()
        return [r["result"] for r in await asyncio.gather(first, *others)]

    with headrace.pipe({"backend": "Gate", "max": 4, "queue_size": 2}) as pipe:
        assert asyncio.run(main(pipe)) == ["first", *range(6)]


async def abandoned_when_cancelled(pipe, requests):
    """Return ``abandoned`` of the cancellation: where the call stands, not where its task is awaited."""
    try:
        await pipe.call_async(requests)
    except asyncio.CancelledError as error:
        return error.abandoned
    raise AssertionError("it was not cancelled")


def test_a_cancelled_coroutine_withdraws_what_waits_and_abandons_what_runs(gate):
    async def main(pipe):
        requests = [{"data": k} for k in range(3)]
        task = asyncio.ensure_future(abandoned_when_cancelled(pipe, requests))
        await asyncio.to_thread(gate.wait_entered)
        task.cancel()
        return await task

    with headrace.pipe({"backend": "Gate"}) as pipe:
        assert asyncio.run(main(pipe)) is True
        gate.open()
        assert pipe({"data": "after"})["result"] == "after"
        counts = node(pipe)
        assert counts["failed"] == {"cancelled": 3}
        assert gate.batches == [[0], ["after"]]


AT_THE_GATE = {"backend": "Gate"}
BEFORE_THE_GATE = {"first": {"backend": "Identity", "next": "main"}, "main": AT_THE_GATE}


@pytest.mark.parametrize("config", [{"main": AT_THE_GATE}, BEFORE_THE_GATE], ids=["one", "two"])
def test_a_coroutine_cancelled_after_its_request_expired_on_a_backend_is_abandoned(gate, config):
    async def main(pipe):
        task = asyncio.ensure_future(abandoned_when_cancelled(pipe, {"data": 1}))
        await asyncio.to_thread(gate.wait_entered)
        ((entry, scheduler),) = internals.open_entries(pipe)
        internals.expire(scheduler, entry)  # and the task has not heard of it
        task.cancel()
        return await task

    with headrace.pipe(config) as pipe:
        assert asyncio.run(main(pipe)) is True
        gate.open()


# The bound of the queue.


def test_wait_blocks_submit_until_there_is_room_first_come_first_served(gate, client, waiting):
    with headrace.pipe({"backend": "Gate", "queue_size": 1}) as pipe:
        running = gate.entered(pipe.submit({"data": "running"}))
        pipe.submit({"data": 0})
        blocked = []
        for k in (1, 2, 3):
            blocked.append(client(pipe.submit, {"data": k}))
            waiting(pipe, 1 + k)
        assert all(c.is_alive() for c in blocked)
        gate.open()
        assert running.result(timeout=60)
        for k, one in enumerate(blocked, 1):
            assert one.outcome().result(timeout=60)["result"] == k
        assert gate.batches == [["running"], [0], [1], [2], [3]]


def test_waiting_for_room_counts_against_the_deadline(gate, client):
    with headrace.pipe({"backend": "Gate", "queue_size": 1}) as pipe:
        gate.entered(pipe.submit({"data": "running"}))
        pipe.submit({"data": "queued"})
        late = pipe.submit({"data": "late"}, timeout=0.05)
        assert isinstance(late.exception(timeout=60), DeadlineExceededError)
        with pytest.raises(DeadlineExceededError):
            pipe({"data": "late"}, timeout=0.05)
        gate.open()


# Statistics.


def test_statistics_survive_json_and_have_the_promised_shape(gate):
    gate.shut = False
    with headrace.pipe({"backend": "Gate", "max": 4, "instance_num": 2}) as pipe:
        pipe([{"data": k} for k in range(8)])
        pipe({"data": 1})
        stats = pipe.stats()
    assert json.loads(json.dumps(stats)) == stats
    assert stats["state"] == "ready"
    counts = stats["nodes"]["main"]
    assert set(counts) >= {
        "waiting",
        "submitted",
        "ok",
        "failed",
        "batches",
        "batch_size",
        "queue_ms",
        "forward_ms",
        "instances",
    }
    assert set(counts["batch_size"]) == {"mean", "histogram"}
    assert set(counts["queue_ms"]) == set(counts["forward_ms"]) == {"mean", "p50", "p90", "p99"}
    assert counts["submitted"] == counts["ok"] == 9
    histogram = counts["batch_size"]["histogram"]
    assert sum(int(size) * times for size, times in histogram.items()) == 9
    assert sum(histogram.values()) == counts["batches"]
    assert counts["batch_size"]["mean"] == 9 / counts["batches"]
    assert sum(i["batches"] for i in counts["instances"]) == counts["batches"]
    for index, instance in enumerate(counts["instances"]):
        assert instance["index"] == index
        assert set(instance) >= {"index", "device", "busy", "batches", "errors", "alive"}
        assert (instance["busy"], instance["alive"], instance["errors"]) == (False, True, 0)


# A future in a coroutine, and a call that stops its event loop.


def test_a_future_can_be_awaited():
    async def main(pipe):
        one = pipe.submit({"data": 1})
        assert (await one)["result"] == (await one)["result"] == 1
        both = await asyncio.gather(*pipe.submit([{"data": 2}, {"data": 3}]))
        with pytest.raises(InputError):
            await pipe.submit({})
        return [request["result"] for request in both]

    with headrace.pipe({"backend": "Identity"}) as pipe:
        assert asyncio.run(main(pipe)) == [2, 3]


WARNS = """
import asyncio, warnings
import headrace

async def main(pipe):
    await pipe.call_async({{"data": 1}})
    await pipe.submit({{"data": 1}})
    for _ in range(3):
        {way}  # the line that it names

with warnings.catch_warnings(record=True) as found, headrace.pipe({{"backend": "Identity"}}) as pipe:
    warnings.simplefilter("always")
    pipe({{"data": 1}})
    asyncio.run(main(pipe))
for one in found:
    print(one.category.__name__, one.lineno, one.message)
"""


@pytest.mark.parametrize(
    "way",
    ['pipe({"data": 1})', 'pipe([{"data": 1}])', 'pipe({"data": 1}, timeout=60)'],
    ids=["call", "list", "timeout"],
)
def test_a_blocking_call_in_a_coroutine_warns_once(way):
    program = WARNS.format(way=way)
    done = run_process([sys.executable, "-c", program], timeout=60, check=True)
    (said,) = done.stdout.splitlines()
    assert said.startswith("RuntimeWarning 9 ")
    assert "await pipe.call_async(" in said
