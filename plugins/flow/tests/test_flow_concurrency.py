"""`Concurrency`: so many batches at a time, none lost, no thread that waits, each node in its turn."""

from __future__ import annotations

import random
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import ClassVar

import pytest
from flow_helpers import WAIT_S, wait_until

import headrace
from headrace import errors


class LimitedRuns(headrace.Backend):
    """Counts how many batches run at a time, each until the test lets one go on."""

    max = 8
    lock: ClassVar[threading.Lock]
    runs: ClassVar[list[list[object]]]
    running: ClassVar[int]
    most: ClassVar[int]
    begun: ClassVar[threading.Semaphore]
    leave: ClassVar[threading.Semaphore]

    @classmethod
    def reset(cls):
        cls.lock, cls.runs, cls.running, cls.most = threading.Lock(), [], 0, 0
        cls.begun, cls.leave = threading.Semaphore(0), threading.Semaphore(0)

    def forward(self, batch):
        cls = LimitedRuns
        with cls.lock:
            cls.running += 1
            cls.most = max(cls.most, cls.running)
            cls.runs.append([one["data"] for one in batch])
        cls.begun.release()
        assert cls.leave.acquire(timeout=WAIT_S)
        with cls.lock:
            cls.running -= 1
        for one in batch:
            if one["data"] == "bad":
                raise ValueError("no")
            one["result"] = one["data"]


@pytest.fixture(autouse=True)
def runs():
    LimitedRuns.reset()
    headrace.register("LimitedRuns", LimitedRuns, replace=True)
    yield LimitedRuns
    LimitedRuns.leave.release(10_000)


def begun():
    assert LimitedRuns.begun.acquire(timeout=WAIT_S)


def nodes(count, backend="Concurrency(gpu,most=1)[LimitedRuns]", **keys):
    return {f"n{k}": {"backend": backend, **keys} for k in range(count)}


def send(pipe, node, data, **more):
    return pipe.submit({"data": data, "node_name": node}, **more)


def waiting(pipe, count):
    def holds():
        found = pipe.stats()
        kept = sum(one["waiting"] for one in found["nodes"].values())
        return found["concurrency"]["gpu"]["waiting"] == count == kept and not any(
            one["busy"] for one in found["nodes"]["n1"]["instances"]
        )

    wait_until(holds)


def results(futures):
    return [one.result(WAIT_S)["result"] for one in futures]


def test_a_node_waits_for_another_with_no_thread_and_no_instance(runs):
    with headrace.pipe(nodes(2)) as pipe:
        first = send(pipe, "n0", "first")
        begun()
        others = [send(pipe, "n1", k) for k in range(5)]
        waiting(pipe, 5)  # which says that no instance of n1 is busy
        assert pipe.stats()["concurrency"]["gpu"]["running"] == 1
        runs.leave.release(100)
        assert results([first, *others]) == ["first", *range(5)]
        assert runs.most == 1
        found = pipe.stats()["concurrency"]["gpu"]
        assert (found["running"], found["most"], found["waiting"]) == (0, 1, 0)
        assert found["batches"] == len(runs.runs)


def test_those_that_wait_share_batches_the_oldest_first(runs):
    with headrace.pipe(nodes(2, max=4)) as pipe:
        first = send(pipe, "n0", "first")
        begun()
        others = []
        for k in range(9):
            others.append(send(pipe, "n1", k))
            waiting(pipe, k + 1)  # each has come alone
        runs.leave.release(100)
        assert results([first, *others]) == ["first", *range(9)]
        assert runs.runs[1] == [0, 1, 2, 3]
        assert runs.runs[2] == [4, 5, 6, 7]
        assert runs.runs[3] == [8]


def test_nodes_come_in_turn(runs):
    with headrace.pipe(nodes(3, max=1)) as pipe:
        futures = [send(pipe, "n0", "n0")]
        begun()
        for k, node in enumerate(["n1", "n1", "n1", "n2", "n2", "n2"]):
            futures.append(send(pipe, node, node))
            waiting(pipe, k + 1)
        runs.leave.release(100)
        results(futures)
        assert [one for (one,) in runs.runs] == ["n0", "n1", "n2", "n1", "n2", "n1", "n2"]


def test_as_many_run_as_may(runs):
    with headrace.pipe(nodes(4, "Concurrency(gpu,most=2)[LimitedRuns]")) as pipe:
        futures = [send(pipe, f"n{k}", k) for k in range(4)]
        begun()
        begun()
        wait_until(lambda: pipe.stats()["concurrency"]["gpu"]["waiting"] == 2)
        assert runs.running == 2
        runs.leave.release(100)
        assert results(futures) == [0, 1, 2, 3]
        assert runs.most == 2


@pytest.mark.parametrize("data", ["bad", "good"])
def test_a_batch_that_fails_or_is_given_up_lets_the_next_run(runs, data):
    with headrace.pipe(nodes(2)) as pipe:
        first = send(pipe, "n0", data)
        begun()
        later = send(pipe, "n1", "later")
        waiting(pipe, 1)
        if data == "good":
            first.cancel()
        runs.leave.release(100)
        assert later.result(WAIT_S)["result"] == "later"


@pytest.mark.parametrize("leaves", [[0], [2], [0, 1], [1, 2], [0, 1, 2]])
def test_who_waits_may_leave_and_blocks_nobody(runs, leaves):
    with headrace.pipe(nodes(3)) as pipe:
        first = send(pipe, "n0", "first")
        begun()
        others = [send(pipe, "n1", k) for k in range(3)]
        waiting(pipe, 3)
        last = send(pipe, "n2", "last")
        waiting(pipe, 4)
        for place in leaves:
            assert others[place].cancel()
        waiting(pipe, 4 - len(leaves))
        runs.leave.release(100)
        stay = [one for k, one in enumerate(others) if k not in leaves]
        assert results([first, *stay, last])[-1] == "last"
        wait_until(lambda: pipe.stats()["concurrency"]["gpu"]["running"] == 0)


def test_a_deadline_ends_what_waits(runs):
    with headrace.pipe(nodes(2)) as pipe:
        first = send(pipe, "n0", "first")
        begun()
        over = send(pipe, "n1", "over", timeout=0.01)
        assert isinstance(over.exception(WAIT_S), errors.DeadlineExceededError)
        waiting(pipe, 0)
        runs.leave.release(100)
        assert results([first, send(pipe, "n1", "next")]) == ["first", "next"]
        assert ["over"] not in runs.runs


def test_a_close_that_drains_waits_for_all(runs):
    with headrace.pipe(nodes(2)) as pipe:
        futures = [send(pipe, "n0", "first")]
        begun()
        futures += [send(pipe, "n1", k) for k in range(3)]
        waiting(pipe, 3)
        runs.leave.release(100)
    assert results(futures) == ["first", 0, 1, 2]


def test_pipelines_share_a_limit_where_they_say_so(runs):
    backend = "Concurrency(gpu,most=1,shared=true)[LimitedRuns]"
    with ExitStack() as stack:
        one, two = (stack.enter_context(headrace.pipe({"backend": backend})) for _ in range(2))
        apart = stack.enter_context(headrace.pipe({"backend": backend.replace("true", "false")}))
        first = one.submit({"data": 1})
        begun()
        second = two.submit({"data": 2})
        wait_until(lambda: two.stats()["concurrency"]["gpu"]["waiting"] == 1)
        third = apart.submit({"data": 3})
        begun()
        assert runs.running == 2
        assert two.stats()["concurrency"] == one.stats()["concurrency"]
        runs.leave.release(100)
        assert results([first, second, third]) == [1, 2, 3]
    with headrace.pipe({"backend": backend.replace("most=1", "most=3")}) as pipe:
        assert pipe.stats()["concurrency"]["gpu"]["most"] == 3, "the pipelines before are closed"


@pytest.mark.parametrize("other", ["gpu,most=2", "gpu,most=1,shared=true"])
def test_two_sizes_of_one_name_are_refused(other):
    config = nodes(1) | {"other": {"backend": f"Concurrency({other})[LimitedRuns]"}}
    with pytest.raises(errors.SetupError, match="Concurrency 'gpu' has most = "):
        headrace.pipe(config).__enter__()


@pytest.mark.parametrize("keys", [{"max": 1}, {"max": 4}, {"max": 4, "instance_num": 2}])
@pytest.mark.parametrize("most", [1, 2])
def test_under_load_every_request_runs_once_and_never_too_many(keys, most):
    """Against a loop: everyone who stays gets its own answer, and who leaves blocks nobody."""
    lock, state = threading.Lock(), {"running": 0, "most": 0}
    ran = []

    class LimitedSquares(headrace.Backend):
        max = 8

        def forward(self, batch):
            with lock:
                state["running"] += 1
                state["most"] = max(state["most"], state["running"])
                ran.extend(one["id"] for one in batch)
            for one in batch:
                one["result"] = one["data"] ** 2
            with lock:
                state["running"] -= 1

    headrace.register("LimitedSquares", LimitedSquares, replace=True)
    chance = random.Random(most)
    plans = [[(chance.randrange(3), chance.random() < 0.1) for _ in range(60)] for _ in range(6)]

    def client(number):
        futures = []
        for k, (node, leaves) in enumerate(plans[number]):
            request = {"data": k, "node_name": f"n{node}", "id": (number, k)}
            futures.append((k, pipe.submit(request), leaves))
        stay = [(k, one) for k, one, leaves in futures if not (leaves and one.cancel())]
        assert [one.result(WAIT_S)["result"] for _, one in stay] == [k * k for k, _ in stay]

    backend = f"Concurrency(gpu,most={most})[LimitedSquares]"
    with (
        headrace.pipe(nodes(3, backend, **keys)) as pipe,
        ThreadPoolExecutor(len(plans)) as pool,
    ):
        list(pool.map(client, range(len(plans))))
        wait_until(lambda: pipe.stats()["concurrency"]["gpu"]["running"] == 0)
        assert pipe.stats()["concurrency"]["gpu"]["waiting"] == 0
    assert 1 <= state["most"] <= most
    assert len(ran) == len(set(ran))
