"""The word `Benchmark`: what it sends through what is inside, and the figures that it gives."""

from __future__ import annotations

import json
import threading

import pytest

import headrace
from headrace import errors
from headrace_observe.bench.inner_load import of_backend, of_node
from headrace_observe.conformance import BenchmarkConformance
from headrace_testing import FakeClock, Recording

__all__ = ["BenchmarkConformance"]  # each rule of the kit is a test here


class Counting:
    """Double a number; note each batch, the thread that ran it, and how many were inside at a time."""

    def __init__(self):
        self.batches = []
        self.threads = set()
        self.inside = self.most_inside = 0

    def forward(self, batch):
        self.inside += 1
        self.most_inside = max(self.most_inside, self.inside)
        self.batches.append([request["data"] for request in batch])
        self.threads.add(threading.get_ident())
        for request in batch:
            request["result"] = 2 * request["data"]
        self.inside -= 1


@pytest.fixture
def counting():
    made = []

    class Known(Counting):
        def __init__(self):
            super().__init__()
            made.append(self)

    headrace.register("Counting", Known, replace=True)
    return made


def figures_of(expression, data, **keys):
    with headrace.pipe({"backend": expression, **keys}) as pipe:
        return pipe({"data": data})["result"]


def test_it_sends_as_many_copies_as_it_is_told_and_gives_their_figures(counting):
    figures = figures_of("Benchmark(clients=3,total=10,warm_up=4)[Counting]", 5, max=2)
    (inner,) = counting
    assert sum(map(len, inner.batches)) == 14
    assert {value for batch in inner.batches for value in batch} == {5}
    assert len(inner.threads) == inner.most_inside == 1
    assert figures["load"] == {"kind": "closed", "clients": 3}
    assert (figures["ok"], figures["failed"]) == (10, {})
    assert figures["throughput_rps"] > 0
    assert figures["latency_ms"]["p50"] <= figures["latency_ms"]["p99"]
    assert "one thread" in figures["clock"]
    assert json.loads(json.dumps(figures)) == figures


def test_the_requests_of_a_batch_are_its_samples(counting):
    config = {
        "backend": "Benchmark(clients=1,total=6,warm_up=0)[Counting]",
        "max": 3,
        "batch_policy": "Together",
    }
    headrace.register("Together", _together(), replace=True)
    with headrace.pipe(config) as pipe:
        answered = pipe([{"data": k} for k in (1, 2, 3)])
    assert counting[0].batches == [[1], [2], [3], [1], [2], [3]]
    assert [one["data"] for one in answered] == [1, 2, 3]
    assert [one["result"]["ok"] for one in answered] == [6, 6, 6]


def _together():
    return _in_batches_of(3)


def _in_batches_of(count):
    from headrace.policies import BatchPolicy, Cut

    class Together(BatchPolicy):
        def cut(self, queue, instance, now):
            return Cut(count if len(queue) >= count else 0)

    return Together


@pytest.mark.parametrize(
    ("clients", "most", "sizes"),
    [
        (1, None, {"1": 12}),
        (4, 4, {"4": 3}),
        (5, 3, {"3": 4}),  # 3 of 5, then the 2 left and 1 of those that came back, ...
        (5, None, {"2": 1, "5": 2}),
    ],
)
def test_waiting_requests_run_together_up_to_the_range_of_the_backend(clients, most, sizes):
    backend = _Range(1, most)
    point, failed = of_backend(backend, [{"data": 1}], clients, 12, "main")
    assert failed == {}
    assert point.to_dict()["batch_size"]["main"]["histogram"] == sizes


@pytest.mark.parametrize(
    ("keys", "most"), [({"max": 4}, 4), ({"batch_sizes": [2, 3], "pad": True}, 3), ({}, 8)]
)
def test_batches_are_no_larger_than_the_node_would_make_them(counting, keys, most):
    figures_of("Benchmark(clients=8,total=16,warm_up=0)[Counting]", 5, **keys)
    assert max(map(len, counting[0].batches)) == most


def test_weights_count_against_the_range():
    backend = _Range(1, 4)
    samples = [{"data": 1, "request_size": 3}, {"data": 2}, {"data": 3, "request_size": 2}]
    of_backend(backend, samples, 3, 6, "main")
    assert backend.weights == [4, 2, 4, 2]


def test_a_batch_below_the_least_is_filled_up_and_the_fill_is_not_counted():
    backend = _Range(4, 8)
    point, _ = of_backend(backend, [{"data": 1}], 3, 6, "main")
    assert backend.weights == [4, 4]
    assert point.to_dict()["ok"] == 6
    assert point.to_dict()["batch_size"]["main"]["histogram"] == {"3": 2}


class _Range:
    """Stands for a built backend: has a range and is called with batches."""

    def __init__(self, least, most):
        self.min, self.max = least, most
        self.weights = []

    def __call__(self, batch):
        self.weights.append(sum(one.get("request_size", 1) for one in batch))


def test_latencies_run_from_the_last_answer_to_the_end_of_the_batch():
    clock = FakeClock()

    class Slow(_Range):
        def __call__(self, batch):
            clock.advance(0.010)

    # Two clients and batches of one: the second waits for the first, and then each for the other.
    point, _ = of_backend(Slow(1, 1), [{"data": 1}], 2, 4, "main", clock=clock)
    assert [round(1000 * one) for one in point.window.latencies] == [10, 20, 20, 20]
    assert round(point.window.seconds, 3) == 0.040


def test_a_node_is_called_by_a_thread_per_client():
    everyone = threading.Barrier(3, timeout=30)

    class Node:
        def __call__(self, batch):
            everyone.wait()  # breaks unless three call at a time

    point, failed = of_node(Node(), [{"data": 1}], 3, 3, "main")
    assert (point.to_dict()["ok"], failed) == (3, {})


def test_a_node_of_the_pipeline_is_measured_with_its_queue(counting):
    config = {
        "main": {"backend": "Benchmark(clients=4,total=40,warm_up=0)[Forward[node.line]]"},
        "line": {"backend": "Counting", "max": 4},
    }
    with headrace.pipe(config) as pipe:
        figures = pipe({"data": 1, "node_name": "main"})["result"]
        assert pipe.stats()["nodes"]["line"]["ok"] == 40
    assert (figures["ok"], figures["batch_size"]) == (40, {})
    assert figures["clock"].startswith("from the call of the node")


def test_a_failing_request_is_a_figure_and_a_sample_without_a_success_fails_alone():
    headrace.register("Odd", lambda data: 1 // (data % 2), replace=True)
    config = {
        "backend": "Benchmark(clients=2,total=4,warm_up=0)[Odd]",
        "max": 2,
        "batch_policy": "Pair",
    }
    headrace.register("Pair", _in_batches_of(2), replace=True)
    with headrace.pipe(config) as pipe:
        good, bad = pipe.submit([{"data": 1}, {"data": 2}])
        figures = good.result(30)["result"]
        assert (figures["ok"], figures["failed"]) == (2, {"backend": 2})
        with pytest.raises(errors.BackendError) as caught:
            bad.result(30)
        assert isinstance(caught.value.__cause__, ZeroDivisionError)


def test_a_backend_that_owns_its_thread_is_run_by_it_alone():
    headrace.register("Recording", Recording, replace=True)
    figures = figures_of("Benchmark(clients=4,total=8)[BackgroundThread[Recording]]", 1)
    assert figures["ok"] == 8


@pytest.mark.parametrize(
    ("expression", "said"),
    [
        ("Benchmark(clients=0)[Identity]", "greater than or equal to 1"),
        ("Benchmark(total=0)[Identity]", "greater than or equal to 1"),
        ("Benchmark(warmup=1)[Identity]", "warm_up"),
        ("Benchmark", "Benchmark"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_is_built(expression, said):
    with pytest.raises(errors.ConfigError, match=said):
        headrace.PipelineConfig.load({"backend": expression})
