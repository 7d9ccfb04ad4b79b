"""Backends that call pipelines: in a cycle they are refused, and nobody else is."""

from __future__ import annotations

import concurrent.futures
import threading
from typing import ClassVar

import internals
import pytest
from sending import WAYS, backend

import headrace
from headrace.errors import BackendError, ContractError, RequestsFailed

LONG_S = 20
SOON = {"deadlock_after_s": 0.02}

CALLS = {
    "call": lambda pipe, request: pipe(request),
    "list": lambda pipe, request: pipe([request])[0],
    "timeout": lambda pipe, request: pipe(request, timeout=10 * LONG_S),
    "result": lambda pipe, request: pipe.submit(request).result(),
    "exception": lambda pipe, request: pipe.submit(request).exception(),
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
            found = self.way(pipe, {"data": "end", "node_name": node})
            if isinstance(found, ContractError):  # what `exception` gives
                raise found
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
    internals.circles_are_looked_for_at_once(monkeypatch)
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
@pytest.mark.parametrize("names", ["a", "ab", "abc"])
def test_nodes_whose_backends_call_each_other_in_a_cycle(calling, monkeypatch, names, way, around):
    monkeypatch.setattr(calling, "way", staticmethod(CALLS[way]))
    monkeypatch.setattr(calling, "barrier", threading.Barrier(len(names)), raising=False)
    config = {
        name: {"backend": around.format(f"Calling(to={names[i - 1]})")}
        for i, name in enumerate(names)
    }
    with headrace.pipe({"global": SOON, **config}) as pipe:
        calling.places.update({name: (pipe, name) for name in names})
        go(*calling.places.values())
        assert [type(error) for error in calling.refused] == [ContractError] * len(calling.refused)
        assert {error.node for error in calling.refused} <= {*names}
        assert calling.refused
        assert pipe({"data": 1, "node_name": "a"})["result"] == 1


CALLS_ITSELF = {
    "one": {"main": {"backend": "CallsItself"}},
    "several": {"a": {"backend": "Identity", "next": "b"}, "b": {"backend": "CallsItself"}},
}


@pytest.mark.parametrize("nodes", CALLS_ITSELF.values(), ids=CALLS_ITSELF)
@pytest.mark.parametrize("way", ["async", "call", "list", "submit"])
def test_a_backend_that_would_wait_for_its_own_instance_is_told_so(nodes, way, monkeypatch):
    internals.circles_are_looked_for_at_once(monkeypatch)
    backend("CallsItself", lambda _: WAYS[way](pipe, {"data": 2}))
    told = pytest.raises(
        ContractError, match=r"called its own pipeline|calls wait for each other in a circle"
    )
    with headrace.pipe({"global": SOON, **nodes}) as pipe, told:
        pipe({"data": 1})


def test_a_request_that_is_moved_on_into_a_cycle_is_refused(client, until):
    """A backend of another pipeline waits for a request; the node that it comes to waits for that."""
    at_a, goes_on, in_b = threading.Event(), threading.Event(), threading.Event()

    def hold():
        at_a.set()
        assert goes_on.wait(LONG_S)
        return 1

    def ask_the_other():
        in_b.set()
        return other({"data": 1})["result"]

    backend("Does", lambda r: r["data"]() if callable(r["data"]) else r["data"])
    own = {"backend": "BackgroundThread[Does]"}
    with (
        headrace.pipe({"a": {**own, "next": "b"}, "b": own}) as pipe,
        headrace.pipe({"backend": "Does"}) as other,
    ):
        outer = client(other, {"data": lambda: pipe({"data": hold})["result"]})
        assert at_a.wait(LONG_S)
        second = client(pipe, {"data": ask_the_other, "node_name": "b"})
        assert in_b.wait(LONG_S)
        until(lambda: other.stats()["nodes"]["main"]["waiting"] == 1)
        goes_on.set()
        with pytest.raises(BackendError) as raised:
            outer.outcome()
        assert isinstance(raised.value.__cause__ or raised.value, ContractError)
        assert second.outcome()["result"] == 1


@pytest.mark.parametrize("around", ["{}", "BackgroundThread[{}]"])
@pytest.mark.parametrize("way", CALLS)
def test_calls_without_a_cycle_are_never_refused(calling, monkeypatch, way, around):
    monkeypatch.setattr(calling, "way", staticmethod(CALLS[way]))
    monkeypatch.setattr(calling, "barrier", threading.Barrier(1), raising=False)
    config = {
        "a": {"backend": around.format("Calling(to=b)"), "max": 4},
        "b": {"backend": around.format("Identity"), "max": 2},
    }
    with headrace.pipe({"global": SOON, **config}) as pipe:
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


# When a circle is looked for, by a clock that the test moves.


def circle(calling, monkeypatch, after_s):
    """Return the timer, and two pipelines whose backends wait for each other."""
    timer = internals.time_by_hand(monkeypatch)
    monkeypatch.setattr(calling, "barrier", threading.Barrier(2), raising=False)
    pipes = [
        headrace.pipe(
            {"global": {"deadlock_after_s": after_s}, "main": {"backend": f"Calling(to={to})"}}
        )
        for to in "ba"
    ]
    calling.places.update(a=(pipes[0], "main"), b=(pipes[1], "main"))
    return timer, pipes


def all_wait(pipes, until):
    until(lambda: all(pipe.stats()["nodes"]["main"]["waiting"] for pipe in pipes))


def test_a_circle_over_two_pipelines_ends_after_two_looks(calling, monkeypatch, client, until):
    timer, pipes = circle(calling, monkeypatch, 5)
    callers = [client(pipe, {"data": "go"}) for pipe in pipes]
    all_wait(pipes, until)
    timer.clock.advance(4.9)
    assert timer.run_due() == 0
    timer.clock.advance(0.2)
    timer.run_due()
    until(lambda: timer.waiting() > 2)  # for the second look, beside both nodes
    assert not calling.refused
    timer.clock.advance(1.0)
    timer.run_due()
    for caller in callers:
        caller.join(LONG_S)
    (error,) = calling.refused
    assert "calls wait for each other in a circle: " in str(error)
    assert (
        str(error).count("Calling (node 'main', instance 0) waits for Calling (node 'main')") == 2
    )
    assert [caller.error is None for caller in callers].count(True) == 1
    for pipe in pipes:
        assert pipe({"data": 1})["result"] == 1
        pipe.close()


def test_a_circle_is_never_looked_for_where_that_is_switched_off(
    calling, monkeypatch, client, until
):
    timer, pipes = circle(calling, monkeypatch, 0)
    callers = [client(pipe, {"data": "go"}) for pipe in pipes]
    all_wait(pipes, until)
    timer.clock.advance(1e6)
    assert timer.run_due() == 0
    assert not any(caller.error for caller in callers)
    for pipe in pipes:
        pipe.close(drain=False, timeout=0)
    for caller in callers:
        caller.join(LONG_S)
        assert not caller.is_alive()


# What looks like a circle, and is none.


class Inner(headrace.Backend):
    """Waits where it is told to."""

    holds: ClassVar[dict] = {}

    def forward(self, batch):
        for request in batch:
            if request["data"] in self.holds:
                inside, goes_on = self.holds[request["data"]]
                inside.set()
                assert goes_on.wait(LONG_S)
            request["result"] = request["data"]


class Outer(headrace.Backend):
    """Asks the inner pipeline for each of its requests."""

    inner: headrace.Pipeline

    def forward(self, batch):
        for request in batch:
            request["result"] = self.inner({"data": request["data"]})["result"]


@pytest.fixture
def inner(monkeypatch):
    monkeypatch.setattr(Inner, "holds", {})
    headrace.register("Inner", Inner, replace=True)
    headrace.register("Outer", Outer, replace=True)
    with headrace.pipe({"backend": "Inner"}) as pipe:
        monkeypatch.setattr(Outer, "inner", pipe, raising=False)
        yield pipe


@pytest.mark.parametrize("main", [True, False])
def test_a_list_on_two_instances_which_ask_one_other_pipeline_is_not_refused(inner, client, main):
    with headrace.pipe({"backend": "Outer", "instance_num": 2, "max": 1}) as outer:
        for _ in range(20):
            requests = [{"data": 1}, {"data": 2}]
            if main:
                outer(requests)
            else:
                client(outer, requests).outcome()
            assert [one["result"] for one in requests] == [1, 2]


def test_who_was_too_late_counts_no_longer_as_one_who_waits(inner, client, expire, waiting):
    """It holds the inner instance, for which a batch with its old request asks meanwhile."""
    begun, asks = threading.Event(), threading.Event()
    inside, goes_on = Inner.holds["second"] = (threading.Event(), threading.Event())

    class Late(Outer):
        def forward(self, batch):
            begun.set()
            assert asks.wait(LONG_S)
            answers.append(self.inner({"data": "first"})["result"])
            super().forward(batch)

    def late_and_then(outer):
        with pytest.raises(headrace.errors.DeadlineExceededError):
            outer({"data": 1}, timeout=LONG_S)
        inner({"data": "second"})

    answers = []
    headrace.register("Late", Late, replace=True)
    with headrace.pipe({"backend": "Late"}) as outer:
        caller = client(late_and_then, outer)
        assert begun.wait(LONG_S)
        expire(outer, 1)
        assert inside.wait(LONG_S)
        asks.set()
        waiting(inner, 1)
        goes_on.set()
        caller.outcome()
    assert answers == ["first"]


def test_who_waits_for_a_request_that_is_kept_needs_no_instance(client, until, waiting):
    """A backend of the first asks the second, which keeps the request; one of the second asks the first meanwhile."""
    kept, answers = [], []

    class Keeps(headrace.Backend):
        keeps = True

        def init(self, options, context):
            self.context = context

        def forward(self, batch):
            (request,) = batch
            if request["data"] == "keep":
                kept.append((self.context, self.context.request.keep(request)))
                return [headrace.PENDING]
            answers.append(first({"data": "plain"})["result"])
            request["result"] = "asked"
            return None

    class Asks(headrace.Backend):
        def forward(self, batch):
            (request,) = batch
            if request["data"] == "ask":
                second({"data": "keep"})
            request["result"] = request["data"]

    headrace.register("KeepsOne", Keeps, replace=True)
    headrace.register("AsksOne", Asks, replace=True)
    nodes = {"global": {"deadlock_after_s": 0.01}}
    with (
        headrace.pipe({**nodes, "main": {"backend": "AsksOne"}}) as first,
        headrace.pipe({**nodes, "main": {"backend": "KeepsOne"}}) as second,
    ):
        asks = client(first, {"data": "ask"})
        until(lambda: kept and not second.stats()["nodes"]["main"]["instances"][0]["busy"])
        other = client(second, {"data": "go"})
        waiting(first, 1)
        ((context, handle),) = kept
        context.request.finish(handle, "later")
        assert asks.outcome()["result"] == "ask"
        assert other.outcome()["result"] == "asked"
    assert answers == ["plain"]
