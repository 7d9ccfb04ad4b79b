"""A dict that is on its way through a pipeline is refused where it is sent again. Copies, other pipelines and later calls are not."""

from __future__ import annotations

import asyncio
import threading

import pytest
from sending import backend

import headrace
from headrace.errors import BackendError, DeadlineExceededError, InputError, RequestsFailed

NODES = {
    "one node": {"backend": "WayGate", "instance_num": 2},
    "graph": {
        "a": {"backend": "WayGate", "instance_num": 2, "next": "b"},
        "b": {"backend": "Identity"},
    },
}


@pytest.fixture
def gate():
    """Give the event for which backends wait, and the one that says that they do."""
    gate, inside = threading.Event(), threading.Event()

    def waits(request):
        if request["data"] == "waits":
            inside.set()
            assert gate.wait(60)
        if request["data"] == "fails":
            raise ValueError("no")
        return request["data"]

    backend("WayGate", waits)
    yield gate, inside
    gate.set()


def in_list(pipe, request):
    with pytest.raises(RequestsFailed) as failed:
        pipe([{"data": 1}, request])
    first, second = failed.value.errors
    assert first is None
    raise second


def by_coroutine(pipe, request):
    asyncio.run(pipe.call_async(request))


FIRST = {
    "call": lambda pipe, request: pipe(request),
    "timeout": lambda pipe, request: pipe(request, timeout=60),
    "list": lambda pipe, request: pipe([request]),
    "submit": lambda pipe, request: pipe.submit(request).result(),
    "coroutine": by_coroutine,
    "stream": lambda pipe, request: list(pipe.stream(request)),
}
AGAIN = {**FIRST, "list": in_list}


@pytest.mark.parametrize("config", NODES.values(), ids=NODES)
@pytest.mark.parametrize("first", FIRST.values(), ids=FIRST)
def test_a_dict_on_its_way_is_refused_by_each_call(gate, client, config, first):
    go_on, inside = gate
    request = {"data": "waits"}
    with headrace.pipe(config) as pipe, headrace.pipe({"backend": "Identity"}) as other:
        answer = client(first, pipe, request)
        assert inside.wait(60)
        for again in AGAIN.values():
            with pytest.raises(InputError, match="on its way"):
                again(pipe, request)
        refused = next(iter(pipe.stats()["nodes"].values()))["failed"]
        assert refused == {"input": len(AGAIN)}
        copy = other(dict(request))
        assert copy["result"] == "waits"
        go_on.set()
        answer.join()
        assert request == {"data": "waits", "result": "waits"}
        for again in FIRST.values():
            again(pipe, request)
        assert request == {"data": "waits", "result": "waits"}


@pytest.mark.parametrize("config", NODES.values(), ids=NODES)
@pytest.mark.parametrize("way", FIRST.values(), ids=FIRST)
def test_a_dict_that_failed_may_be_sent_again(gate, config, way):
    request = {"data": "fails"}
    with headrace.pipe(config) as pipe:
        for _ in range(2):
            with pytest.raises((BackendError, RequestsFailed)):
                way(pipe, request)
        for _ in range(2):
            with pytest.raises((InputError, RequestsFailed)):
                way(pipe, {**request, "request_size": -1})
        assert pipe({"data": 1})["result"] == 1
        request["data"] = 2
        way(pipe, request)
    assert request["result"] == 2


@pytest.mark.parametrize("config", NODES.values(), ids=NODES)
def test_a_dict_that_was_cancelled_or_left_may_be_sent_again(gate, config):
    go_on, inside = gate
    waiting = [{"data": "waits"} for _ in range(2)]
    request = {"data": 1}

    async def cancelled():
        task = asyncio.ensure_future(pipe.call_async(request))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    with headrace.pipe(config) as pipe:
        running = pipe.submit(waiting)
        assert inside.wait(60)
        assert pipe.submit(request).cancel()
        pipe.stream(request).close()
        asyncio.run(cancelled())
        with pytest.raises(DeadlineExceededError):
            pipe(request, timeout=0)
        last = pipe.submit(request)
        go_on.set()
        assert last.result()["result"] == 1
        assert [one.result()["result"] for one in running] == ["waits", "waits"]


def test_a_backend_may_not_send_the_dict_that_it_was_given(gate):
    backend("WayAgain", lambda request: pipe(request)["result"])
    with (
        headrace.pipe({"backend": "WayAgain", "instance_num": 2}) as pipe,
        pytest.raises(InputError, match="on its way"),
    ):
        pipe({"data": 1})


@pytest.mark.parametrize("config", NODES.values(), ids=NODES)
@pytest.mark.parametrize("way", [FIRST[name] for name in ("submit", "list", "stream")])
def test_a_dict_whose_sending_was_interrupted_may_be_sent_again(gate, config, way):
    class WayEnters(headrace.Backend):
        @staticmethod
        def enter(request):
            if request.pop("interrupts", False):
                raise KeyboardInterrupt

        def forward(self, batch):
            for request in batch:
                request["result"] = request["data"]

    headrace.register("WayEnters", WayEnters)
    last = {"backend": "WayEnters"}
    config = last if "backend" in config else {**config, "b": last}
    request = {"data": 1, "interrupts": True}
    with headrace.pipe(config) as pipe:
        with pytest.raises(KeyboardInterrupt):
            way(pipe, request)
        assert pipe(request)["result"] == 1


def test_a_dict_is_read_once_it_is_claimed():
    """What stands in it before may be the value between two backends of the request that has it."""

    class OnWay(dict):
        def setdefault(self, key, mine):
            request["data"] = "the caller's"
            return super().setdefault(key, mine)

    with headrace.pipe({"backend": "Identity"}) as pipe:
        pipe._on_way = OnWay()
        for way in FIRST.values():
            request = {"data": "between"}
            way(pipe, request)
            assert request == {"data": "the caller's", "result": "the caller's"}
