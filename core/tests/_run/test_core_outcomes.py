"""One request that cannot be answered, read or closed costs nothing but itself."""

from __future__ import annotations

import asyncio
import concurrent.futures
import gc
import logging
import threading
import traceback
import weakref

import pytest

import headrace
from headrace.errors import (
    BackendError,
    ClosedError,
    DeadlineExceededError,
    InputError,
    RequestsFailed,
)

pytestmark = pytest.mark.first("each request gets exactly one outcome, its own")

LATE_S = 60.0


def node(pipe, name="main"):
    return pipe.stats()["nodes"][name]


def settled(stats):
    return stats["waiting"] == 0 and stats["submitted"] == stats["ok"] + sum(
        stats["failed"].values()
    )


# What cannot be answered.


class WriteOnce(dict):
    """Refuses to change a key that is there."""

    def __setitem__(self, key, value):
        if key in self:
            raise TypeError("write once")
        super().__setitem__(key, value)


class Sticky(dict):
    """Refuses to let go of a key."""

    def pop(self, key, default):
        if key in self:
            raise TypeError("no")
        return default


class NoCodeError(InputError):
    """An error of somebody else, with a bug."""

    @property
    def code(self):
        raise LookupError("code")


class NoAttributesError(InputError):
    """One that raises whatever is asked for."""

    def __getattribute__(self, name):
        if name in ("abandoned", "code"):
            raise MemoryError(name)
        return super().__getattribute__(name)


@pytest.fixture
def judge(gate):
    """Register a backend that fails with what a request brings, once the gate lets it."""

    class Judge(headrace.Backend):
        max = 8

        def forward(self, batch):
            gate.run(batch)
            return [request.get("error") for request in batch]

    headrace.register("Judge", Judge, replace=True)
    return gate


@pytest.mark.parametrize("backend", ["Judge", "BackgroundThread[Judge]"])
@pytest.mark.parametrize(
    "bad",
    [
        lambda: WriteOnce(data=1),
        lambda: Sticky(data=1, error=ValueError("no")),
        lambda: {"data": 1, "error": NoCodeError("no")},
        lambda: {"data": 1, "error": NoAttributesError("no")},
    ],
)
def test_an_outcome_that_cannot_be_delivered_costs_its_neighbours_nothing(
    judge, client, until, backend, bad
):
    with headrace.pipe({"backend": backend, "max": 8}) as pipe:
        first = pipe.submit({"data": 0})
        judge.wait_entered()
        futures = [pipe.submit(one) for one in ({"data": 2}, bad(), {"data": 3})]
        callers = [client(pipe, one) for one in ({"data": 4}, bad(), {"data": 5})]
        until(lambda: node(pipe)["waiting"] == 6)
        judge.open()
        assert first.result(LATE_S)["result"] == 0
        assert [futures[k].result(LATE_S)["result"] for k in (0, 2)] == [2, 3]
        assert [callers[k].outcome()["result"] for k in (0, 2)] == [4, 5]
        futures[1].exception(LATE_S)
        callers[1].join(LATE_S)
        assert not callers[1].is_alive()
        assert pipe.submit({"data": 9}).result(LATE_S)["result"] == 9
        until(lambda: settled(node(pipe)))
        assert (node(pipe)["ok"], sum(node(pipe)["failed"].values())) == (6, 2)
        assert not node(pipe)["instances"][0]["busy"]


class CountsAsFalseError(InputError):
    """An error of somebody else, which is a container as well."""

    def __len__(self):
        return 0


@pytest.mark.parametrize(
    "backend",
    [
        "Judge",
        "S[Judge,(or)Identity]",
        "CatSplit[Judge,Identity,Identity]",
        "CatSplit[Identity,Judge,Identity]",
    ],
)
def test_an_error_that_counts_as_false_is_an_error(judge, backend):
    judge.open()
    with headrace.pipe({"backend": backend, "max": 8}) as pipe:
        with pytest.raises(CountsAsFalseError):
            pipe({"data": 1, "error": CountsAsFalseError("no")})
        with pytest.raises(RequestsFailed) as caught:
            pipe([{"data": 1, "error": CountsAsFalseError("no")}, {"data": 2}])
        assert isinstance(caught.value.errors[0], CountsAsFalseError)


class Halt(BaseException):
    """No Exception, and no interrupt either."""


class HaltsOnWrite(dict):
    """Raises what is no Exception when a key is changed that is there."""

    def __setitem__(self, key, value):
        if key in self:
            raise Halt
        super().__setitem__(key, value)


@pytest.mark.parametrize(
    "bad",
    [
        lambda: HaltsOnWrite(data=1, boxes=[1]),
        lambda: {"data": 1, "boxes": [1], "error": NoAttributesError("no")},
    ],
)
@pytest.mark.parametrize(
    "config",
    [
        {"backend": "Judge"},
        {"a": {"backend": "Judge", "next": "b"}, "b": {"backend": "Identity"}},
        {
            "a": {"backend": "Identity", "next": "b,c"},
            "b": {"backend": "Judge"},
            "c": {"backend": "Identity"},
        },
        {"a": {"backend": "Judge", "each": "boxes"}},
    ],
)
def test_a_request_whose_dict_or_error_raises_anything_ends(judge, config, bad):
    judge.open()
    with headrace.pipe(config) as pipe:
        for timeout in (None, LATE_S):
            assert pipe.submit(bad(), timeout=timeout).exception(LATE_S) is not None
            right = {"data": 2, "boxes": [3]}
            assert pipe.submit(right, timeout=timeout).exception(LATE_S) is None
        assert all(settled(one) for one in pipe.stats()["nodes"].values())


class HidesMask(dict):
    """Refuses to say whether it has a key, or to be changed or copied."""

    def __contains__(self, key):
        if key == "mask":
            raise TypeError("contains")
        return super().__contains__(key)

    def __setitem__(self, key, value):
        raise TypeError("set")

    def keys(self):
        raise TypeError("keys")


class Joins(headrace.Backend):
    def forward(self, batch):
        found = [request["data"] for request in batch]
        for request in batch:
            request["result"] = found


class Picks(headrace.Backend):
    def forward(self, batch):
        for request, part in zip(batch, (2, 3), strict=True):
            assert part in request["data"]
            request["result"] = part


@pytest.mark.parametrize(
    ("backend", "bad"),
    [
        ("CatSplit[Joins,Identity,Picks]", WriteOnce),
        ("S[Identity,Identity,Identity]", WriteOnce),
        ("S[Identity,Identity,Identity]", Sticky),
        ("S[Identity,(key=mask)Identity,Identity]", HidesMask),
        ("S[(key=mask)Identity]", HidesMask),
    ],
)
def test_a_dict_that_a_word_cannot_read_or_change_costs_its_neighbours_nothing(backend, bad):
    for cls in (Joins, Picks):
        headrace.register(cls.__name__, cls, replace=True)
    with headrace.pipe({"backend": backend, "max": 8}) as pipe:
        requests = [{"data": 2, "mask": 0}, bad(data=1), {"data": 3, "mask": 0}]
        with pytest.raises(RequestsFailed) as caught:
            pipe(requests)
        first, second, third = caught.value.errors
        assert first is third is None
        assert isinstance(second, (BackendError, InputError))
        assert bad is not HidesMask or isinstance(second.__cause__, TypeError)
        assert [requests[k]["result"] for k in (0, 2)] == [2, 3]


def test_a_deadline_that_cannot_be_told_stops_no_other_deadline(gate, expire):
    with headrace.pipe({"backend": "Gate"}) as pipe, headrace.pipe({"backend": "Gate"}) as other:
        pipe.submit({"data": 0})
        other.submit({"data": 0})
        gate.wait_entered(2)
        bad = pipe.submit(WriteOnce(data=1), timeout=LATE_S)
        good = other.submit({"data": 1}, timeout=LATE_S)
        expire(pipe, 1)
        expire(other, 1)
        assert bad.exception(LATE_S) is not None
        assert isinstance(good.exception(LATE_S), DeadlineExceededError)
        gate.open()


@pytest.mark.parametrize("alone", [True, False])
def test_a_backend_that_exits_fails_its_own_requests_alone(alone):
    @headrace.register("Leaves")
    class Leaves(headrace.Backend):
        def forward(self, batch):
            for request in batch:
                request.update(data="moved", result=1)
            raise SystemExit

    requests = [{"data": k} for k in range(1 if alone else 2)]
    with (
        headrace.pipe({"backend": "Leaves", "batch_sizes": [1, 2], "pad": True}) as pipe,
        concurrent.futures.ThreadPoolExecutor(1) as thread,
    ):
        error = thread.submit(pipe, requests[0] if alone else requests).exception(LATE_S)
        for one in [error] if alone else error.errors:
            assert type(one) is BackendError
            assert type(one.__cause__) is SystemExit
        assert requests == [{"data": k} for k in range(len(requests))]
        assert node(pipe)["failed"] == {"backend": len(requests)}


# A batch of which one item fails.


@pytest.mark.parametrize("keys", [{"min": 4}, {"batch_sizes": [4]}])
@pytest.mark.parametrize("pad", [True, False])
def test_an_item_that_runs_again_keeps_to_the_range_of_the_class_not_to_the_keys_of_the_node(
    keys, pad
):
    sizes = []

    @headrace.register("OneIsBad")
    class OneIsBad(headrace.Backend):
        rerun = True

        def forward(self, batch):
            sizes.append(len(batch))
            for request in batch:
                request["result"] = 1 / request["data"]

    config = {"backend": "OneIsBad", "max": 4, "batching_timeout": 1e9, "pad": pad, **keys}
    requests = [{"data": data} for data in (1, 0, 1, 1)]
    with headrace.pipe(config) as pipe, pytest.raises(RequestsFailed):
        pipe(requests)
    assert sizes == [4, 1, 1, 1, 1]
    assert [request.get("result") for request in requests] == [1, None, 1, 1]


# What cannot be read.


class NoRepr:
    def __repr__(self):
        raise RuntimeError("repr")


class Unreadable(dict):
    def get(self, *_):
        raise RuntimeError("get")


BAD = {
    "weight": lambda: {"data": 1, "request_size": 10**5000},
    "weight without repr": lambda: {"data": 1, "request_size": NoRepr()},
    "node without repr": lambda: {"data": 1, "node_name": NoRepr()},
    "long node": lambda: {"data": 1, "node_name": 10**5000},
    "dict": lambda: Unreadable(data=1, request_size=1),
}
GRAPH = {"a": {"backend": "Gate", "next": "b"}, "b": {"backend": "Gate"}}


@pytest.mark.parametrize("config", [{"backend": "Gate"}, GRAPH], ids=["one", "graph"])
@pytest.mark.parametrize("name", BAD)
def test_one_bad_item_fails_alone(gate, config, name):
    if config is not GRAPH and "node" in name:
        pytest.skip("one node asks for no name")
    gate.open()
    with headrace.pipe(config) as pipe:
        for way in (pipe, lambda items: asyncio.run(pipe.call_async(items))):
            items = [{"data": 1}, BAD[name](), {"data": 2}]
            with pytest.raises(RequestsFailed) as caught:
                way(items)
            assert isinstance(caught.value.errors[1], InputError)
            assert caught.value.errors[0] is caught.value.errors[2] is None
            assert [items[0]["result"], items[2]["result"]] == [1, 2]
            assert len(str(caught.value)) < 5000
        futures = pipe.submit([{"data": 1}, BAD[name](), {"data": 2}])
        assert isinstance(futures[1].exception(LATE_S), InputError)
        assert [futures[k].result(LATE_S)["result"] for k in (0, 2)] == [1, 2]


# Between two nodes.


def test_cancel_is_true_for_all_branches_or_for_none(gate, until):
    config = {"a": {"backend": "Identity", "next": "b,c"}}
    config.update({name: {"backend": "Gate"} for name in "bc"})
    with headrace.pipe(config) as pipe:
        blockers = [pipe.submit({"data": name, "node_name": name}) for name in "bc"]
        gate.wait_entered(2)
        future = pipe.submit({"data": "both"})
        until(lambda: node(pipe, "b")["waiting"] == node(pipe, "c")["waiting"] == 1)
        assert future.cancel()
        assert node(pipe, "b")["waiting"] == node(pipe, "c")["waiting"] == 0
        half = pipe.submit({"data": "half"})
        until(lambda: node(pipe, "b")["waiting"] == node(pipe, "c")["waiting"] == 1)
        gate.let_go()
        gate.wait_entered()  # one branch of it runs
        assert not half.cancel()
        gate.open()
        assert half.result(LATE_S)["result"] == {"b": "half", "c": "half"}
        for one in blockers:
            one.result(LATE_S)
        assert ["both"] not in gate.batches


# Futures.


def test_a_callback_that_never_ends_or_exits_starves_no_other_and_keeps_nobody_waiting(
    gate, caplog
):
    caplog.set_level(logging.CRITICAL)
    go, called = threading.Event(), threading.Semaphore(0)
    with headrace.pipe({"backend": "Gate", "max": 8}) as pipe:
        futures = pipe.submit([{"data": k} for k in range(6)])

        def leave(_):
            raise SystemExit

        futures[0].add_done_callback(lambda _: go.wait(LATE_S))
        futures[1].add_done_callback(leave)
        futures[1].add_done_callback(lambda _: called.release())
        for one in futures[2:]:
            one.add_done_callback(lambda _: called.release())
        gate.open()
        for _ in range(5):
            assert called.acquire(timeout=LATE_S)
        assert [future.result(LATE_S)["result"] for future in futures] == list(range(6))
        assert pipe({"data": 9})["result"] == 9
        go.set()


def test_a_request_that_is_closed_while_its_failed_batch_ends_is_counted_as_closed():
    read, leave = threading.Event(), threading.Event()

    class SlowError(BackendError):
        """The runner has noted the code of the item before, and waits as it reads this one."""

        @property
        def code(self):
            read.set()
            assert leave.wait(LATE_S)
            return "slow"

    @headrace.register("Fails")
    class Fails(headrace.Backend):
        def forward(self, batch):
            return [ValueError("first"), SlowError("second")]

    pipe = headrace.pipe({"backend": "Fails", "max": 2})
    futures = pipe.submit([{"data": 1}, {"data": 2}])
    assert read.wait(LATE_S)
    pipe.close(drain=False, timeout=0)
    found = node(pipe)["failed"]
    leave.set()
    assert [type(future.exception(LATE_S)) for future in futures] == [ClosedError, ClosedError]
    assert found == {"closed": 2}


def test_wait_and_as_completed_take_futures_that_are_done_beside_others_that_are_not(gate, client):
    with headrace.pipe({"backend": "Gate", "max": 1}) as pipe:
        waits = gate.entered(pipe.submit({"data": "waits"}))
        dropped = pipe.submit({"data": "dropped"})
        assert dropped.cancel()
        refused = pipe.submit(None)
        both = [waits, dropped, refused]
        assert concurrent.futures.wait(both, 0) == ({dropped, refused}, {waits})
        first = concurrent.futures.wait(both, LATE_S, concurrent.futures.FIRST_COMPLETED)
        assert first == ({dropped, refused}, {waits})
        waiting = client(concurrent.futures.wait, both, LATE_S)
        listed = client(lambda: list(concurrent.futures.as_completed(both, LATE_S)))
        completed = concurrent.futures.as_completed(both, LATE_S)
        assert {next(completed), next(completed)} == {dropped, refused}
        gate.open()
        assert list(completed) == [waits]
        assert waiting.outcome() == (set(both), set())
        assert sorted(map(id, listed.outcome())) == sorted(map(id, both))


# Closing.


@pytest.fixture
def hangs():
    """Register a backend of which the first instance hangs in its ``close``; give what lets it go."""
    go, closed = threading.Event(), []

    class Hangs(headrace.Backend):
        def init(self, options, context):
            self.index = context.instance_index

        def forward(self, batch):
            for request in batch:
                request["result"] = request["data"]

        def close(self):
            if self.index == 1:
                go.wait(LATE_S)
            closed.append(self.index)
            done[self.index].set()

    done = [threading.Event() for _ in range(3)]
    headrace.register("Hangs", Hangs)
    yield go, closed, done
    go.set()


@pytest.mark.parametrize("backend", ["Hangs", "BackgroundThread[Hangs]"])
def test_a_close_that_hangs_is_left_behind_and_named(hangs, caplog, backend):
    go, closed, done = hangs
    pipe = headrace.pipe({"backend": backend, "instance_num": 3})
    pipe({"data": 1})
    with caplog.at_level(logging.WARNING, "headrace.close"):
        pipe.close(timeout=0)
    assert "instance 1 of node main" in caplog.text
    assert done[0].wait(LATE_S)
    assert done[2].wait(LATE_S)
    assert 1 not in closed
    assert pipe.stats()["state"] == "closed"
    pipe.close(timeout=0)  # a second one waits no longer
    go.set()
    assert done[1].wait(LATE_S)
    assert sorted(closed) == [0, 1, 2]


# Policies and lines.


def test_what_is_too_light_for_the_free_instance_waits_for_the_other(gate):
    ranges = iter([(1, 4), (3, 8)])

    class Ranged(headrace.Backend):
        def init(self, options, context):
            self.min, self.max = next(ranges)

        def forward(self, batch):
            gate.run(batch)

    headrace.register("Ranged", Ranged)
    with headrace.pipe({"backend": "Ranged", "instance_num": 2}) as pipe:
        held = gate.entered(pipe.submit({"data": "held"}))
        light, heavy = pipe.submit([{"data": "light"}, {"data": "heavy", "request_size": 8}])
        gate.open()
        for future in (held, light, heavy):
            assert future.exception(LATE_S) is None


def test_an_event_loop_that_lost_a_wake_up_is_woken_by_a_later_request():
    """As after Ctrl-C in the loop, just before it does what a thread has scheduled."""

    async def main(pipe):
        loop = asyncio.get_running_loop()
        wakes, lost = loop.call_soon_threadsafe, []

        def loses_the_first(*call):
            if lost:
                return wakes(*call)
            lost.append(call)
            return None

        loop.call_soon_threadsafe = loses_the_first
        first = asyncio.ensure_future(pipe.call_async({"data": 1}))
        while not lost:
            await asyncio.sleep(0)
        while not first.done():
            await asyncio.wait_for(pipe.call_async({"data": 2}), LATE_S)
        return await first

    with headrace.pipe({"backend": "Identity"}) as pipe:
        assert asyncio.run(main(pipe))["result"] == 1


def test_coroutines_of_one_batch_are_woken_by_one_call_into_their_loop(gate, until):
    calls = []

    async def main(pipe):
        loop = asyncio.get_running_loop()
        wakes = loop.call_soon_threadsafe
        loop.call_soon_threadsafe = lambda *call: (calls.append(call), wakes(*call))[1]
        tasks = [asyncio.ensure_future(pipe.call_async({"data": place})) for place in range(9)]
        await asyncio.to_thread(gate.wait_entered)  # the first; the others wait
        assert pipe.stats()["nodes"]["main"]["submitted"] == 9
        calls.clear()
        gate.open()
        until(
            lambda: node(pipe)["ok"] == 9
        )  # in the thread of the loop, which comes to no call meanwhile
        return await asyncio.gather(*tasks)

    with headrace.pipe({"backend": "OwnGate", "max": 8}) as pipe:
        answers = asyncio.run(main(pipe))
    assert [answer["result"] for answer in answers] == list(range(9))
    assert len(calls) <= 3


# Memory.


@pytest.mark.parametrize("clears", [False, True])
def test_an_exception_that_is_raised_again_and_again_keeps_one_request_at_most(clears, until):
    constant = ValueError("the same each time")

    class Heavy:
        pass

    class Same(headrace.Backend):
        max = 4

        def forward(self, batch):
            raise constant

    headrace.register("Same", Same)
    gone = []
    with headrace.pipe({"backend": "Same"}) as pipe:
        for _ in range(5):
            heavy = Heavy()
            gone.append(weakref.ref(heavy))
            with pytest.raises(BackendError) as caught:
                pipe({"data": heavy})
            assert caught.value.__cause__ is constant
            if clears:  # as unittest's assertRaises does
                traceback.clear_frames(constant.__traceback__)
            del heavy, caught
        # Another thread, which has run the last one, may leave a moment later.
        until(lambda: gc.collect() >= 0 and sum(ref() is not None for ref in gone) <= 1)
