"""Backends that call pipelines: in a cycle they are refused, and nobody else is."""

from __future__ import annotations

import concurrent.futures
import threading
from typing import ClassVar

import pytest

import headrace
from headrace.errors import ContractError, RequestsFailed

LONG_S = 20

CALLS = {
    "call": lambda pipe, request: pipe(request),
    "list": lambda pipe, request: pipe([request])[0],
    "timeout": lambda pipe, request: pipe(request, timeout=10 * LONG_S),
    "result": lambda pipe, request: pipe.submit(request).result(),
    "exception": lambda pipe, request: pipe.submit(request).exception(),
}

WAITS = {
    "wait": lambda future: concurrent.futures.wait([future]),
    "as_completed": lambda future: list(concurrent.futures.as_completed([future])),
    "gathered": lambda future: concurrent.futures.wait([future], return_when="FIRST_EXCEPTION"),
}


class Calling(headrace.Backend):
    """Calls another place for a request that says "go", once all others have got as far."""

    places: ClassVar[dict] = {}
    barrier: threading.Barrier
    way = staticmethod(CALLS["call"])
    refused: ClassVar[list] = []

    class Options(headrace.Options):
        to: str

    def init(self, options, context):
        self.to = options.to

    def forward(self, batch):
        for request in batch:
            if request["data"] == "go":
                self.barrier.wait(LONG_S)
                self.call()
            request["result"] = request["data"]

    def call(self):
        pipe, node = self.places[self.to]
        try:
            self.way(pipe, {"data": "end", "node_name": node})
        except RequestsFailed as failed:
            self.refused.append(failed.errors[0])
            raise
        except ContractError as error:
            self.refused.append(error)
            raise


@pytest.fixture
def calling(monkeypatch):
    headrace.register("Calling", Calling, replace=True)
    monkeypatch.setattr(Calling, "refused", [])
    monkeypatch.setattr(Calling, "places", {})
    return Calling


def go(*places):
    """Let a request go at each place at once; give the errors."""
    outcomes = []

    def run(pipe, node):
        try:
            pipe({"data": "go", "node_name": node})
            outcomes.append(None)
        except Exception as error:
            outcomes.append(error)

    threads = [threading.Thread(target=run, args=place, daemon=True) for place in places]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LONG_S)
    assert not any(thread.is_alive() for thread in threads)
    return outcomes


@pytest.mark.parametrize(
    "around", ["{}", "BackgroundThread[{}]", "S[Identity,BackgroundThread[{}]]"]
)
@pytest.mark.parametrize("way", CALLS)
@pytest.mark.parametrize("names", ["ab", "abc"])
def test_nodes_whose_backends_call_each_other_in_a_cycle(calling, monkeypatch, names, way, around):
    monkeypatch.setattr(calling, "way", staticmethod(CALLS[way]))
    monkeypatch.setattr(calling, "barrier", threading.Barrier(len(names)), raising=False)
    config = {
        name: {"backend": around.format(f"Calling(to={names[i - 1]})")}
        for i, name in enumerate(names)
    }
    with headrace.pipe(config) as pipe:
        calling.places.update({name: (pipe, name) for name in names})
        go(*calling.places.values())
        assert [type(error) for error in calling.refused] == [ContractError] * len(calling.refused)
        assert {error.node for error in calling.refused} <= {*names}
        assert calling.refused
        assert pipe({"data": 1, "node_name": "a"})["result"] == 1


def test_two_pipelines_whose_backends_call_each_other(calling, monkeypatch):
    monkeypatch.setattr(calling, "barrier", threading.Barrier(2), raising=False)
    with (
        headrace.pipe({"backend": "Calling(to=b)"}) as first,
        headrace.pipe({"backend": "Calling(to=a)"}) as second,
    ):
        calling.places.update(a=(first, "main"), b=(second, "main"))
        go(*calling.places.values())
        assert calling.refused


@pytest.mark.parametrize("way", WAITS)
def test_waiting_for_a_future_of_its_own_pipeline_by_any_means_is_refused(
    calling, monkeypatch, way
):
    def wait(pipe, request):
        WAITS[way](pipe.submit(request))

    monkeypatch.setattr(calling, "way", staticmethod(wait))
    monkeypatch.setattr(calling, "barrier", threading.Barrier(1), raising=False)
    with headrace.pipe({"backend": "Calling(to=a)"}) as pipe:
        calling.places["a"] = (pipe, "main")
        (error,) = go(calling.places["a"])
        assert isinstance(error, ContractError)
        done, _ = concurrent.futures.wait([pipe.submit({"data": 1})], timeout=LONG_S)
        assert [future.result()["result"] for future in done] == [1]


@pytest.mark.parametrize("around", ["{}", "BackgroundThread[{}]"])
@pytest.mark.parametrize("way", CALLS)
def test_calls_without_a_cycle_are_never_refused(calling, monkeypatch, way, around):
    monkeypatch.setattr(calling, "way", staticmethod(CALLS[way]))
    monkeypatch.setattr(calling, "barrier", threading.Barrier(1), raising=False)
    config = {
        "a": {"backend": around.format("Calling(to=b)"), "max": 4},
        "b": {"backend": around.format("Identity"), "max": 2},
    }
    with headrace.pipe(config) as pipe:
        calling.places["b"] = (pipe, "b")
        every = [(pipe, "a"), (pipe, "b")] * 10
        assert go(*every) == [None] * len(every)


@pytest.mark.parametrize("backend", ["Identity", "BackgroundThread[Identity]"])
def test_who_gave_an_instance_back_holds_none(backend):
    """Else a thread that ran a batch once, and waits now, were asked for each request."""
    with headrace.pipe({"backend": backend, "instance_num": 2, "max": 4}) as pipe:
        calls = [lambda: pipe({"data": 1}), lambda: pipe([{"data": k} for k in range(9)])]
        calls += [lambda: pipe({"data": 1}, timeout=LONG_S), pipe.submit({"data": 1}).result]
        with concurrent.futures.ThreadPoolExecutor(1) as other:
            for call in calls:
                call()
                other.submit(call).result(LONG_S)
        instances = pipe.stats()["nodes"]["main"]["instances"]
        assert [one["busy"] for one in instances] == [False, False]
