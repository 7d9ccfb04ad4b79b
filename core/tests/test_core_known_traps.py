"""Traps of other frameworks of this kind, each shown to be absent here.

They were read in omniback and torchpipe: crashes, hangs and silent losses that ordinary
configurations and calls could reach there. Those of scheduling, and the tests that show their
absence (here where no file is named):

- a wrong batching_timeout, or a word without what it depends on, crashes:
  ``test_core_config``, ``test_a_word_without_what_it_depends_on_is_refused``
- a second pipeline with the same node names breaks the first: ``test_pipelines_with_equal_...``
- an object that nobody keeps leaves a dangling name: ``test_a_pipeline_that_nobody_keeps_...``
- a join that is entered from one of its predecessors hangs: ``test_core_graph_model``; without
  a map: ``test_core_graph``
- a graph over a node whose entrypoint is a plain backend hangs:
  ``test_a_graph_over_a_node_that_is_a_plain_backend_...``
- a weight above every max or below every min hangs or gives nothing: ``test_core_hints``,
  ``test_core_scheduling_running``, ``test_a_weight_that_fits_nothing_is_answered_in_a_graph_...``
- a list longer than all instances take blocks: ``test_core_scheduling_running``
- callers that wait and callers that do not, in one batch with an error, abort the process:
  ``test_all_kinds_of_callers_share_a_batch_...``
- an error in a batch, a loop or a restart aborts the process: ``test_an_error_inside_...``, what
  is no Exception: ``test_core_scheduling_running``
- a restart, or a loop, without end: ``test_flow_again`` of headrace-flow
- a queue blocks its caller for ever, or fails after it has taken the item: ``test_flow_queues`` of headrace-flow
- a pipeline that is dropped loses what waits: ``test_core_close``, in a graph for ever:
  ``interleavings/closing``; the end of the interpreter hangs: ``test_core_exit``,
  ``tests/test_interpreter_exit``
- one dict twice in a call aborts, in a graph too: ``test_one_dict_twice_...``
- a refused request passes as done the next time: ``test_core_scheduling_calls``
- one bad request fails its whole batch: ``tests/test_survival``, ``test_core_backend``
- a missing result is not reported: ``test_core_failures``, ``test_core_probes``
- Ctrl-C and SystemExit arrive as something else: ``test_core_main_thread``, ``test_core_scheduling_running``
- the thread that gathers spins while requests wait:
  ``test_while_requests_wait_for_company_nobody_looks_at_them``
- idle instances get single requests at once, busy ones larger batches (worth keeping):
  ``test_core_scheduling_running``
"""

from __future__ import annotations

import asyncio
import gc

import pytest
from sending import WAYS, backend

import headrace
from headrace import errors


def explode(request):
    raise LookupError(f"no {request['data']}")


backend("TrapInc", lambda r: r["data"] + 1)
backend("TrapIncDouble", lambda r: r["data"] * 2)
backend("TrapExplode", explode)
backend("TrapWide", lambda r: r["data"], max=4)


class TrapWrap(headrace.Backend):
    """Runs what it depends on and negates its result."""

    takes = 1

    def init(self, options, context):
        (self.child,) = context.children

    def forward(self, batch):
        outcomes = self.child(batch)
        for request in batch:
            if "result" in request:
                request["result"] = -request["result"]
        return outcomes


headrace.register("TrapWrap", TrapWrap, replace=True)


def once(config, data=1):
    with headrace.pipe(config) as pipe:
        return pipe({"data": data})["result"]


def test_pipelines_with_equal_node_names_live_side_by_side():
    first = headrace.pipe({"same": {"backend": "TrapInc"}})
    second = headrace.pipe({"same": {"backend": "TrapIncDouble"}})
    assert first({"data": 5})["result"] == 6
    first.close()
    assert second({"data": 5})["result"] == 10
    second.close()
    assert once({"same": {"backend": "TrapInc"}}) == 2


def test_a_pipeline_that_nobody_keeps_answers_its_call():
    assert headrace.pipe({"backend": "TrapInc"})({"data": 1})["result"] == 2
    gc.collect()


def test_an_instance_may_be_named_twice_and_be_the_beginning_of_another_name():
    config = {"backend": "IoC[TrapInc,TrapIncDouble;S[TrapInc,TrapIncDouble,TrapInc]]"}
    assert once(config, 1) == 5


def test_a_container_may_stand_inside_itself():
    assert once({"backend": "TrapWrap[S[TrapWrap[TrapInc]]]"}, 1) == 2
    assert once({"backend": "S[S[S[TrapInc]],TrapInc]"}, 1) == 3


def test_all_kinds_of_callers_share_a_batch_in_which_one_fails(gate, client, waiting):
    gate.raises["bad"] = LookupError("bad")
    with headrace.pipe({"backend": "Gate", "max": 8}) as pipe:
        running = gate.entered(pipe.submit({"data": 0}))
        callers = [
            client(pipe, {"data": "bad"}),
            client(pipe, {"data": 1}, timeout=60),
            client(pipe, [{"data": 2}, {"data": 3}]),
            client(lambda: asyncio.run(pipe.call_async({"data": 4}))),
            client(lambda: pipe.submit({"data": 5}).result(60)),
        ]
        waiting(pipe, 6)
        gate.open()
        assert running.result(60)["result"] == 0
        for caller in callers:
            with pytest.raises((errors.BackendError, errors.RequestsFailed)):
                caller.outcome()
        assert sorted(map(str, gate.batches[1])) == ["1", "2", "3", "4", "5", "bad"]
        assert pipe({"data": 6})["result"] == 6
        assert pipe.stats()["nodes"]["main"]["failed"] == {"backend": 6}


DIAMOND = {
    "a": {"backend": "TrapInc", "next": "b,c"},
    "b": {"backend": "TrapInc", "next": "d"},
    "c": {"backend": "TrapIncDouble", "next": "d"},
    "d": {"backend": "TrapInc", "map": "b[result:data],c[result:other]"},
}


def test_one_dict_twice_in_a_list_is_an_error_of_the_second_alone_in_a_graph_too():
    request = {"data": 1}
    with headrace.pipe(DIAMOND) as pipe:
        first, second = (one.exception(60) for one in pipe.submit([request, request]))
    assert first is None
    assert isinstance(second, errors.InputError)
    assert "result" in request


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("backend", ["TrapInc", "BackgroundThread[TrapInc]"])
def test_a_graph_over_a_node_that_is_a_plain_backend_is_answered(way, backend):
    config = {
        "a": {"backend": "TrapInc", "next": "b"},
        "b": {"backend": backend, "next": "c"},
        "c": {"backend": "TrapInc"},
    }
    with headrace.pipe(config) as pipe:
        assert WAYS[way](pipe, {"data": 1})["result"] == 4


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(("weight", "bad"), [(9, "wide"), (1, "pairs")])
def test_a_weight_that_fits_nothing_is_answered_in_a_graph_and_says_where(way, weight, bad):
    backend("TrapPairs", lambda r: r["data"], min=2, max=4)
    config = {
        "a": {"backend": "Identity", "max": 16, "next": bad},
        bad: {"backend": "TrapWide" if bad == "wide" else "TrapPairs", "next": "z"},
        "z": {"backend": "Identity", "max": 16},
    }
    with headrace.pipe(config) as pipe:
        with pytest.raises(errors.BatchRangeError) as caught:
            WAYS[way](pipe, {"data": 1, "request_size": weight})
        assert caught.value.node == bad
        assert WAYS[way](pipe, {"data": 1, "request_size": 3})["result"] == 1


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    "text",
    [
        "S[(key=bad)TrapExplode,TrapInc]",
        "BackgroundThread[S[(key=bad)TrapExplode,TrapInc]]",
    ],
)
def test_an_error_inside_a_batch_is_that_requests_alone(way, text):
    with headrace.pipe({"backend": text, "max": 4}) as pipe:
        for _ in range(3):
            with pytest.raises(errors.BackendError):
                WAYS[way](pipe, {"data": 1, "bad": True})
            assert WAYS[way](pipe, {"data": 1})["result"] == 2
        assert pipe.stats()["nodes"]["main"]["failed"] == {"backend": 3}


class TrapCounting(headrace.policies.Greedy):
    """Greedy that counts how often it is asked."""

    asked = 0

    def cut(self, queue, instance, now):
        type(self).asked += 1
        return super().cut(queue, instance, now)


def test_while_requests_wait_for_company_nobody_looks_at_them(gate):
    TrapCounting.asked = 0
    headrace.register("trap_counting", TrapCounting, replace=True)
    waits = {"instance_num": 2, "batching_timeout": 1e9, "batch_policy": "trap_counting"}
    with (
        headrace.pipe({"backend": "Gate", "max": 4, **waits}) as pipe,
        headrace.pipe({"backend": "TrapInc"}) as other,
    ):
        first = gate.entered(pipe.submit({"data": 1}))
        company = pipe.submit([{"data": 2}, {"data": 3}])
        for n in range(500):  # what runs meanwhile has all the time it wants
            assert other.submit({"data": n}).result(60)["result"] == n + 1
        assert TrapCounting.asked <= 3  # as they came
        gate.open()
        assert [f.result(60)["result"] for f in (first, *company)] == [1, 2, 3]
