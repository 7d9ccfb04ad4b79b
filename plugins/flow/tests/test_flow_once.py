"""`Once`: equal requests in flight run once; nobody gets what is another's, nobody is lost."""

from __future__ import annotations

import random
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import ClassVar

import numpy as np
import pytest
from flow_helpers import WAIT_S, wait_until

import headrace
from headrace import errors


class OnceRuns(headrace.Backend):
    """Waits until the test lets it go on, and writes an array that says how often it has run.

    ``data`` that begins with ``bad`` fails; with ``patient`` it fails where nobody waits any more.
    """

    max = 8
    reads = ("data",)
    runs: ClassVar[list[list[object]]] = []
    begun: ClassVar[threading.Semaphore]
    leave: ClassVar[threading.Event]

    def init(self, options, context):
        self.context = context

    def forward(self, batch):
        self.runs.append([one["data"] for one in batch])
        number = len(self.runs)
        self.begun.release()
        assert self.leave.wait(WAIT_S)
        outcomes = []
        for one in batch:
            text = str(one["data"])
            if text.startswith("bad"):
                outcomes.append(ValueError(f"no {number}"))
            elif text.startswith("patient") and self.context.request.unwanted(
                self.context.request.keep(one)
            ):
                outcomes.append(ValueError("given up"))
            else:
                outcomes.append(None)
                self.write(one, number)
        return outcomes

    def write(self, request, number):
        request["result"] = np.full(3, number)


class OnceTwoKeys(OnceRuns):
    writes = ("result", "score")

    def write(self, request, number):
        request["result"], request["score"] = np.full(3, number), number


class OnceObjects(OnceRuns):
    def write(self, request, number):
        request["result"] = threading.Lock()


class OnceFours(OnceRuns):
    min = 4


@pytest.fixture(autouse=True)
def runs():
    OnceRuns.runs.clear()
    OnceRuns.begun, OnceRuns.leave = threading.Semaphore(0), threading.Event()
    for cls in (OnceRuns, OnceTwoKeys, OnceObjects, OnceFours):
        headrace.register(cls.__name__, cls, replace=True)
    yield OnceRuns.runs
    OnceRuns.leave.set()


def begun():
    assert OnceRuns.begun.acquire(timeout=WAIT_S)


def in_flight(pipe, data, count):
    """Send equal requests: the first runs, the others are kept; return their futures."""
    futures = [pipe.submit({"data": data})]
    begun()
    futures += [pipe.submit({"data": data}) for _ in range(count - 1)]
    kept(pipe, count - 1)
    return futures


def kept(pipe, count):
    """Wait until so many requests wait for an equal one."""

    def holds():
        node = pipe.stats()["nodes"]["main"]
        return node["waiting"] == count and node["batches"] > count

    wait_until(holds)


def stats(pipe):
    found = pipe.stats()["once"]["main"]
    return found["ran"], found["shared"], found["unshared"]


def pipeline(backend="Once[OnceRuns]", **keys):
    return headrace.pipe({"backend": backend, "instance_num": 2, "max": 1, **keys})


@pytest.mark.parametrize("backend", ["OnceRuns", "OnceTwoKeys"])
def test_equal_requests_in_flight_run_once_and_each_has_its_own_answer(runs, backend):
    with pipeline(f"Once[{backend}]") as pipe:
        futures = in_flight(pipe, "x", 5)
        OnceRuns.leave.set()
        answers = [one.result(WAIT_S) for one in futures]
        assert runs == [["x"]]
        assert [one["result"].tolist() for one in answers] == [[1] * 3] * 5
        assert len({one["result"].ctypes.data for one in answers}) == 5
        if backend == "OnceTwoKeys":
            assert [one["score"] for one in answers] == [1] * 5
        wait_until(lambda: stats(pipe) == (1, 4, 0))
        assert pipe({"data": "x"})["result"][0] == 2, "what has ended is not kept"


def test_equal_requests_of_a_batch_run_once(runs):
    OnceRuns.leave.set()
    with headrace.pipe({"backend": "Once[OnceTwoKeys]", "max": 8}) as pipe:
        answers = pipe([{"data": one} for one in "abaab"])
        assert runs == [["a", "b"]]
        assert [one["score"] for one in answers] == [1] * 5
        assert len({one["result"].ctypes.data for one in answers}) == 5
        assert stats(pipe) == (2, 3, 0)


def test_the_error_of_a_run_is_that_of_all_who_waited(runs):
    with pipeline() as pipe:
        futures = in_flight(pipe, "bad", 3)
        OnceRuns.leave.set()
        found = [one.exception(WAIT_S) for one in futures]
        assert [type(one) for one in found] == [errors.BackendError] * 3
        assert all("no 1" in str(one) for one in found)
        assert len({id(one) for one in found}) == 3
        assert len(runs) == 1
    with (
        headrace.pipe({"backend": "Once[OnceRuns]", "max": 4}) as pipe,
        pytest.raises(errors.RequestsFailed) as caught,
    ):
        pipe([{"data": one} for one in ("bad", "good", "bad")])
    assert [error is not None for error in caught.value.errors] == [True, False, True]
    assert runs == [["bad"], ["bad", "good"]]


def test_who_waits_may_leave_and_the_others_get_the_answer(runs):
    with pipeline() as pipe:
        futures = in_flight(pipe, "x", 4)
        assert futures[2].cancel()
        OnceRuns.leave.set()
        for place in (0, 1, 3):
            assert futures[place].result(WAIT_S)["result"].tolist() == [1] * 3
        assert futures[2].cancelled()
        assert runs == [["x"]]


def test_the_first_may_leave_and_its_run_is_that_of_the_others(runs):
    with pipeline() as pipe:
        first = pipe.submit({"data": "x"}, timeout=3600)
        begun()
        others = [pipe.submit({"data": "x"}) for _ in range(2)]
        kept(pipe, 2)
        first.cancel()
        OnceRuns.leave.set()
        assert [one.result(WAIT_S)["result"].tolist() for one in others] == [[1] * 3] * 2
        assert runs == [["x"]]


@pytest.mark.parametrize("error", [ValueError("given up"), errors.InstanceLostError("gone")])
def test_a_run_that_the_first_gave_up_is_handed_to_the_next(error):
    """On the contexts themselves: what the first has given up is nobody else's error."""
    from headrace_flow.caching.once import Once

    OnceRuns.leave.set()
    store = headrace.InitContext.Stores()
    resumed, unwanted, ended = [], [], []
    first, second = Once(), Once()
    during = []

    class OnceGivesUp(headrace.Backend):
        def forward(self, batch):
            for one in during:
                assert second([one]) == [headrace.PENDING]
            during.clear()
            unwanted.append(batch[0])
            return [error] if batch[0]["first"] else None

    class Held:
        def __init__(self, request):
            self.request, self.notes = request, {}

    handles = {}  # by the identity of the request, of which each is sent once here

    def keep(request):
        return handles.setdefault(id(request), Held(request))

    for one in (first, second):
        child = OnceGivesUp()
        child.init(OnceGivesUp.Options(), headrace.InitContext())
        context = headrace.InitContext(
            children=(child,),
            store=store,
            request=headrace.InitContext.Requests(
                keep=keep,
                kept=lambda request: handles.get(id(request)),
                resume=lambda handle: resumed.append(handle.request) or True,
                on_end=lambda handle, function: ended.append(function) or True,
                unwanted=lambda handle: any(handle.request is one for one in unwanted),
            ),
        )
        one.init(Once.Options(), context)
        one._is_last = True
    waits = [{"data": "x", "first": False} for _ in range(2)]
    during.extend(waits)
    (outcome,) = first([{"data": "x", "first": True}])
    assert str(error) in str(outcome)
    assert [id(one) for one in resumed] == [id(waits[0])]
    for one in ended:  # it has an outcome before it runs: the one after it is next
        one(keep(waits[0]))
    assert [id(one) for one in resumed] == [id(one) for one in waits]
    assert second([waits[1]]) is None
    assert len(unwanted) == 2
    assert second([{"data": "x", "first": False}]) is None, "nothing is in flight any more"


def test_what_the_first_gave_up_runs_for_the_next(runs):
    with pipeline() as pipe:
        first = pipe.stream({"data": "patient"})
        begun()
        others = [pipe.submit({"data": "patient"}) for _ in range(3)]
        kept(pipe, 3)
        first.close()  # nobody waits for the first any more, and its backend sees that
        OnceRuns.leave.set()
        assert [one.result(WAIT_S)["result"][0] for one in others] == [2] * 3
        assert len(runs) == 2


@pytest.mark.parametrize("data", ["x", (1, 2)])
def test_in_a_batch_what_cannot_be_copied_or_compared_runs_for_itself(data):
    OnceRuns.leave.set()
    with headrace.pipe({"backend": "Once[OnceObjects]", "max": 8}) as pipe:
        answers = pipe([{"data": data} for _ in range(3)])
        assert len({id(one["result"]) for one in answers}) == 3


def test_what_cannot_be_copied_runs_for_itself(runs):
    with pipeline("Once[OnceObjects]") as pipe:
        futures = in_flight(pipe, "x", 4)
        OnceRuns.leave.set()
        assert len({id(one.result(WAIT_S)["result"]) for one in futures}) == 4
        assert len(runs) == 4
        wait_until(lambda: stats(pipe) == (4, 0, 3))


def test_all_run_where_too_few_would(runs):
    OnceRuns.leave.set()
    with headrace.pipe({"backend": "Once[OnceFours]", "max": 8}) as pipe:
        answers = pipe([{"data": one} for one in "aaab"])
        assert runs == [["a", "a", "a", "b"]]
        assert [one["result"][0] for one in answers] == [1] * 4
    with headrace.pipe({"backend": "Once[OnceFours]", "max": 8, "pad": True}) as pipe:
        assert pipe({"data": "c"})["result"][0] == 2
        assert stats(pipe) == (1, 0, 0)


@pytest.mark.parametrize("keys", [{"max": 1, "instance_num": 4}, {"max": 4, "instance_num": 2}])
def test_many_threads_get_what_a_slow_loop_gives(keys):
    """Against a loop: each answer is that of its own content, whoever cancels; and equal ones share runs."""
    lock, ran = threading.Lock(), []

    def square(number):
        if number % 7 == 3:
            raise ValueError(f"no {number}")
        with lock:
            ran.append(number)
        return np.full(4, number * number)

    headrace.register("OnceSquare", square, replace=True)
    chance = random.Random(5)
    numbers = [[chance.randrange(12) for _ in range(60)] for _ in range(8)]
    leaves = [{chance.randrange(60) for _ in range(6)} for _ in numbers]

    def client(mine, left):
        seen = []
        futures = [pipe.submit({"data": number}) for number in mine]
        cancelled = {place for place in left if futures[place].cancel()}
        for place, (number, future) in enumerate(zip(mine, futures, strict=True)):
            if place in cancelled:
                continue
            if number % 7 == 3:
                assert f"no {number}" in str(future.exception(WAIT_S))
                continue
            result = future.result(WAIT_S)["result"]
            assert result.tolist() == [number * number] * 4
            result[:] = -1  # it belongs to who asked
            seen.append(result)
        return seen

    with (
        headrace.pipe({"backend": "Once[OnceSquare]", **keys}) as pipe,
        ThreadPoolExecutor(len(numbers)) as pool,
    ):
        seen = [*pool.map(client, numbers, leaves)]
        assert pipe.stats()["nodes"]["main"]["waiting"] == 0
    results = [one for mine in seen for one in mine]
    assert len({one.ctypes.data for one in results}) == len(results)
    assert len(ran) <= sum(map(len, numbers))
