"""What is left when a request is answered: nothing. No reference, and no garbage for the collector.

A request may hold an image or more. What is in a cycle of references waits for Python's collector,
which counts objects and not bytes, and so may let a hundred of them wait.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import sys
import textwrap
import threading
import traceback
import weakref

import pytest
from processes import run_process

import headrace
from headrace.errors import BackendError, ConfigError, HeadraceError, RequestsFailed, SetupError

LATE_S = 60.0


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
    "small": {"backend": "Works", "max": 4, "queue_size": 2},
    "breaks": {"backend": "Breaks", "max": 4},
    "refuses": {"backend": "S[Works,Refuses]", "max": 4},
    "writes": {"backend": "Writes", "max": 4},
    "owner breaks": {"backend": "S[Works,OwnerBreaks]", "max": 4},
    "behind a front": {
        "main": {"backend": "S[Works,Forward[node.inner]]", "max": 4},
        "inner": {"backend": "Breaks", "max": 4},
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
    "each first": {"backend": "S[Works,Refuses]", "max": 4, "each": "list"},
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
    while futures:  # who keeps the future of an error that is raised here has made a cycle
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


def send(pipe, way, count=9, **more):
    """Send requests; give per request an event that is set when nothing holds its data any more."""
    requests, gone = [], []
    for _ in range(count):
        heavy, event = Heavy(), threading.Event()
        weakref.finalize(heavy, event.set)
        requests.append({"data": heavy, "list": [heavy], **more})
        gone.append(event)
    del heavy
    way(pipe, requests)
    return gone


def register_all():
    for cls in (Works, Owner, Breaks, OwnerBreaks, Refuses, Writes, Lists, Context):
        headrace.register(cls.__name__, cls, replace=True)


WRONG = [
    ("works", {"request_size": 0}),
    ("graph", {"request_size": 0}),
    ("graph", {"node_name": "nowhere"}),
    ("each first", {"list": 3}),
]


@pytest.mark.usefixtures("shortcut")
@pytest.mark.parametrize(("name", "wrong"), [*((name, {}) for name in CONFIGS), *WRONG])
def test_an_answered_or_refused_request_leaves_no_reference_and_no_garbage(
    name, wrong, no_collector
):
    register_all()
    with headrace.pipe(CONFIGS[name]) as pipe:
        for way in WAYS:
            gone = send(pipe, way, **wrong)
            assert all(event.wait(LATE_S) for event in gone), f"{way.__name__}: one is still there"


# Work that is done again and again: pipelines come and go, threads end.


def make_and_close(pipe):
    with headrace.pipe(DIAMOND) as other:
        other.submit({"data": 1}).result(LATE_S)


def make_and_fail(pipe):
    with pytest.raises(SetupError):
        headrace.pipe({"backend": "S[Owner,Context(broken=true)]"})


def make_of_what_is_wrong(pipe):
    with pytest.raises(ConfigError):
        headrace.pipe({"backend": "S[Works,Nowhere]"})


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
        # Old versions of pydantic keep some of what they have refused.
        pytest.param(make_of_what_is_wrong, marks=pytest.mark.slow),
        call_from_a_thread,
        every_way,
    ],
)
def test_what_is_done_again_and_again_leaves_nothing(work):
    register_all()
    keeping = {"backend": "Context", "max": 4}
    config = {name: {**DIAMOND[name], **keeping} for name in DIAMOND}
    times = 15
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


class Array:
    """Memory whose end can be seen."""


@pytest.fixture
def arrays():
    """Register ``Full``, which raises with arrays in its variables; give weak references to them."""
    made = []

    class Full(headrace.Backend):
        max = None
        rerun = True
        alive_in_rerun = ()

        def forward(self, batch):
            type(self).alive_in_rerun = [one() is not None for one in made]
            array = Array()
            made.append(weakref.ref(array))
            try:
                self.deeper(batch, Array())
            except KeyError as error:
                if batch[0].get("returned"):
                    return [error for _ in batch]
                raise MemoryError("no room") from error

        def deeper(self, batch, array):
            made.append(weakref.ref(array))
            raise KeyError("deep")

    headrace.register(Full)
    made_by = type("Made", (), {})()
    made_by.made, made_by.cls = made, Full
    return made_by


def first_error(pipe, requests):
    try:
        pipe(requests)
    except RequestsFailed as failed:
        return failed.errors[0]
    raise AssertionError("nothing failed")


@pytest.mark.parametrize("backend", ["Full", "S[Identity,Full]", "BackgroundThread[Full]"])
@pytest.mark.parametrize("returned", [False, True])
def test_an_error_that_is_held_holds_no_memory(arrays, backend, returned):
    with headrace.pipe({"backend": backend, "max": 2}) as pipe:
        requests = [{"data": number, "returned": returned} for number in range(2)]
        error = first_error(pipe, requests)
        assert [one() for one in arrays.made] == [None] * len(arrays.made)
        if not returned:
            assert len(arrays.made) == 6
            assert arrays.cls.alive_in_rerun == [False] * 4
        shown = "".join(traceback.format_exception(error))
        assert 'raise KeyError("deep")' in shown
        assert f'File "{__file__}"' in shown


def test_what_the_end_of_a_batch_raised_holds_none_either():
    made = []

    class Ends(headrace.Backend):
        def init(self, options, context):
            context.batch.at_end(self.finish)

        def forward(self, batch):
            batch[0]["result"] = 1

        def finish(self):
            array = Array()
            made.append(weakref.ref(array))
            raise MemoryError("no room")

    headrace.register(Ends)
    with headrace.pipe({"backend": "Ends"}) as pipe:
        with pytest.raises(BackendError) as error:
            pipe({"data": 1})
        assert isinstance(error.value.__cause__, MemoryError)
        assert made[0]() is None


def test_in_the_development_mode_of_python_the_variables_stay():
    program = """
        import headrace
        class Fails(headrace.Backend):
            def forward(self, batch):
                clue = 42
                raise ValueError("why")
        headrace.register(Fails)
        with headrace.pipe({"backend": "Fails"}) as pipe:
            try:
                pipe({"data": 1})
            except headrace.errors.BackendError as error:
                frames = error.__cause__.__traceback__
        while frames.tb_next is not None:
            frames = frames.tb_next
        print(frames.tb_frame.f_code.co_name, frames.tb_frame.f_locals.get("clue"))
    """
    for switches, seen in (([], "forward None"), (["-X", "dev"], "forward 42")):
        done = run_process(
            [sys.executable, *switches, "-c", textwrap.dedent(program)], timeout=300, check=True
        )
        assert done.stdout.strip() == seen


def test_the_error_that_a_caller_handles_keeps_its_variables():
    """It is the context of what is raised meanwhile, and none of our business."""

    class Fails(headrace.Backend):
        def forward(self, batch):
            raise ValueError("no")

    def raises():
        clue = 42
        raise KeyError(clue)

    headrace.register(Fails)
    with headrace.pipe({"backend": "Fails"}) as pipe:
        try:
            raises()
        except KeyError as own:
            with pytest.raises(BackendError) as error:
                pipe({"data": 1})
            seen = error.value.__cause__.__context__ is own, own.__traceback__.tb_next.tb_frame
    assert seen[0]
    assert seen[1].f_locals == {"clue": 42}
