"""Who runs a batch, and that nothing in a backend or a policy leaves anybody waiting."""

from __future__ import annotations

import re
import threading

import internals
import pytest
from sending import WAYS

import headrace
from headrace.errors import BackendError, BatchRangeError, ContractError, RequestsFailed, SetupError
from headrace.policies import BatchPolicy, Cut

pytestmark = pytest.mark.usefixtures("shortcut")

OWN = "called its own pipeline|calls wait for each other in a circle"
"""What a backend is told that calls its pipeline and would wait for itself."""

SOON = {"deadlock_after_s": 0.02}


def node(pipe):
    return pipe.stats()["nodes"]["main"]


@pytest.fixture(autouse=True)
def _no_others(monkeypatch):
    internals.threads_of_their_own(monkeypatch)
    internals.circles_are_looked_for_at_once(monkeypatch)


def test_a_blocking_caller_runs_its_own_request_on_an_idle_instance(gate, client):
    gate.shut = False
    with headrace.pipe({"backend": "Gate"}) as pipe:
        one = client(pipe, {"data": 1})
        one.outcome()
        other = client(pipe, {"data": 2})
        other.outcome()
        assert gate.idents == [one.ident, other.ident] or not pipe._engine.nodes[0].limits.shortcut


def test_no_caller_runs_a_batch_with_a_request_of_another(gate, client, waiting):
    with headrace.pipe({"backend": "Gate", "max": 4}) as pipe:
        first = gate.entered(pipe.submit({"data": 0}))
        callers = [client(pipe, {"data": n}) for n in range(1, 4)]
        waiting(pipe, 3)
        gate.open()
        assert [one.outcome()["result"] for one in callers] == [1, 2, 3]
        assert first.result(60)["result"] == 0
        assert not {one.ident for one in callers} & {*gate.idents}


def test_a_caller_with_a_timeout_a_future_and_a_coroutine_never_run_a_backend(gate):
    gate.shut = False
    with headrace.pipe({"backend": "Gate"}) as pipe:
        pipe({"data": 1}, timeout=60)
        pipe([{"data": 1}], timeout=60)
        pipe.submit({"data": 2}).result()
        WAYS["async"](pipe, {"data": 3})
        assert threading.get_ident() not in gate.idents
        assert len(set(gate.idents)) <= 2


def test_the_node_key_timeout_makes_runners_run_it(gate):
    gate.shut = False
    with headrace.pipe({"backend": "Gate", "timeout_ms": 20_000}) as pipe:
        pipe({"data": 1})
        assert threading.get_ident() not in gate.idents


def test_there_is_at_most_one_more_thread_than_instances(gate, until, monkeypatch):
    pool = internals.threads_of_their_own(monkeypatch)
    internals.runs_take(monkeypatch, 2.0**-14)  # after long ones other threads tell the callers
    with headrace.pipe({"backend": "Gate", "instance_num": 2}) as pipe:
        futures = [pipe.submit({"data": k}) for k in range(2)]
        gate.wait_entered(2)
        for k in range(20):
            futures.append(pipe.submit({"data": k}))
            until(lambda: pool._parked)  # else the next request may need one more
        gate.open()
        for future in futures:
            future.result(timeout=60)
        for k in range(20):
            until(lambda: pool._parked)
            pipe.submit({"data": k}).result(timeout=60)
        assert len(set(gate.idents)) <= 3


@pytest.mark.parametrize("way", ["list", "submit"])
def test_a_list_or_a_burst_keeps_all_instances_busy(gate, client, way):
    with headrace.pipe({"backend": "Gate", "instance_num": 3, "max": 2}) as pipe:
        requests = [{"data": k} for k in range(6)]
        run = client(pipe, requests) if way == "list" else None
        futures = [] if way == "list" else pipe.submit(requests)
        gate.wait_entered(3)
        assert all(i["busy"] for i in node(pipe)["instances"])
        gate.open()
        if run is not None:
            run.outcome()
        for future in futures:
            future.result(timeout=60)
        assert [r["result"] for r in requests] == list(range(6))


def test_while_all_are_busy_batches_grow(gate, client, waiting):
    with headrace.pipe({"backend": "Gate", "max": 8}) as pipe:
        first = gate.entered(client(pipe, {"data": "first"}))
        others = []
        for k in range(5):
            others.append(client(pipe, {"data": k}))
            waiting(pipe, k + 1)
        gate.open()
        first.outcome()
        assert [c.outcome()["result"] for c in others] == list(range(5))
        assert gate.batches == [["first"], [0, 1, 2, 3, 4]]


def test_a_foreign_batch_of_a_slow_backend_is_not_run_by_a_caller_whose_answer_is_there(
    gate, client, waiting
):
    with headrace.pipe({"backend": "Gate"}) as pipe:
        first = gate.entered(client(pipe, {"data": "first"}))
        second = client(pipe, {"data": "second"})
        waiting(pipe, 1)
        gate.let_go()
        first.outcome()  # though the second still runs
        gate.wait_entered()
        gate.let_go()
        second.outcome()
        assert first.ident not in gate.idents[1:]


@pytest.mark.parametrize("backend", ["OwnGate", "BackgroundThread[Gate]", "S[Gate,OwnGate]"])
def test_a_backend_that_owns_its_thread_is_run_by_it(gate, backend):
    gate.shut = False
    with headrace.pipe({"backend": backend, "instance_num": 2}) as pipe:
        pipe({"data": 1})
        pipe([{"data": k} for k in range(6)])
        pipe.submit({"data": 2}).result()
        assert len(set(gate.idents)) <= 2
        assert threading.get_ident() not in gate.idents


@pytest.mark.parametrize("way", ["call", "list", "timeout", "submit"])
def test_a_lingering_batch_leaves_when_its_time_is_over_whoever_waits(gate, client, way):
    gate.shut = False
    hold = threading.Event()
    gate.calls["first"] = lambda: hold.wait(60)
    config = {"backend": "Gate", "instance_num": 2, "max": 8, "batching_timeout": 30}
    with headrace.pipe(config) as pipe:
        first = gate.entered(client(pipe, {"data": "first"}))
        assert WAYS[way](pipe, {"data": 1})["result"] == 1
        assert len(gate.batches) == 2
        hold.set()
        first.outcome()


def test_a_lingering_batch_leaves_at_once_when_it_is_full(gate, client, waiting):
    config = {"backend": "Gate", "instance_num": 2, "max": 2, "batching_timeout": 1e6}
    with headrace.pipe(config) as pipe:
        first = gate.entered(client(pipe, {"data": "first"}))
        one = client(pipe, {"data": 1})
        waiting(pipe, 1)
        two = gate.entered(client(pipe, {"data": 2}))
        assert gate.batches == [["first"], [1, 2]]
        gate.open()
        for each in (first, one, two):
            each.outcome()


def test_a_lingering_batch_leaves_at_once_when_the_node_is_idle_again(gate, client, waiting):
    config = {"backend": "Gate", "instance_num": 2, "max": 8, "batching_timeout": 1e6}
    with headrace.pipe(config) as pipe:
        first = gate.entered(client(pipe, {"data": "first"}))
        one = client(pipe, {"data": 1})
        waiting(pipe, 1)
        gate.open()
        first.outcome()
        assert one.outcome()["result"] == 1


def test_a_request_to_an_idle_node_does_not_wait_for_the_company_that_one_before_it_waited_for(
    gate,
):
    config = {"backend": "Gate", "instance_num": 2, "max": 8, "batching_timeout": 1e6}
    with headrace.pipe(config) as pipe:
        first = gate.entered(pipe.submit({"data": "first"}))
        assert pipe.submit({"data": "given up"}).cancel()
        gate.open()
        assert first.result(60)["result"] == "first"
        assert pipe.submit({"data": 1}).result(60)["result"] == 1


@pytest.mark.parametrize(
    ("keys", "weights", "ran"),
    [
        ({"min": 3, "max": 4}, [2], [2, 2]),
        ({"min": 3, "max": 3}, [2], None),
        ({"min": 3, "max": 8}, [2], [2, 2]),
        ({"batch_sizes": [2, 8]}, [3], None),
        ({"batch_sizes": [2, 4], "max": 8}, [3], None),
        ({"batch_sizes": [2, 8]}, [2, 3], [2, 3, 3]),
        ({"batch_sizes": [2, 8]}, [1, 5], [1, 5, 1, 1]),
        ({"batch_sizes": [2, 8]}, [3, 2], [3, 2, 3]),
        ({"batch_sizes": [2, 9]}, [2, 3], [2, 3, 2, 2]),
    ],
)
def test_a_batch_is_padded_to_a_weight_that_the_node_allows_or_refused(gate, keys, weights, ran):
    gate.shut = False
    requests = [{"data": weight, "request_size": weight} for weight in weights]
    with headrace.pipe({"backend": "Gate", "pad": True, **keys}) as pipe:
        if ran is None:
            with pytest.raises(RequestsFailed) as caught:
                pipe(requests)
            assert [type(error) for error in caught.value.errors] == [BatchRangeError]
            assert "no number of copies" in str(caught.value)
        else:
            assert [request["result"] for request in pipe(requests)] == weights
        assert gate.batches == ([] if ran is None else [ran])


@pytest.mark.parametrize(
    ("keys", "weights", "ran"),
    [
        ({"batch_sizes": [6, 8], "pad": True}, [4, 3], [[4, 4], [3, 3]]),
        ({"batch_sizes": [4, 8], "pad": True}, [4, 3], [[4]]),
        ({"batch_sizes": [6, 8], "pad": True}, [5, 2], [[2, 2, 2]]),
        ({"batch_sizes": [4, 8]}, [3, 4], [[4]]),
        ({"min": 3, "max": 4}, [1, 1], []),
    ],
)
def test_what_could_run_alone_does_not_fail_because_no_size_holds_its_company(
    gate, keys, weights, ran
):
    gate.shut = False
    with headrace.pipe({"backend": "Gate", **keys}) as pipe:
        futures = pipe.submit([{"data": w, "request_size": w} for w in weights])
        refused = [isinstance(future.exception(60), BatchRangeError) for future in futures]
    assert gate.batches == ran
    assert refused == [not any(weight in batch for batch in ran) for weight in weights]


@pytest.mark.parametrize("pad", [True, False])
def test_a_weight_above_every_batch_size_that_an_instance_takes_is_refused_on_entry(gate, pad):
    class UpTo(headrace.Backend):
        def init(self, options, context):
            self.max = 2

        def forward(self, batch):
            for request in batch:
                request["result"] = request["data"]

    headrace.register("UpTo", UpTo, replace=True)
    config = {"backend": "UpTo", "batch_sizes": [1, 3], "pad": pad}
    with headrace.pipe(config) as pipe:
        future = pipe.submit({"data": 1, "request_size": 2})
        assert future.exception(60).max == 1
        assert pipe.submit({"data": 1}).result(60)["result"] == 1
        assert pipe.describe()["nodes"]["main"]["range"] == [1, 1]
    ranges = [(2, 4), (5, 6)]  # 3 is in the first range, and above the only size that is

    class ByIndex(UpTo):
        def init(self, options, context):
            self.min, self.max = ranges[context.instance_index]

    headrace.register("ByIndex", ByIndex, replace=True)
    two = {"backend": "ByIndex", "instance_num": 2, "batch_sizes": [2, 5], "pad": pad}
    with headrace.pipe(two) as pipe:
        future = pipe.submit({"data": 1, "request_size": 3})
        assert isinstance(future.exception(60), BatchRangeError)
    said = r"no batch fits: UpTo takes 1 to 2, and the node says batch_sizes = \[3\]"
    with pytest.raises(SetupError, match=said):
        headrace.pipe({**config, "batch_sizes": [3]})


def test_max_counts_weights(gate, client, waiting):
    with headrace.pipe({"backend": "Gate", "max": 4}) as pipe:
        first = gate.entered(client(pipe, {"data": "first"}))
        futures = [pipe.submit({"data": w, "request_size": w}) for w in (3, 2, 2, 1, 4)]
        gate.open()
        first.outcome()
        for future in futures:
            future.result(timeout=60)
        assert gate.batches == [["first"], [3], [2, 2], [1], [4]]


# What a backend may do.


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt(), GeneratorExit()])
@pytest.mark.parametrize("backend", ["Gate", "OwnGate"])
def test_what_is_no_exception_reaches_the_owner_and_the_instance_goes_on(gate, error, backend):
    gate.shut = False
    gate.raises["bad"] = error
    raw = (type(error), BackendError)
    with headrace.pipe({"backend": backend}) as pipe:
        with pytest.raises(raw):
            pipe({"data": "bad"})
        with pytest.raises(BackendError) as caught:
            pipe.submit({"data": "bad"}).result(timeout=60)
        assert caught.value.__cause__ is error
        with pytest.raises(BackendError):
            pipe({"data": "bad"}, timeout=60)
        assert pipe({"data": 1})["result"] == 1
        assert pipe.submit({"data": 2}).result(timeout=60)["result"] == 2
        assert pipe.stats()["state"] == "ready"
        counts = node(pipe)
        assert counts["submitted"] == counts["ok"] + 3


def test_where_system_exit_ends_a_batch_the_neighbours_get_backend_errors(gate, client, waiting):
    gate.raises["bad"] = SystemExit(3)
    with headrace.pipe({"backend": "Gate", "max": 2}) as pipe:
        first = gate.entered(client(pipe, {"data": "first"}))
        bad = client(pipe, {"data": "bad"})
        waiting(pipe, 1)
        neighbour = pipe.submit({"data": "neighbour"})
        waiting(pipe, 2)  # else the first one may be over before it has entered
        gate.open()
        first.outcome()
        with pytest.raises((SystemExit, BackendError)):
            bad.outcome()
        assert isinstance(neighbour.exception(timeout=60), BackendError)
        assert pipe({"data": 1})["result"] == 1


@pytest.mark.parametrize(("nodes", "last"), [("one", "main"), ("several", "b")])
def test_a_backend_cannot_wait_for_room_that_its_own_instance_is_to_make(gate, until, nodes, last):
    gate.shut = False
    futures = []

    def again():
        for n in range(3):
            until(lambda n=n: pipe.stats()["nodes"][last]["waiting"] == n)
            futures.append(pipe.submit({"data": n, "node_name": "main"}))

    gate.calls["outer"] = again
    graph = {
        "main": {"backend": "Identity", "next": "b", "queue_size": 2},
        "b": {"backend": "Gate"},
    }
    found = {"main": {"backend": "Gate", "queue_size": 2}} if nodes == "one" else graph
    with headrace.pipe({"global": SOON, **found}) as pipe:
        assert pipe({"data": "outer"})["result"] == "outer"
        assert [f.result(60)["result"] for f in futures[:2]] == [0, 1]
        error = futures[2].exception(60)
        if error is not None:  # else the instance was free again before it had to wait
            assert isinstance(error, ContractError)
            assert re.search(OWN, str(error))
            assert pipe.stats()["nodes"]["main"]["failed"] == {"contract": 1}


def test_who_waits_fails_where_no_thread_can_be_started(gate, client, waiting):
    with headrace.pipe({"backend": "Gate", "instance_num": 2}) as pipe:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(internals.threads.current.pool, "run", internals.refuse_thread)
            future = pipe.submit({"data": 1})
            with pytest.raises(BackendError, match="no thread could be started"):
                future.result(60)
        gate.open()
        assert pipe({"data": "again"})["result"] == "again"


@pytest.mark.parametrize("backend", ["Gate", "OwnGate"])
@pytest.mark.parametrize(("pad", "sizes"), [(False, [1, 6, 1, 1, 1]), (True, [1, 6, 6])])
def test_the_largest_size_within_the_range_is_cut_where_more_requests_wait(
    gate, waiting, backend, pad, sizes
):
    most = {"max": 8, "forward": lambda self, batch: gate.run(batch)}
    headrace.register("Eight", type("Eight", (headrace.Backend,), most), replace=True)
    config = {"backend": f"S[(key=never)Eight,{backend}]", "batch_sizes": [1, 6, 16], "pad": pad}
    with headrace.pipe(config) as pipe:
        futures = [pipe.submit({"data": 0})]
        gate.wait_entered()
        futures += pipe.submit([{"data": n} for n in range(1, 10)])
        waiting(pipe, 9)
        gate.open()
        assert [one.result(60)["result"] for one in futures] == list(range(10))
    assert [len(batch) for batch in gate.batches] == sizes


# What a policy may do.


class Greater(BatchPolicy):
    def cut(self, queue, instance, now):
        return Cut(len(queue) + 5)


class Spins(BatchPolicy):
    asked = 0

    def cut(self, queue, instance, now):
        Spins.asked += 1
        return Cut(1) if Spins.asked > 3 else Cut(0, now)


for _policy in (Greater, Spins):
    headrace.register(_policy.__name__, _policy, replace=True)


def test_a_policy_that_takes_more_than_waits_gets_what_there_is_within_max(gate):
    gate.shut = False
    with headrace.pipe({"backend": "Gate", "max": 8, "batch_policy": "Greater"}) as pipe:
        assert len(pipe([{"data": k} for k in range(5)])) == 5
        assert gate.batches == [[0, 1, 2, 3, 4]]


def test_a_policy_that_asks_to_be_asked_at_once_does_not_spin(gate):
    gate.shut = False
    Spins.asked = 0
    with headrace.pipe({"backend": "Gate", "batch_policy": "Spins"}) as pipe:
        assert pipe({"data": 1})["result"] == 1
        assert pipe.submit({"data": 1}).result(timeout=60)["result"] == 1
