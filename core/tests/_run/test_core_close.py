"""Closing: what is open runs or fails, and close always comes back."""

from __future__ import annotations

import asyncio
import copy
import gc
import pickle
import sys
import threading
import types
import weakref
from functools import partial

import pytest
from internals import CloseStack
from processes import run_process

import headrace
from headrace.errors import ClosedError
from headrace_testing import Blocking

pytestmark = pytest.mark.usefixtures("shortcut")

TWO_ROOTS = {"a": {"backend": "Identity"}, "b": {"backend": "Identity"}}


def test_close_with_drain_runs_what_waits_and_refuses_newcomers_at_once(
    gate, client, waiting, until
):
    pipe = headrace.pipe({"backend": "Gate"})
    first = gate.entered(client(pipe, {"data": "first"}))
    second = client(pipe, {"data": "second"})
    waiting(pipe, 1)
    future = pipe.submit({"data": "third"})
    closing = client(pipe.close)
    until(lambda: pipe.stats()["state"] == "closing")
    assert not pipe.ready
    with pytest.raises(ClosedError):
        pipe({"data": 1})
    with pytest.raises(ClosedError):
        pipe.submit({"data": 1})
    gate.open()
    closing.outcome()
    assert future.done()
    assert first.outcome()["result"] == "first"
    assert second.outcome()["result"] == "second"
    assert future.result()["result"] == "third"
    assert gate.closed == 1
    assert pipe.stats()["state"] == "closed"


@pytest.mark.parametrize("drain", [None, "", [], "yes", 1])
def test_drain_is_any_truth_value(gate, drain):
    """What was no bool left the pipeline half closed, with an error about an operator."""
    pipe = headrace.pipe({"backend": "Gate"})
    running, queued = pipe.submit({"data": 0}), pipe.submit({"data": 1})
    gate.wait_entered()
    queued.add_done_callback(lambda _: gate.open())  # the running one ends after it
    if drain:
        gate.open()
    pipe.close(drain=drain)
    assert running.result()["result"] == 0
    assert pipe.stats()["state"] == "closed"
    assert (queued.exception() is None) == bool(drain)


@pytest.mark.parametrize("way", ["call", "submit"])
def test_closing_ends_the_wait_for_company(gate, client, waiting, way):
    """Nobody who could be company is let in any more; the other instance runs on."""
    config = {"backend": "Gate", "max": 4, "instance_num": 2, "batching_timeout": 3_600_000}
    pipe = headrace.pipe(config)
    running = gate.entered(pipe.submit({"data": "running"}))
    if way == "call":
        alone = client(pipe, {"data": "alone"}).outcome
    else:
        alone = pipe.submit({"data": "alone"}).result
    waiting(pipe, 1)
    closing = gate.entered(client(pipe.close))
    assert gate.batches == [["running"], ["alone"]]
    gate.open()
    closing.outcome()
    assert alone()["result"] == "alone"
    assert running.result()["result"] == "running"


def test_closing_fills_up_what_waits_for_company_below_the_min(gate):
    gate.shut = False
    config = {"backend": "Gate", "min": 2, "max": 4, "pad": True, "batching_timeout": 3_600_000}
    pipe = headrace.pipe(config)
    future = pipe.submit({"data": "alone"})
    pipe.close()
    assert future.result(0)["result"] == "alone"
    assert gate.batches == [["alone", "alone"]]


def test_close_without_drain_fails_what_waits_and_lets_what_runs_end(gate, client, waiting):
    pipe = headrace.pipe({"backend": "Gate"})
    first = gate.entered(client(pipe, {"data": "first"}))
    request = {"data": "second"}
    second = client(pipe, request)
    waiting(pipe, 1)
    future = pipe.submit({"data": "third"})
    closing = client(pipe.close, drain=False)
    with pytest.raises(ClosedError) as caught:
        second.outcome()
    assert not caught.value.abandoned
    assert request == {"data": "second"}
    assert isinstance(future.exception(timeout=60), ClosedError)
    gate.open()
    assert first.outcome()["result"] == "first"
    closing.outcome()


def test_a_request_that_waits_for_another_node_inside_a_backend_fails_as_closed(
    gate, client, until
):
    pipe = headrace.pipe(
        {"x": {"backend": "Gate"}, "a": {"backend": "S[Identity,Forward[node.x]]"}}
    )
    first = gate.entered(client(pipe, {"data": "first", "node_name": "x"}))
    second = client(pipe, {"data": "second", "node_name": "a"})
    until(lambda: pipe.stats()["nodes"]["x"]["waiting"] == 1)
    closing = client(pipe.close, drain=False)
    with pytest.raises(ClosedError):
        second.outcome()
    gate.open()
    assert first.outcome()["result"] == "first"
    closing.outcome()
    assert pipe.stats()["nodes"]["a"]["failed"] == {"closed": 1}


@pytest.mark.parametrize("way", ["call", "submit"])
@pytest.mark.parametrize("order", ["ab", "ba"])
def test_close_with_drain_waits_for_what_goes_on_to_another_node(gate, client, until, order, way):
    Blocking.reset()
    headrace.register("Blocking", Blocking, replace=True)
    nodes = {"a": {"backend": "Gate", "next": "b"}, "b": {"backend": "S[Blocking,Gate]"}}
    pipe = headrace.pipe({name: nodes[name] for name in order})
    requests = [{"data": n} for n in range(3)]
    if way == "call":
        answers = [client(pipe, request).outcome for request in requests]
    else:
        answers = [pipe.submit(request).result for request in requests]
    until(lambda: pipe.stats()["nodes"]["a"]["submitted"] == 3)
    closing = client(pipe.close)
    until(lambda: pipe.stats()["state"] != "ready")
    gate.open()
    until(lambda: pipe.stats()["nodes"]["b"]["submitted"] == 3)
    assert pipe.stats()["state"] == "closing"
    Blocking.leave.release(3)
    assert [answer()["result"] for answer in answers] == [0, 1, 2]
    closing.outcome()
    assert gate.closed == 2


@pytest.mark.parametrize("way", ["call", "timeout", "submit"])
def test_close_without_drain_fails_what_comes_to_wait_at_another_node(gate, client, way):
    Blocking.reset()
    headrace.register("Blocking", Blocking, replace=True)
    nodes = {"a": {"backend": "Blocking", "next": "b"}, "b": {"backend": "Gate", "next": "c"}}
    pipe = headrace.pipe({**nodes, "c": {"backend": "Identity"}})
    busy = gate.entered(client(pipe, {"data": "busy", "node_name": "b"}))
    request = {"data": "between"}
    if way == "submit":
        going_on = client(pipe.submit(request).result)
    else:
        going_on = client(pipe, request, timeout=60 if way == "timeout" else None)
    assert Blocking.entered.acquire(timeout=60)
    queued = pipe.submit({"data": "queued"})
    closing = client(pipe.close, drain=False)
    assert isinstance(queued.exception(timeout=60), ClosedError)
    Blocking.leave.release()
    with pytest.raises(ClosedError) as caught:
        going_on.outcome()
    assert not caught.value.abandoned
    assert request == {"data": "between"}
    gate.open()
    assert busy.outcome()["result"] == "busy"
    closing.outcome()


def test_close_fails_those_who_wait_for_room(gate, client, waiting):
    pipe = headrace.pipe({"main": {"backend": "Gate", "queue_size": 1}})
    running = gate.entered(pipe.submit({"data": "running"}))
    queued = pipe.submit({"data": "queued"})
    submitting = client(pipe.submit, {"data": "outside"})
    waiting(pipe, 2)
    calling = client(pipe, {"data": "outside too"})
    waiting(pipe, 3)
    closing = client(pipe.close)
    assert isinstance(submitting.outcome().exception(timeout=60), ClosedError)
    with pytest.raises(ClosedError):
        calling.outcome()
    gate.open()
    closing.outcome()
    assert running.result()["result"] == "running"
    assert queued.result()["result"] == "queued"


@pytest.mark.parametrize("way", ["timeout", "own thread", "submit", "neighbour"])
def test_when_the_time_is_over_all_that_are_open_fail_and_close_comes_back(
    gate, client, waiting, way
):
    pipe = headrace.pipe({"backend": "OwnGate" if way == "own thread" else "Gate"})
    if way == "submit":
        waiter = client(pipe.submit({"data": "hung"}).result, timeout=60)
    else:
        waiter = client(pipe, {"data": "hung"}, timeout=60 if way == "timeout" else None)
    gate.wait_entered()
    queued = pipe.submit({"data": "queued"})
    pipe.close(timeout=0.05)
    assert pipe.stats()["state"] == "closed"
    assert isinstance(queued.exception(timeout=60), ClosedError)
    assert not queued.exception().abandoned
    if way != "neighbour":  # whose own thread is inside the forward that hangs
        with pytest.raises(ClosedError) as caught:
            waiter.outcome()
        assert caught.value.abandoned
    assert gate.closed == 0
    gate.open()
    waiter.join(60)
    assert not waiter.is_alive()


def test_an_instance_that_hung_is_closed_when_its_batch_ends_at_last(gate, client):
    pipe = headrace.pipe({"backend": "OwnGate", "instance_num": 2})
    hung = gate.entered(client(pipe, {"data": "hung"}))
    pipe.close(timeout=0)
    assert gate.closed == 1
    with pytest.raises(ClosedError):
        hung.outcome()
    gate.open()
    gate.wait_closed(2)


def test_an_instance_whose_batch_ends_while_the_others_are_closed_is_closed_too(until):
    ends, closed = threading.Event(), []

    @headrace.register("Hung")
    class Hung(headrace.Backend):
        def forward(self, batch):
            assert ends.wait(60)

        def close(self):
            closed.append("hung")

    @headrace.register("Frees")
    class Frees(headrace.Backend):
        def forward(self, batch):
            pass

        def close(self):
            ends.set()
            until(lambda: not pipe.stats()["nodes"]["a"]["instances"][0]["busy"])
            closed.append("frees")

    pipe = headrace.pipe({"a": {"backend": "Hung"}, "b": {"backend": "Frees"}})
    future = pipe.submit({"data": 1, "node_name": "a"})
    until(lambda: pipe.stats()["nodes"]["a"]["instances"][0]["busy"])
    pipe.close(timeout=0)
    with pytest.raises(ClosedError):
        future.result(60)
    until(lambda: len(closed) == 2)
    assert closed == ["frees", "hung"]


@pytest.mark.parametrize("backend", ["Gate", "OwnGate", "S[BackgroundThread[Gate]]"])
@pytest.mark.parametrize("way", ["call", "submit"])
def test_close_from_a_thread_that_runs_a_batch_refuses_entry_and_returns_at_once(
    gate, backend, way
):
    gate.shut = False
    pipe = headrace.pipe({"backend": backend})
    gate.calls["close"] = pipe.close
    if way == "call":
        assert pipe({"data": "close"})["result"] == "close"
    else:
        assert pipe.submit({"data": "close"}).result(timeout=60)["result"] == "close"
    with pytest.raises(ClosedError):
        pipe({"data": 1})
    pipe.close()  # waits for what the other one has put off
    assert pipe.stats()["state"] == "closed"
    assert gate.closed == 1


def test_close_from_a_callback_comes_back(gate):
    gate.shut = False
    pipe = headrace.pipe({"backend": "Gate"})
    ended = threading.Event()

    def close(future):
        pipe.close()
        ended.set()

    pipe.submit({"data": 1}).add_done_callback(close)
    assert ended.wait(60)
    assert pipe.stats()["state"] == "closed"


def test_with_closes_with_drain_and_without_it_on_an_exception(gate, client, waiting):
    with pytest.raises(ZeroDivisionError), headrace.pipe({"backend": "Gate"}) as pipe:  # noqa: PT012
        running = gate.entered(pipe.submit({"data": 1}))
        queued = pipe.submit({"data": 2})
        letting = client(lambda: (queued.exception(timeout=60), gate.open()))
        raise ZeroDivisionError
    letting.outcome()
    assert isinstance(queued.exception(), ClosedError)
    assert running.result()["result"] == 1


def test_the_last_reference_dropped_drains_and_closes(gate):
    pipe = headrace.pipe({"backend": "Gate"})
    gone = weakref.ref(pipe)
    futures = [pipe.submit({"data": k}) for k in range(3)]
    gate.wait_entered()
    del pipe
    gc.collect()
    assert gone() is None
    gate.open()
    assert [future.result(timeout=60)["result"] for future in futures] == [0, 1, 2]
    gate.wait_closed()


@pytest.mark.parametrize("timeout", [float("nan"), "1", True])
def test_a_timeout_that_is_no_time_is_refused_by_all_methods_alike(gate, timeout):
    with headrace.pipe({"backend": "Gate"}) as pipe:
        for method in (
            pipe.close,
            partial(pipe, {"data": 0}),
            partial(pipe.submit, {"data": 0}),
        ):
            with pytest.raises(TypeError, match="timeout is a number of seconds, got"):
                method(timeout=timeout)
        with pytest.raises(ValueError, match="timeout is at least 0, got -1"):
            pipe.close(timeout=-1)
        assert pipe.ready


def test_a_pipeline_is_not_pickled_and_its_configuration_is(gate):
    gate.shut = False
    with headrace.pipe({"backend": "Gate", "max": 3}) as pipe:
        for way in (pickle.dumps, copy.copy, copy.deepcopy):
            with pytest.raises(TypeError, match="config"):
                way(pipe)
        again = pickle.loads(pickle.dumps(pipe.config))
        assert again == pipe.config
        with headrace.pipe(again) as second:
            assert second({"data": 1})["result"] == 1


@pytest.mark.parametrize("nodes", [{"b": {"backend": "Identity"}}, TWO_ROOTS])
def test_a_request_to_a_closed_pipeline_is_counted_whichever_way_it_came(nodes):
    pipe = headrace.pipe(nodes)
    pipe.close()
    ways = (
        pipe,
        lambda one: pipe(one, timeout=60),
        lambda one: pipe([one]),
        pipe.submit,
        lambda one: pipe.submit([one]),
        lambda one: asyncio.run(pipe.call_async(one)),
    )
    for count, way in enumerate(ways, 1):
        request = {"data": 1, "result": 2, "node_name": "b"}
        with pytest.raises(ClosedError):
            way(request)
        assert "result" not in request
        found = pipe.stats()["nodes"]["b"]
        assert (found["submitted"], found["ok"], found["failed"]) == (count, 0, {"closed": count})


EACH = {
    "a": {"backend": "Identity", "each": "boxes", "next": "b"},
    "b": {"backend": "Identity", "max": 4},
}


@pytest.mark.parametrize("nodes", [{"a": {"backend": "Identity", "each": "boxes"}}, EACH])
@pytest.mark.parametrize("timeout", [None, 60])
def test_a_request_without_elements_is_refused_after_close_like_others(nodes, timeout):
    """It enters no queue, which would refuse it, and went on to the backend of the next node."""
    pipe = headrace.pipe(nodes)
    request = {"data": 0, "boxes": [], "result": "old"}
    assert pipe(request, timeout=timeout)["result"] == []
    pipe.close()
    with pytest.raises(ClosedError):
        pipe(request, timeout=timeout)
    assert request == {"data": 0, "boxes": []}
    entered = pipe.stats()["nodes"]["a"]
    assert (entered["submitted"], entered["failed"]) == (1, {"closed": 1})


def test_a_request_whose_elements_all_fail_before_a_queue_is_refused_after_close():
    nodes = {
        "a": {"backend": "Identity", "each": "boxes", "each_errors": "none", "next": "b"},
        "b": {"backend": "Identity", "map": "a[result:data]"},
    }
    pipe = headrace.pipe(nodes)
    request = {"data": 0, "boxes": [1, 2], "request_size": 0}
    assert pipe(request)["result"] == [None, None]
    pipe.close()
    with pytest.raises(ClosedError):
        pipe(request)
    assert pipe.stats()["nodes"]["b"]["submitted"] == 1


def test_async_with_closes_without_blocking_the_event_loop(gate):
    async def main():
        async with headrace.pipe({"backend": "Gate"}) as pipe:
            task = asyncio.create_task(pipe.call_async({"data": 1}))
            await asyncio.to_thread(gate.wait_entered)
            # The end of the block waits for the batch, which only this loop lets go.
            asyncio.get_running_loop().call_later(0, gate.let_go)
        assert (await task)["result"] == 1
        with pytest.raises(ClosedError):
            await pipe.call_async({"data": 1})

    asyncio.run(asyncio.wait_for(main(), 60))


def test_async_with_that_an_error_leaves_does_not_drain(gate):
    async def go_once_it_closes(pipe):
        while pipe.stats()["state"] == "ready":  # else the runner could take the second request too
            await asyncio.sleep(0)
        gate.let_go()

    async def main(tasks):
        async with headrace.pipe({"backend": "Gate"}) as pipe:
            tasks.append(asyncio.create_task(pipe.call_async({"data": 1})))
            await asyncio.to_thread(gate.wait_entered)
            tasks.append(asyncio.create_task(pipe.call_async({"data": 2})))
            await asyncio.sleep(0)
            tasks.append(asyncio.create_task(go_once_it_closes(pipe)))
            raise ZeroDivisionError

    async def both():
        tasks = []
        with pytest.raises(ZeroDivisionError):
            await main(tasks)
        assert (await tasks[0])["result"] == 1
        with pytest.raises(ClosedError):
            await tasks[1]

    asyncio.run(asyncio.wait_for(both(), 60))


# The end of the interpreter.

ENDS = """
import atexit
import threading
import _thread

import headrace


class Closes(headrace.Backend):
    def forward(self, batch):
        for request in batch:
            request["result"] = request["data"]

    def close(self):
        print("closed", flush=True)


def refuse(*_):
    raise RuntimeError("can't create new thread at interpreter shutdown")


def no_more_threads():
    _thread.start_new_thread = threading._start_new_thread = refuse
    for name in ("_start_new_thread", "_start_joinable_thread"):
        if hasattr(threading, name):
            setattr(threading, name, refuse)


headrace.register("Closes", Closes)
pipes = [headrace.pipe({"backend": "Closes"}) for _ in range(2)]
assert [pipe({"data": 1})["result"] for pipe in pipes] == [1, 1]
atexit.register(no_more_threads)  # before headrace's own: the last registered comes first
"""


def test_backends_are_closed_at_exit_where_no_thread_can_be_started():
    run = run_process([sys.executable, "-c", ENDS], timeout=300)
    assert (run.stdout, run.returncode) == ("closed\nclosed\n", 0), run.stderr


def test_two_threads_that_close_the_same_parts_lose_none_of_them(client):
    """The first hangs in the newest part; the second goes on with the rest, and is overtaken there."""
    closed, hangs, goes_on = [], threading.Event(), threading.Event()

    def newest():
        if not hangs.is_set():
            hangs.set()
            assert goes_on.wait(60)

    def middle():
        if threading.current_thread() is not first:
            goes_on.set()
            first.outcome()

    parts = CloseStack()
    for close in (lambda: closed.append("oldest"), middle, newest):
        parts.add(types.SimpleNamespace(close=close))
    first = client(parts.close)
    assert hangs.wait(60)
    assert parts.close() == []
    assert closed == ["oldest"]
    assert first.outcome() == []
