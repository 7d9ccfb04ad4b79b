"""Requests that bring other keys than ``data``, where nothing reads ``data``."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from typing import Any, TypedDict

import pytest
from loading import Divides

import headrace
from headrace.errors import BackendError, InputError, RequestsFailed
from headrace.hookspecs import attached


class Sides(TypedDict):
    left: Any
    right: Any


@pytest.fixture(autouse=True)
def words(registry_restored):
    class Join(headrace.Backend):
        """Writes left and right together."""

        reads = ("left", "right")

        def forward(self, batch):
            for request in batch:
                request["result"] = request["left"] + request["right"]

    class Typed(Join):
        reads = Sides

    class Named(headrace.Backend):
        """Reads the keys that its option names, which only init knows."""

        class Options(headrace.Options):
            keys: tuple[str, ...] = ("left", "right")

        def init(self, options, context):
            self.reads = options.keys

        def forward(self, batch):
            for request in batch:
                request["result"] = sum(request[key] for key in self.reads)

    class Fails(Join):
        def forward(self, batch):
            raise ValueError("no")

    class Silent(Join):
        """Reads the two keys, and writes nothing."""

        def forward(self, batch):
            pass

    class Around(headrace.Backend):
        """Passes its batch on to its child, and says so."""

        takes = 1

        def init(self, options, context):
            (self._child,) = context.children
            self.reads = ()

        def forward(self, batch):
            return self._child(batch)

    for cls in (Join, Typed, Named, Fails, Silent, Around, Divides):
        headrace.register(cls.__name__, cls, replace=True)
    headrace.register("Negative", lambda number: -number, replace=True)


@pytest.mark.parametrize(
    "backend",
    [
        "S[Join,Negative]",
        "Named",
        "Typed",
        "BackgroundThread[S[Join]]",
        "IoC[Join;S[Join,Negative]]",
        "Divides(left)[Join,Named]",
        "Around[S[Join,Negative]]",
    ],
)
def test_a_request_without_data_is_right_and_comes_back_without(backend, shortcut):
    with headrace.pipe({"backend": backend, "max": 4}) as pipe:
        request = {"left": 1, "right": 2, "result": "of before"}
        assert pipe(request) is request
        assert request.keys() == {"left", "right", "result"}
        assert abs(request["result"]) == 3
        assert pipe({**request, "data": "mine"})["data"] == "mine"
        later = pipe.submit({"left": 1, "right": 2}).result(60)
        assert sorted(later) == ["left", "result", "right"]
        assert sorted(asyncio.run(pipe.call_async({"left": 1, "right": 2}))) == sorted(later)
        timed = pipe([{"left": 1, "right": 2}, {"left": 5, "right": 5}], timeout=60)
        assert [abs(one["result"]) for one in timed] == [3, 10]


class Deaf:
    def batch_done(self, *_):
        """Hears nothing."""


@pytest.mark.parametrize("listens", [False, True])
def test_what_is_missing_is_named_to_whichever_thread_asks(listens, shortcut):
    with (
        headrace.pipe({"backend": "S[Join,Negative]"}) as pipe,
        attached(pipe, Deaf()) if listens else nullcontext(),
        ThreadPoolExecutor(1) as another,
    ):
        for call in (pipe, lambda request: another.submit(pipe, request).result()):
            with pytest.raises(InputError) as caught:
                call({"data": 1, "left": 2})
            assert caught.value.key == "right"
            assert call({"data": 1, "left": 2, "right": 3})["result"] == -5


def test_what_is_missing_is_named_by_key_for_its_request_alone(shortcut):
    with headrace.pipe({"backend": "S[Join,Negative]", "max": 4}) as pipe:
        with pytest.raises(InputError) as caught:
            pipe({"data": 1, "left": 2})
        assert (caught.value.key, caught.value.node) == ("right", "main")
        with pytest.raises(RequestsFailed) as failed:
            pipe([{"left": 1, "right": 1}, {"right": 1}])
        assert failed.value.errors[0] is None
        assert failed.value.errors[1].key == "left"
        assert pipe.stats()["nodes"]["main"]["failed"] == {"input": 2}


@pytest.mark.parametrize("listens", [False, True])
@pytest.mark.parametrize("backend", ["S[Join,Fails]", "Silent"])
def test_a_failed_request_without_data_comes_back_without(backend, listens, shortcut):
    """Nor does it have the result of an earlier call, which a backend that writes none would pass on."""
    with (
        headrace.pipe({"backend": backend}) as pipe,
        attached(pipe, Deaf()) if listens else nullcontext(),
    ):
        for request in ({"left": 1, "right": 2}, {"left": 1, "right": 2, "data": 3}):
            sent = {**request, "result": "of before"}
            with pytest.raises(BackendError):
                pipe(sent)
            assert sent == request


@pytest.mark.parametrize(
    "backend",
    [
        "Identity",
        "S[(key=left)Join,Negative]",
        "S[Join,(or)Negative]",
    ],
)
def test_data_is_asked_for_where_something_may_read_it(backend):
    with headrace.pipe({"backend": backend}) as pipe:
        with pytest.raises(InputError) as caught:
            pipe({"left": 1, "right": 2})
        assert caught.value.key == "data"


def test_in_a_graph_the_node_where_it_enters_is_asked():
    nodes = {
        "join": {"backend": "Join", "next": "a,b"},
        "a": {"backend": "Negative"},
        "b": {"backend": "Identity"},
    }
    with headrace.pipe(nodes) as pipe:
        for _ in range(2):
            request = pipe({"left": 1, "right": 2})
            assert request == {"left": 1, "right": 2, "result": {"a": -3, "b": 3}}
        with pytest.raises(InputError) as caught:
            pipe({"left": 1, "right": 2, "node_name": "a"})
        assert (caught.value.key, caught.value.node) == ("data", "a")
        with pytest.raises(InputError) as caught:
            pipe({"left": 1})
        assert caught.value.key == "right"
    line = {"join": {"backend": "Join", "next": "a"}, "a": {"backend": "Negative"}}
    with headrace.pipe(line) as pipe:
        assert pipe({"left": 1, "right": 2}) == {"left": 1, "right": 2, "result": -3}


@pytest.mark.parametrize("link", [{}, {"map": "join[result:data]"}])
def test_a_node_with_or_has_no_data_to_run_on_where_the_request_had_none(link):
    nodes = {"join": {"backend": "Silent", "next": "a"}, "a": {"backend": "Negative", "or": True}}
    nodes["a"] |= link
    with headrace.pipe(nodes) as pipe:
        request = {"left": 1, "right": 2}
        for call in (pipe, lambda request: pipe.submit(request).result()):
            with pytest.raises(InputError) as caught:
                call(request)
            named = ("result", "join") if link else ("data", "a")
            assert (caught.value.key, caught.value.node) == named
            assert request == {"left": 1, "right": 2}
        assert pipe({"left": 1, "right": 2, "data": 3})["result"] == -3


def test_elements_of_a_list_may_be_the_data():
    nodes = {
        "all": {"backend": "Negative", "each": "numbers", "next": "sum"},
        "sum": {"backend": "Call(builtins:sum)"},
    }
    with headrace.pipe(nodes) as pipe:
        assert pipe({"numbers": [1, 2]}) == {"numbers": [1, 2], "result": -3}
        with pytest.raises(InputError) as caught:
            pipe({"data": 3})
        assert caught.value.key == "numbers"


@pytest.mark.parametrize(
    "backend", ["Join", "BackgroundThread[Join]", "S[Named(keys=[left,right]),Negative]"]
)
def test_what_really_runs_a_batch_says_what_is_needed(backend):
    with headrace.pipe({"backend": backend}) as pipe:
        assert abs(pipe({"left": 1, "right": 2})["result"]) == 3
        with pytest.raises(InputError) as caught:
            pipe({"left": 1, "data": 2})
        assert caught.value.key == "right"


@pytest.mark.parametrize(
    ("request_", "hint"),
    [
        ({"right": 2, "letf": 1}, "It has 'letf', 'right'. Did you mean 'left'?"),
        ({"Left": 1}, "It has 'Left'. Did you mean 'left'?"),
        ({"up": 1, "right": 2}, "It has 'up', 'right'."),
        ({}, None),
        ({1: 2}, None),
    ],
)
def test_a_request_that_lacks_a_key_is_told_which_it_has(request_, hint):
    with (
        headrace.pipe({"backend": "Join"}) as pipe,
        pytest.raises(InputError, match="the request has no 'left'") as caught,
    ):
        pipe(request_)
    assert caught.value.hint == hint
