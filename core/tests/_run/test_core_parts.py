"""Parts of answers: none is lost, who gives them waits for who reads, and where nobody can wait the request ends."""

from __future__ import annotations

import asyncio
import queue
import threading
from functools import partial

import pytest
from sending import both_readers, read

import headrace
from headrace.errors import (
    ClosedError,
    DeadlineExceededError,
    InputError,
    InstanceLostError,
    LimitError,
)

WAIT_S = 60.0
"""A test that hangs fails after this; nothing else is measured in seconds."""


def read_or_error(read, pipe, request, **more):
    try:
        return read(pipe, request, **more)
    except LimitError as error:
        return error


def numbers(data):
    yield from range(data)
    return "end"


class Flood(headrace.Backend):
    """Emits 0, 1, ... up to ``data`` in its ``forward``."""

    max = 4

    def init(self, options, context):
        self.context = context

    def forward(self, batch):
        for request in batch:
            for number in range(request["data"]):
                self.context.request.emit(self.context.request.keep(request), number)
            request["result"] = "end"


class OwnFlood(Flood):
    owns_thread = True


class HelperFlood(Flood):
    """Lets a thread emit, for which ``forward`` waits."""

    def forward(self, batch):
        thread = threading.Thread(target=super().forward, args=(batch,))
        thread.start()
        thread.join(WAIT_S)


class LaterFlood(Flood):
    """Lets a thread emit that ends the request, while nobody waits for it."""

    keeps = True

    def forward(self, batch):
        for request in batch:
            handle = self.context.request.keep(request)
            threading.Thread(target=self.give, args=(handle,)).start()
        return [headrace.PENDING for _ in batch]

    def give(self, handle):
        for number in range(handle.request["data"]):
            self.context.request.emit(handle, number)
        self.context.request.finish(handle, "end")


@pytest.fixture(autouse=True)
def registered():
    headrace.register("PartsNumbers", numbers, replace=True)
    for cls in (Flood, OwnFlood, HelperFlood, LaterFlood):
        headrace.register(f"Parts{cls.__name__}", cls, replace=True)


WAITING = [
    *("PartsNumbers", "S[Identity,PartsNumbers]", "BackgroundThread[PartsNumbers]"),
    *("PartsOwnFlood", "PartsHelperFlood", "PartsLaterFlood", "BackgroundThread[PartsFlood]"),
]


@both_readers
@pytest.mark.parametrize("backend", WAITING)
@pytest.mark.parametrize("waiting", [1, 3, 1024])
def test_a_reader_gets_every_part_of_who_can_wait(read, backend, waiting):
    with headrace.pipe({"backend": backend}) as pipe:
        for count in (1100, 0, 7):
            *parts, last = read(pipe, {"data": count}, most=waiting)
            assert parts == [*range(count)]
            assert last["result"] == "end"


@pytest.mark.parametrize("waiting", [1, 2, 10])
def test_a_generator_is_not_asked_for_more_than_one_part_without_room(waiting):
    asked = []

    def counted(data):
        for number in range(data):
            asked.append(number)
            yield number

    headrace.register("PartsCounted", counted, replace=True)
    with headrace.pipe({"backend": "PartsCounted"}) as pipe:
        stream = pipe.stream({"data": 200}, most=waiting)
        for number in range(200):
            assert len(asked) <= number + waiting + 1  # it waits with one in its hand
            assert next(stream) == number
        assert next(stream)["result"] is None


@both_readers
@pytest.mark.parametrize("way", ["node", "graph", "each", "S[Identity,PartsFlood]"])
def test_where_nobody_can_wait_the_request_always_ends_with_a_limit_error(read, way):
    backend = way if "[" in way else "PartsFlood"
    nodes = {"main": {"backend": backend}}
    request = {"data": 500}
    if way == "graph":
        nodes = {
            "main": {"backend": backend, "next": "after"},
            "after": {"backend": "Identity"},
        }
    if way == "each":
        nodes["main"]["each"] = "all:data"
        request = {"all": [500], "data": None}
    with headrace.pipe(nodes) as pipe:
        for _ in range(20):
            found = read_or_error(read, pipe, dict(request), most=5)
            if isinstance(found, LimitError):
                assert found.limit == 5
                assert "raise `most`" in str(found)
            else:
                assert len(found) == 501  # it was read as fast as it came
        failed = pipe.stats()["nodes"]["main"]["failed"]
        assert set(failed) <= {"limit", "cancelled"}


def test_parts_that_nobody_can_wait_for_end_an_unread_stream():
    with headrace.pipe({"backend": "PartsFlood"}) as pipe:
        stream = pipe.stream({"data": 6}, most=5)
        assert pipe.submit({"data": 0}).result(WAIT_S)["result"] == "end"  # it has run by now
        assert [next(stream) for _ in range(5)] == [*range(5)]
        with pytest.raises(LimitError, match="reads too slowly: 5 parts of the answer wait"):
            next(stream)
        assert [*stream] == []


@pytest.fixture
def kept():
    """Register ``PartsKeeps``, which keeps each request; give a queue of their handles, each with its context."""
    kept = queue.Queue()

    class Keeps(headrace.Backend):
        keeps = True

        def init(self, options, context):
            self.context = context

        def forward(self, batch):
            for request in batch:
                kept.put((self.context, self.context.request.keep(request)))
            return [headrace.PENDING for _ in batch]

    headrace.register("PartsKeeps", Keeps, replace=True)
    return kept


def test_who_reads_cannot_wait_for_itself(kept):
    with headrace.pipe({"backend": "PartsKeeps"}) as pipe:
        stream = pipe.stream({"data": 1}, most=2)
        context, handle = kept.get(timeout=WAIT_S)
        for number in range(3):
            context.request.emit(handle, number)
        assert [next(stream), next(stream)] == [0, 1]
        with pytest.raises(LimitError):
            next(stream)

        async def in_the_loop():
            stream = pipe.stream_async({"data": 1}, most=2)
            context, handle = kept.get(timeout=WAIT_S)
            for number in range(3):
                context.request.emit(handle, number)
            return [await stream.__anext__(), await stream.__anext__(), stream]

        async def run():
            *parts, stream = await in_the_loop()
            assert parts == [0, 1]
            with pytest.raises(LimitError):
                await stream.__anext__()

        asyncio.run(run())


def blocked(pipe, control, **more):
    """Return a stream whose backend, in a thread of its own, waits for the reader after two parts."""
    stream = pipe.stream({"data": 1000}, most=2, **more)
    assert control.full.wait(WAIT_S)
    return stream


@pytest.fixture
def control():
    class Control:
        full, ended = threading.Event(), threading.Event()
        unwanted = None

    class Gives(headrace.Backend):
        owns_thread = True

        def init(self, options, context):
            self.context = context

        def forward(self, batch):
            for request in batch:
                handle = self.context.request.keep(request)
                for number in range(request["data"]):
                    if number == 2:
                        Control.full.set()
                    self.context.request.emit(handle, number)
                    if self.context.request.unwanted(handle):
                        break
                Control.unwanted = self.context.request.unwanted(handle)
                request["result"] = "end"
            Control.ended.set()

    headrace.register("PartsGives", Gives, replace=True)
    return Control


@pytest.mark.parametrize("graph", [False, True])
@pytest.mark.parametrize("how", ["leave", "deadline", "close", "with"])
def test_a_wait_for_the_reader_ends_with_the_request(control, how, graph):
    nodes = {"main": {"backend": "PartsGives"}}
    if graph:
        nodes["main"]["next"] = "after"
        nodes["after"] = {"backend": "Identity"}
    pipe = headrace.pipe(nodes)
    more = {"timeout": 0.2} if how == "deadline" else {}
    stream = blocked(pipe, control, **more)
    error = {"deadline": DeadlineExceededError, "close": ClosedError, "with": ClosedError}
    if how == "leave":
        stream.close()
    elif how == "close":
        closing = threading.Thread(target=pipe.close, kwargs={"drain": False})
        closing.start()
    elif how == "with":
        with pipe:
            pass
    assert control.ended.wait(WAIT_S)
    assert control.unwanted is True
    if how in error:
        assert [next(stream), next(stream)] == [0, 1]
        with pytest.raises(error[how]):
            next(stream)
    pipe.close()


def test_a_close_that_drains_lets_another_thread_read_to_the_end(control):
    pipe = headrace.pipe({"backend": "PartsGives"})
    stream = blocked(pipe, control)
    closing = threading.Thread(target=pipe.close)
    closing.start()
    while pipe.ready:
        pass
    assert [*stream][:-1] == [*range(1000)]
    closing.join(WAIT_S)
    assert control.unwanted is False


def test_a_stream_that_is_not_read_holds_no_caller():
    with headrace.pipe({"backend": "PartsNumbers", "instance_num": 2}) as pipe:
        stream = pipe.stream({"data": 10}, most=1)
        for _ in range(50):
            assert [one["result"] for one in pipe([{"data": 0} for _ in range(4)])] == ["end"] * 4
        assert [*stream][:-1] == [*range(10)]


@pytest.mark.parametrize("streamed", [False, True])
def test_a_part_that_comes_after_forward_has_returned_is_dropped(streamed):
    came = []

    class Returns(headrace.Backend):
        max = 2

        def init(self, options, context):
            self.context = context

        def forward(self, batch):
            for request in batch:
                handle = self.context.request.keep(request)
                came.append((self.context, handle))
                assert self.context.request.emit(handle, "in time") is streamed
                request["result"] = "end"

    headrace.register("PartsReturns", Returns, replace=True)
    with headrace.pipe({"backend": "PartsReturns"}) as pipe:
        found = read(pipe, {"data": 1}) if streamed else [pipe({"data": 1})]
        assert found[:-1] == ["in time"] * streamed
        ((context, handle),) = came
        assert context.request.emit(handle, "too late") is False
        assert context.request.unwanted(handle)


@pytest.mark.parametrize("thread", [False, True])
def test_a_part_of_the_request_before_is_dropped(thread):
    given = []

    class Remembers(headrace.Backend):
        before = None

        def init(self, options, context):
            self.context = context

        def forward(self, batch):
            (request,) = batch
            if self.before is not None:
                late = threading.Thread(target=self.give, args=(self.before,))
                late.start() if thread else late.run()
                if thread:
                    late.join(WAIT_S)
            self.before = self.context.request.keep(request)
            request["result"] = "end"

        def give(self, handle):
            given.append(self.context.request.emit(handle, "too late"))

    headrace.register("PartsRemembers", Remembers, replace=True)
    with headrace.pipe({"backend": "PartsRemembers"}) as pipe:
        for _ in range(2):
            assert len(read(pipe, {"data": 1})) == 1
        assert given == [False]


@pytest.mark.parametrize("infer", ["PartsFlood", "PartsHelperFlood", "PartsNumbers"])
def test_parts_of_an_item_that_a_container_has_made_are_dropped(infer):
    with headrace.pipe({"backend": f"CatSplit[Identity,{infer},Identity]"}) as pipe:
        assert read(pipe, {"data": 3}) == [{"data": 3, "result": "end"}]


def test_parts_of_a_kept_request_that_has_ended_are_dropped(kept):
    with headrace.pipe({"backend": "PartsKeeps"}) as pipe:
        stream = pipe.stream({"data": 1})
        context, handle = kept.get(timeout=WAIT_S)
        stream.close()
        while not context.request.unwanted(handle):
            pass
        assert not context.request.emit(handle, "nobody reads")
        assert not context.request.finish(handle, 1)
        future = pipe.submit({"data": 1})
        context, handle = kept.get(timeout=WAIT_S)
        assert not context.request.emit(handle, "nobody reads")
        assert context.request.finish(handle, 1)
        assert future.result(WAIT_S)["result"] == 1


def test_a_reader_says_how_many_bytes_may_wait():
    held, seen = [], []

    def heavy(data):
        for number in range(data):
            seen.append(len(held))
            yield bytes(100 + number)

    def room(part):
        held.append(part)
        return sum(map(len, held)) < 300

    headrace.register("PartsHeavy", heavy, replace=True)
    with headrace.pipe({"backend": "PartsHeavy"}) as pipe:
        stream, sizes = pipe.stream({"data": 30}, room=room), []
        for part in stream:
            if isinstance(part, dict):
                break
            sizes.append(len(part))
            held.remove(part)
        assert sizes == [100 + number for number in range(30)]
        assert max(seen) <= 3  # with three parts there are 300 bytes, and the next one waits


@pytest.mark.parametrize("value", [0, -1, 1.5, "many", True, None])
def test_how_many_parts_may_wait_is_a_number_of_at_least_one(value):
    with headrace.pipe({"backend": "PartsNumbers"}) as pipe:
        with pytest.raises(ValueError, match="most is how many parts may wait"):
            pipe.stream({"data": 1}, most=value)
        assert pipe.stats()["nodes"]["main"]["submitted"] == 0


# A function takes the parts.


@pytest.mark.parametrize("backend", [*WAITING, "PartsFlood"])
def test_a_function_gets_the_parts_before_the_future_has_its_outcome(backend):
    with headrace.pipe({"backend": backend}) as pipe:
        for count in (300, 0, 1):
            given = []
            take = partial(lambda given, *one: given.append(one), given)
            future = pipe.submit({"data": count}, on_part=take)
            assert future.result(WAIT_S)["result"] == "end"
            assert given == [(number, backend != "PartsFlood") for number in range(count)]


@pytest.mark.parametrize("graph", [False, True])
@pytest.mark.parametrize("backend", [*WAITING, "PartsFlood"])
def test_what_the_function_raises_ends_the_request(backend, graph):
    nodes = {"main": {"backend": backend}}
    if graph:
        nodes["main"]["next"] = "after"
        nodes["after"] = {"backend": "Identity"}

    def take(part, waits):
        parts.append(part)
        if part == 3:
            raise ZeroDivisionError("of the caller")

    with headrace.pipe(nodes) as pipe:
        for _ in range(3):
            parts = []
            with pytest.raises(ZeroDivisionError, match="of the caller"):
                pipe.submit({"data": 1000}, on_part=take).result(WAIT_S)
            assert parts == [0, 1, 2, 3]
        assert pipe({"data": 5})["result"] == "end"


def test_a_function_that_waits_slows_the_backend_down():
    ready, go_on = threading.Semaphore(0), threading.Semaphore(0)
    asked = []

    def slow(data):
        for number in range(data):
            asked.append(number)
            yield number

    def take(part, waits):
        assert waits
        ready.release()
        assert go_on.acquire(timeout=WAIT_S)

    headrace.register("PartsSlow", slow, replace=True)
    with headrace.pipe({"backend": "PartsSlow"}) as pipe:
        future = pipe.submit({"data": 3}, on_part=take)
        for number in range(3):
            assert ready.acquire(timeout=WAIT_S)
            assert asked == [*range(number + 1)]
            go_on.release()
        assert future.result(WAIT_S)["result"] is None


def test_a_list_has_no_parts():
    with headrace.pipe({"backend": "PartsNumbers"}) as pipe:
        with pytest.raises(InputError, match="parts are of one request"):
            pipe.submit([{"data": 1}], on_part=print)
        with pytest.raises(InputError, match="parts are of one request"):
            pipe.stream([{"data": 1}])


ELSEWHERE = """
import os, threading
import headrace

def there(data):
    yield from range(data)
    return "end"

class FloodThere(headrace.Backend):
    max = 4
    def init(self, options, context):
        self.context = context
    def forward(self, batch):
        for request in batch:
            thread = threading.Thread(target=self.give, args=(request,))
            thread.start()
            thread.join()
            request["result"] = "end"
    def give(self, request):
        handle = self.context.request.keep(request)
        for number in range(abs(request["data"])):
            self.context.request.emit(handle, number)
        if request["data"] < 0:
            os._exit(1)

headrace.register("PartsThere", there, replace=True)
headrace.register("PartsFloodThere", FloodThere, replace=True)
"""


@both_readers
@pytest.mark.parametrize("backend", ["PartsThere", "PartsFloodThere"])
def test_a_process_waits_for_who_reads(read, backend, tmp_path):
    (tmp_path / "there.py").write_text(ELSEWHERE)
    config = {"backend": f"Process[{backend}]", "import": str(tmp_path / "there.py")}
    with headrace.pipe(config) as pipe:
        *parts, last = read(pipe, {"data": 5_000}, most=3)
        assert parts == [*range(5_000)]
        assert last["result"] == "end"
        stream = pipe.stream({"data": 5_000}, most=3)
        assert next(stream) == 0
        stream.close()
        assert read(pipe, {"data": 2})[:-1] == [0, 1]


@pytest.mark.parametrize("reads", [False, True])
def test_a_process_that_dies_while_its_parts_wait_is_started_again(tmp_path, reads):
    (tmp_path / "there.py").write_text(ELSEWHERE)
    config = {"backend": "Process[PartsFloodThere]", "import": str(tmp_path / "there.py")}
    with headrace.pipe(config) as pipe:
        stream = pipe.stream({"data": -50}, most=2)
        assert next(stream) == 0
        if reads:
            got = [0]
            with pytest.raises(InstanceLostError):
                got.extend(next(stream) for _ in range(50))
            assert got == [*range(len(got))]
        stream.close()
        assert pipe.submit({"data": 1}).result(WAIT_S)["result"] == "end"  # in the next process
