"""Answers in parts: in order, to who asked for them, bounded, and cancelled where nobody reads any more."""

from __future__ import annotations

import asyncio
import gc
import queue
import threading
import weakref

import pytest
from sending import both_readers

import headrace
from headrace.errors import (
    BackendError,
    ClosedError,
    ContractError,
    InputError,
    InstanceLostError,
    PluginError,
)

WAIT_S = 60.0
"""A test that hangs fails after this; nothing else is measured in seconds."""


def letters(word):
    yield from word
    return word.upper()


def silent(word):
    yield word


def breaks(word):
    yield word[0]
    raise ValueError("broke")


headrace.register("Letters", letters, replace=True)
headrace.register("StreamedSilent", silent, replace=True)
headrace.register("StreamedBreaks", breaks, replace=True)


class Gated(headrace.Backend):
    """Emits 0, 1, ... up to ``data``, and waits before each for the test; notes what it sees of the caller."""

    max = 4
    control = None

    def init(self, options, context):
        self.context = context
        context.batch.at_end(lambda: None)

    def forward(self, batch):
        control = type(self).control
        for request in batch:
            for number in range(request["data"]):
                control.go.get(timeout=WAIT_S)
                control.unwanted.append(
                    self.context.request.unwanted(self.context.request.keep(request))
                )
                self.context.request.emit(self.context.request.keep(request), number)
            request["result"] = "end"
        control.ended.set()


class Control:
    def __init__(self):
        self.go, self.ended, self.unwanted = queue.Queue(), threading.Event(), []


@pytest.fixture
def gated():
    Gated.control = Control()
    headrace.register("Gated", Gated, replace=True)
    return Gated.control


@both_readers
def test_a_generator_gives_its_parts_and_last_comes_the_finished_dict(read):
    with headrace.pipe({"backend": "Letters"}) as pipe:
        request = {"data": "abc"}
        *parts, last = read(pipe, request)
        assert parts == ["a", "b", "c"]
        assert last is request
        assert request == {"data": "abc", "result": "ABC"}
        assert pipe.stats()["nodes"]["main"]["ok"] == 1


@both_readers
def test_a_generator_without_a_return_value_has_the_result_none(read):
    with headrace.pipe({"backend": "StreamedSilent"}) as pipe:
        assert read(pipe, {"data": "x"}) == ["x", {"data": "x", "result": None}]


def test_for_plain_callers_a_generator_is_a_function():
    with headrace.pipe({"backend": "S[Letters,Identity]"}) as pipe:
        assert pipe({"data": "abc"})["result"] == "ABC"
        assert pipe.submit({"data": "abc"}).result(WAIT_S)["result"] == "ABC"
        assert asyncio.run(pipe.call_async({"data": "abc"}))["result"] == "ABC"


def test_keys_of_a_request_as_keywords_are_told_how_they_are_given():
    with headrace.pipe({"backend": "Identity"}) as pipe:
        for call in (pipe.stream, pipe.stream_async):
            with pytest.raises(InputError, match=r'Write stream\(\{"image": x\}\)'):
                _ = asyncio.run(begun(call, image=1))


async def begun(call, **keys):
    return call(**keys)


def test_a_generator_is_not_registered_for_batches():
    with pytest.raises(PluginError, match="generator"):
        headrace.register("StreamedWrong", letters, batched=True, replace=True)


def test_an_error_is_raised_after_the_parts_that_came():
    async def run(pipe):
        stream = pipe.stream_async({"data": "abc"})
        assert await stream.__anext__() == "a"
        with pytest.raises(BackendError, match="broke"):
            await stream.__anext__()
        assert [part async for part in stream] == []

    with headrace.pipe({"backend": "StreamedBreaks"}) as pipe:
        stream = pipe.stream({"data": "abc"})
        assert next(stream) == "a"
        with pytest.raises(BackendError, match="broke"):
            next(stream)
        assert list(stream) == []
        asyncio.run(run(pipe))


@both_readers
def test_a_wrong_request_raises_where_it_is_read(read):
    with headrace.pipe({"backend": "Letters"}) as pipe:
        with pytest.raises(InputError):
            read(pipe, {})
        with pytest.raises(InputError, match="parts are of one request: expected a dict, got list"):
            read(pipe, [{"data": "a"}])
        pipe.close()
        with pytest.raises(ClosedError):
            read(pipe, {"data": "a"})


@both_readers
def test_parts_come_from_every_node_of_a_graph(read):
    nodes = {
        "first": {"backend": "Letters", "next": "second"},
        "second": {"backend": "S[Letters,Letters]"},
    }
    with headrace.pipe(nodes) as pipe:
        *parts, last = read(pipe, {"data": "ab"})
        assert parts == ["a", "b", "A", "B", "A", "B"]
        assert last == {"data": "ab", "result": "AB"}


@both_readers
def test_parts_of_elements_bear_their_index(read):
    with headrace.pipe({"backend": "Letters", "each": "words:data"}) as pipe:
        *parts, last = read(pipe, {"words": ["ab", "c"], "data": None})
        assert sorted(parts) == [(0, "a"), (0, "b"), (1, "c")]
        assert [part for index, part in parts if not index] == ["a", "b"]
        assert last["result"] == ["AB", "C"]


@both_readers
def test_parts_come_from_a_node_that_an_expression_calls(read):
    nodes = {
        "main": {"backend": "S[Identity,Forward[node.inner]]"},
        "inner": {"backend": "Letters"},
    }
    with headrace.pipe(nodes) as pipe:
        assert read(pipe, {"data": "ab"})[:-1] == ["a", "b"]


def test_a_stream_begins_at_the_call_and_parts_come_while_the_backend_runs(gated):
    with headrace.pipe({"backend": "Gated"}) as pipe:
        stream = pipe.stream({"data": 2})
        gated.go.put(None)
        assert next(stream) == 0
        assert not gated.ended.is_set()
        gated.go.put(None)
        assert next(stream) == 1
        assert next(stream)["result"] == "end"
        assert list(stream) == []


def test_parts_arrive_in_an_event_loop_while_the_backend_runs(gated):
    async def run(pipe):
        got = []
        stream = pipe.stream_async({"data": 3})
        for _ in range(3):
            gated.go.put(None)
            got.append(await stream.__anext__())
        got.append((await stream.__anext__())["result"])
        return got

    with headrace.pipe({"backend": "Gated"}) as pipe:
        assert asyncio.run(run(pipe)) == [0, 1, 2, "end"]


@pytest.mark.parametrize("how", ["close", "drop", "aclose"])
def test_who_leaves_the_loop_cancels_the_request_and_the_backend_is_told(gated, how):
    async def leave(pipe):
        stream = pipe.stream_async({"data": 3})
        assert await stream.__anext__() == 0
        await stream.aclose()
        assert [part async for part in stream] == []

    with headrace.pipe({"backend": "Gated"}) as pipe:
        gated.go.put(None)
        if how == "aclose":
            asyncio.run(leave(pipe))
        else:
            stream = pipe.stream({"data": 3})
            assert next(stream) == 0
            if how == "close":
                stream.close()
                assert list(stream) == []
            del stream
            gc.collect()
        gated.go.put(None)
        gated.go.put(None)
        assert gated.ended.wait(WAIT_S)
        assert gated.unwanted == [False, True, True]
        assert pipe.stats()["nodes"]["main"]["failed"] == {"cancelled": 1}


def test_a_generator_ends_when_nobody_reads(until):
    left, begun = threading.Event(), threading.Event()

    def endless(data):
        try:
            while True:
                yield data
                begun.set()
        finally:
            left.set()

    headrace.register("Endless", endless, replace=True)
    with headrace.pipe({"backend": "Endless"}) as pipe:
        stream = pipe.stream({"data": 1})
        assert next(stream) == 1
        stream.close()
        assert left.wait(WAIT_S)


def test_an_item_that_has_given_parts_is_not_run_again():
    runs = []

    class Once(headrace.Backend):
        max = 8
        rerun = True

        def init(self, options, context):
            self.context = context

        def forward(self, batch):
            runs.append([request["data"] for request in batch])
            for request in batch:
                self.context.request.emit(self.context.request.keep(request), request["data"])
            if len(batch) > 1:
                raise ValueError("together")
            for request in batch:
                request["result"] = "alone"

    headrace.register("Once", Once, replace=True)
    with headrace.pipe(
        {"backend": "Once", "batch_sizes": [2], "batching_timeout": 3600_000}
    ) as pipe:
        stream = pipe.stream({"data": "streamed"})
        plain = pipe.submit({"data": "plain"})
        assert plain.result(WAIT_S)["result"] == "alone"
        assert next(stream) == "streamed"
        with pytest.raises(BackendError, match="together"):
            next(stream)
        assert runs == [["streamed", "plain"], ["plain"]]


def test_a_backend_that_reads_a_stream_of_its_own_instance_is_refused():
    found = []

    class Itself(headrace.Backend):
        def forward(self, batch):
            for request in batch:
                if request["data"]:
                    try:
                        next(pipe.stream({"data": 0}))
                    except ContractError as error:
                        found.append(error)
                request["result"] = 1

    headrace.register("Itself", Itself, replace=True)
    with headrace.pipe({"backend": "Itself"}) as pipe:
        pipe({"data": 1})
        assert len(found) == 1


class Thing(str):
    """A value to which a weak reference is possible."""


def test_what_was_streamed_is_free_at_once():
    with headrace.pipe({"backend": "Letters"}) as pipe:
        gc.collect()
        gc.disable()
        try:
            things = [Thing("ab"), Thing("cd")]
            alive = [weakref.ref(one) for one in things]
            assert [*pipe.stream({"data": things.pop()})][:2] == ["c", "d"]
            pipe.stream({"data": things.pop()}).close()
            assert pipe({"data": "x"})["result"] == "X"  # the thread of the other one has gone on
            assert [one() for one in alive] == [None, None]
        finally:
            gc.enable()


ELSEWHERE = """
import os
import headrace

class StreamedDies(headrace.Backend):
    max = 4
    rerun = True
    def init(self, options, context):
        self.context = context
    def forward(self, batch):
        for request in batch:
            self.context.request.emit(self.context.request.keep(request), request["data"])
            self.context.request.emit(self.context.request.keep(request), request["data"])
            if request["data"] == "die":
                os._exit(1)
            request["result"] = "lives"

headrace.register("StreamedDies", StreamedDies, replace=True)
"""


def test_what_has_given_parts_in_a_process_that_died_is_not_run_in_another(tmp_path):
    (tmp_path / "there.py").write_text(ELSEWHERE)
    config = {"backend": "Process[StreamedDies]", "import": str(tmp_path / "there.py")}
    with headrace.pipe(config) as pipe:
        assert [*pipe.stream({"data": "a"})][:-1] == ["a", "a"]
        stream, got = pipe.stream({"data": "die"}), []
        with pytest.raises(InstanceLostError):
            got.extend(next(stream) for _ in range(3))
        assert got in ([], ["die"], ["die", "die"])
