"""What is left when a request is answered: nothing. No reference, and no garbage for the collector.

A request may hold an image or more. What is in a circle of references waits for Python's collector,
which counts objects and not bytes, and so may let a hundred of them wait.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import sys
import threading
import weakref

import pytest

import headrace
from headrace.errors import ConfigError, HeadraceError, SetupError

LATE_S = 20.0


class Works(headrace.Backend):
    """Gives its data."""

    max = None

    def forward(self, batch):
        for request in batch:
            request["result"] = request["data"]


class Owner(Works):
    """The same in a thread of its own."""

    owns_thread = True


class Breaks(headrace.Backend):
    """Fails a batch."""

    max = None

    def forward(self, batch):
        raise LookupError("broken")


class OwnerBreaks(Breaks):
    """The same in a thread of its own."""

    owns_thread = True


class Refuses(headrace.Backend):
    """Fails each item."""

    max = None

    def forward(self, batch):
        return [ValueError("refused") for _ in batch]


class Writes(headrace.Backend):
    """Gives nothing."""

    max = None

    def forward(self, batch):
        pass


class Lists(headrace.Backend):
    """Gives a list of its data."""

    def forward(self, batch):
        for request in batch:
            request["result"] = [request["data"]] * 3


class Context(Works):
    """Keeps its context."""

    class Options(headrace.Options):
        broken: bool = False

    def init(self, options, context):
        self.context = context
        if options.broken:
            raise OSError("broken")


DIAMOND = {
    "head": {"backend": "Works", "max": 8, "next": "left,right"},
    "left": {"backend": "Works", "next": "join"},
    "right": {"backend": "Owner", "max": 4, "next": "join"},
    "join": {
        "backend": "Works",
        "max": 4,
        "map": {"left": {"result": "data"}, "right": {"result": "other"}},
    },
}
CONFIGS = {
    "works": {"backend": "Works", "max": 4, "instance_num": 2},
    "sequence": {"backend": "S[Works,(or)Works,Works]", "max": 4},
    "owner": {"backend": "S[Works,Owner]", "max": 4},
    "thread": {"backend": "S[Works,BackgroundThread[Works]]", "max": 4},
    "limit": {"backend": "Works", "max": 4, "timeout_ms": 10_000},
    "rejects": {"backend": "Works", "max": 4, "queue_size": 2, "queue_full": "reject"},
    "sheds": {"backend": "Works", "max": 4, "queue_size": 2, "queue_full": "shed_oldest"},
    "small": {"backend": "Works", "max": 4, "queue_size": 2},
    "breaks": {"backend": "Breaks", "max": 4},
    "refuses": {"backend": "S[Works,Refuses]", "max": 4},
    "writes": {"backend": "Writes", "max": 4},
    "owner breaks": {"backend": "S[Works,OwnerBreaks]", "max": 4},
    "behind a door": {
        "main": {"backend": "S[Works,Forward[node.inner]]", "max": 4},
        "inner": {"backend": "Breaks", "max": 4},
        "global": {"entrypoint": "Forward[node.main]"},
    },
    "each": {
        "main": {"backend": "Lists", "max": 4, "next": "each"},
        "each": {
            "backend": "S[Works,Refuses]",
            "max": 4,
            "each": "data",
            "map": {"main": {"result": "data"}},
        },
    },
    "graph": DIAMOND,
    "graph breaks": {**DIAMOND, "left": {"backend": "Breaks", "next": "join"}},
    "graph with a limit": {**DIAMOND, "left": {**DIAMOND["left"], "timeout_ms": 10_000}},
}


class Heavy:
    """What a request holds."""


def call(pipe, requests):
    for request in requests:
        with contextlib.suppress(HeadraceError):
            pipe(request)


def call_list(pipe, requests):
    with contextlib.suppress(HeadraceError):
        pipe(requests)


def call_in_time(pipe, requests):
    with contextlib.suppress(HeadraceError):
        pipe(requests[0], timeout=LATE_S)


def call_too_late(pipe, requests):
    for request in requests:
        with contextlib.suppress(HeadraceError):
            pipe(request, timeout=0)


def submit(pipe, requests):
    futures = pipe.submit(requests)
    while futures:  # who keeps the future of an error that is raised here has made a circle
        with contextlib.suppress(HeadraceError):
            futures.pop().result(LATE_S)


def submit_in_time(pipe, requests):
    for future in pipe.submit(requests, timeout=LATE_S):
        future.exception(LATE_S)


def submit_with_callback(pipe, requests):
    futures = pipe.submit(requests)
    for future in futures:
        called = threading.Event()
        future.add_done_callback(lambda _, called=called: called.set())
        assert called.wait(LATE_S)


def submit_and_cancel(pipe, requests):
    futures = pipe.submit(requests, timeout=LATE_S)
    for future in futures:
        if not future.cancel():
            future.exception(LATE_S)


def call_async(pipe, requests):
    async def one(request):
        with contextlib.suppress(HeadraceError):
            await pipe.call_async(request)

    async def every():
        await asyncio.gather(*map(one, requests))

    asyncio.run(every())


def call_async_and_cancel(pipe, requests):
    async def every():
        tasks = [asyncio.ensure_future(pipe.call_async(one, timeout=LATE_S)) for one in requests]
        await asyncio.sleep(0)  # so that each of them has begun
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    asyncio.run(every())


WAYS = (
    call,
    call_list,
    call_in_time,
    call_too_late,
    submit,
    submit_in_time,
    submit_with_callback,
    submit_and_cancel,
    call_async,
    call_async_and_cancel,
)


@pytest.fixture
def no_collector():
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def send(pipe, way, count=9):
    """Send requests; give per request an event that is set when nothing holds its data any more."""
    requests, gone = [], []
    for _ in range(count):
        heavy, event = Heavy(), threading.Event()
        weakref.finalize(heavy, event.set)
        requests.append({"data": heavy})
        gone.append(event)
    del heavy
    way(pipe, requests)
    return gone


def register_all():
    for cls in (Works, Owner, Breaks, OwnerBreaks, Refuses, Writes, Lists, Context):
        headrace.register(cls.__name__, cls, replace=True)


@pytest.mark.usefixtures("shortcut")
@pytest.mark.parametrize("name", CONFIGS)
def test_an_answered_request_leaves_no_reference_and_no_garbage(name, no_collector):
    register_all()
    with headrace.pipe(CONFIGS[name]) as pipe:
        for way in WAYS:
            gone = send(pipe, way)
            assert all(event.wait(LATE_S) for event in gone), f"{way.__name__}: one is still there"


# Work that is done again and again: pipelines come and go, nodes are reloaded, threads end.


def make_and_close(pipe):
    with headrace.pipe(DIAMOND) as other:
        other.submit({"data": 1}).result(LATE_S)


def make_and_fail(pipe):
    with pytest.raises(SetupError):
        headrace.pipe({"backend": "S[Owner,Context(broken=true)]"})


def make_of_what_is_wrong(pipe):
    with pytest.raises(ConfigError):
        headrace.pipe({"backend": "S[Works,Nowhere]"})


def reload_each(pipe):
    for node in pipe.config.nodes:
        pipe.reload(node, {"max": 2})
        pipe.submit({"data": 1}).result(LATE_S)


def reload_and_fail(pipe):
    with pytest.raises(SetupError):
        pipe.reload("left", {"broken": True})


def call_from_a_thread(pipe):
    thread = threading.Thread(target=pipe, args=([{"data": 1}, {"data": 2}],))
    thread.start()
    thread.join(LATE_S)


def every_way(pipe):
    for way in WAYS:
        way(pipe, [{"data": number} for number in range(3)])


def blocks():
    gc.collect()
    return sys.getallocatedblocks()


@pytest.mark.parametrize(
    "work",
    [
        make_and_close,
        make_and_fail,
        make_of_what_is_wrong,
        reload_each,
        reload_and_fail,
        call_from_a_thread,
        every_way,
    ],
)
def test_what_is_done_again_and_again_leaves_nothing(work):
    register_all()
    keeping = {"backend": "Context", "max": 4}
    config = {name: {**DIAMOND[name], **keeping} for name in DIAMOND}
    times = 30
    grown = []
    with headrace.pipe(config) as pipe:
        for _ in range(20):  # caches fill in the first; what grows for ever does so in each
            before = blocks()
            for _ in range(times):
                work(pipe)
            grown.append(blocks() - before)
            if grown[-1] < times / 2:
                return
    pytest.fail(f"{times} times leave so many more blocks of memory: {grown}")
