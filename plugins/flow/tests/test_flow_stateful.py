"""StateFul: the state of each session between its requests, whose order it keeps."""

from __future__ import annotations

import asyncio
import gc
import math
import threading
from decimal import Decimal

import numpy as np
import pytest

import headrace
from headrace import errors
from headrace_flow.stateful import StateFul
from headrace_testing import FakeClock

WAIT_S = 60.0
"""Only what hangs reaches this."""

KEEP = {"total": "before"}


class Adder(headrace.Backend):
    """Adds ``data`` to what it said before. A test may hold its batches, and see them."""

    reads = ("data",)
    batches: list  # the requests of each batch, as (session, data)
    gate: threading.Semaphore | None = None
    began: threading.Semaphore

    def forward(self, batch):
        self.batches.append([(one["session"], one["data"]) for one in batch])
        self.began.release()
        if self.gate is not None:
            assert self.gate.acquire(timeout=WAIT_S)
        outcomes = []
        for request in batch:
            if isinstance(request["data"], Exception):
                outcomes.append(request["data"])
                continue
            total = request.get("before", 0) + request["data"]
            request["result"] = {"total": total, "said": total}
            outcomes.append(None)
        return outcomes


@pytest.fixture
def adder():
    Adder.batches, Adder.gate, Adder.began = [], None, threading.Semaphore(0)
    headrace.register("Adder", Adder, replace=True)
    return Adder


@pytest.fixture
def clock():
    made = FakeClock()

    class Timed(StateFul):
        """StateFul on a clock that a test moves."""

        clock = staticmethod(made)

    headrace.register("Timed", Timed, replace=True)
    return made


def config(backend="StateFul(session)[Adder]", **keys):
    return {"backend": backend, "keep": KEEP, **keys}


def ask(pipe, session, data, **keys):
    return pipe({"session": session, "data": data, **keys})["result"]["said"]


def sessions(pipe):
    return pipe.stats()["sessions"]["main"]


@pytest.mark.first("loop, cache, limit, keep state: a session keeps its state")
def test_requests_of_different_sessions_share_batches(adder):
    with headrace.pipe(config(max=8)) as pipe:
        adder.gate = threading.Semaphore(0)
        futures = [pipe.submit({"session": "a", "data": 1})]
        assert adder.began.acquire(timeout=WAIT_S)
        futures += [pipe.submit({"session": name, "data": 1}) for name in (*range(4), *"aaaaa")]
        adder.gate.release(100)
        for future in futures:
            future.result(WAIT_S)
    assert max(map(len, adder.batches)) == 5  # four others, and one of "a"


@pytest.mark.first("loop, cache, limit, keep state: a session keeps its state")
def test_who_waits_for_a_turn_holds_no_instance_and_no_other_session(adder):
    with headrace.pipe(config(max=1, instance_num=2)) as pipe:
        adder.gate = threading.Semaphore(0)
        futures = [pipe.submit({"session": "a", "data": 1}) for _ in range(3)]
        assert adder.began.acquire(timeout=WAIT_S)
        other = pipe.submit({"session": "b", "data": 1})
        assert adder.began.acquire(timeout=WAIT_S)
        assert [one for batch in adder.batches for one in batch] == [("a", 1), ("b", 1)]
        assert sessions(pipe)["busy"] == 2
        for _ in range(4):
            adder.gate.release()
        assert other.result(WAIT_S)["result"]["said"] == 1
        assert [one.result(WAIT_S)["result"]["said"] for one in futures] == [1, 2, 3]
        assert sessions(pipe)["busy"] == 0


def test_a_request_that_nobody_waits_for_when_it_ends_leaves_the_state_as_it_was(adder):
    async def leave(pipe):
        task = asyncio.create_task(pipe.call_async({"session": "a", "data": 10}))
        assert await asyncio.to_thread(adder.began.acquire, timeout=WAIT_S)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    with headrace.pipe(config()) as pipe:
        assert ask(pipe, "a", 1) == 1
        assert adder.began.acquire(timeout=WAIT_S)
        adder.gate = threading.Semaphore(0)
        asyncio.run(leave(pipe))
        adder.gate.release(2)
        assert ask(pipe, "a", 1) == 2


def test_a_session_that_runs_for_long_is_not_idle(adder, clock):
    with headrace.pipe(config("Timed(session)[Adder]", idle_s=10, max=1, instance_num=2)) as pipe:
        adder.gate = threading.Semaphore(0)
        futures = [pipe.submit({"session": "a", "data": 1}) for _ in range(2)]
        assert adder.began.acquire(timeout=WAIT_S)
        clock.advance(100)
        assert sessions(pipe)["kept"] == 1
        adder.gate.release(2)
        assert [one.result(WAIT_S)["result"]["said"] for one in futures] == [1, 2]


def test_the_end_of_a_batch_comes_before_the_next_turn():
    """What a device still computes is waited for before another instance may read the state."""
    ended, seen = set(), []

    class Device(headrace.Backend):
        reads = ("data",)

        def init(self, options, context):
            self.fresh = []
            context.batch.at_end(self.end)

        def end(self):
            ended.update(map(id, self.fresh))
            self.fresh = []

        def forward(self, batch):
            for request in batch:
                if "before" in request:
                    seen.append(id(request["before"]) in ended)
                made = object()
                kept.append(made)
                self.fresh.append(made)
                request["result"] = {"total": made}

    kept = []
    headrace.register("Device", Device, replace=True)
    with headrace.pipe(config("StateFul(session)[Device]", max=4, instance_num=3)) as pipe:
        futures = [pipe.submit({"session": i % 3, "data": i}) for i in range(60)]
        for one in futures:
            one.result(WAIT_S)
    assert len(seen) == 57
    assert all(seen)


class OnDevice:
    """An array that lies elsewhere: whoever copies it, or reads it here, fails."""

    def __init__(self, value):
        self.value = value

    def _refused(self, *_, **__):
        raise AssertionError("the state was copied")

    __copy__ = __deepcopy__ = __array__ = __reduce__ = __reduce_ex__ = __eq__ = _refused
    __hash__ = None
    __bool__ = __len__ = __iter__ = _refused


def test_the_state_is_the_object_that_was_written():
    class Elsewhere(headrace.Backend):
        reads = ("data",)
        writes = ("result", "total")

        def forward(self, batch):
            for request in batch:
                before = request.get("before")
                assert before is (made[-1] if made else None)
                made.append(OnDevice(request["data"]))
                request["total"] = made[-1]
                request["result"] = request["data"]

    made = []
    headrace.register("Elsewhere", Elsewhere, replace=True)
    with headrace.pipe(config("StateFul(session)[Elsewhere]")) as pipe:
        for i in range(3):
            request = pipe({"session": "a", "data": i})
            assert {*request} == {"session", "data", "result"}
    assert len(made) == 3


def declared(shape, dtype="float32", **about):
    class Declares(headrace.Backend):
        reads = ("data", "before")

        def describe(self):
            port = {"dtype": dtype, "shape": shape, "key": "before", **about}
            outputs = {"total": port, "said": port}
            return {
                "inputs": {"h": port, "data": {"dtype": dtype, "shape": [None]}},
                "outputs": outputs,
            }

        def forward(self, batch):
            for request in batch:
                total = request["before"] + request["data"]
                request["result"] = {"total": total, "said": total}

    headrace.register("Declares", Declares, replace=True)
    return "StateFul(session)[Declares]"


@pytest.mark.parametrize(
    ("shape", "about", "expected"),
    [
        ([None, 2, 3], {}, (2, 3)),
        ([2, None, 3], {"batch_axis": 1}, (2, 3)),
        ([2, 3], {"batched": False}, (2, 3)),
        ([None], {}, ()),
    ],
)
def test_a_session_begins_with_zeros_of_what_is_declared(shape, about, expected):
    backend = declared(shape, "int16", **about)
    with headrace.pipe(config(backend)) as pipe:
        for begins in (False, True):
            said = ask(pipe, "a", np.int16(3), sequence_start=begins)
            assert np.shape(said) == expected
            assert said.dtype == np.int16
            assert np.all(said == 3)
        if about.get("batched", True):
            said = pipe({"session": "b", "data": np.int16(3), "request_size": 1})["result"]["said"]
            axis = about.get("batch_axis", 0)
            assert np.shape(said) == (*expected[:axis], 1, *expected[axis:])
        built = pipe.describe()["nodes"]["main"]["tree"]["built"]
        assert [*built["inputs"]] == ["data"]
        assert [*built["outputs"]] == ["said"]
        assert built["initial"] == ["before"]


@pytest.mark.parametrize(
    ("backend", "keys"),
    [
        ((([None, None]), "float32"), {}),
        ((([None, 2]), "no dtype"), {}),
        ((([None, 2]), "float32"), {"initial": "none"}),
    ],
)
def test_what_is_not_declared_is_absent_at_first(backend, keys):
    with (
        headrace.pipe(config(declared(*backend), **keys)) as pipe,
        pytest.raises(errors.BackendError, match="before"),
    ):
        ask(pipe, "a", 1)


def test_an_output_that_is_not_there_is_named(adder):
    with headrace.pipe({**config(), "keep": {"totl": "before"}}) as pipe:
        with pytest.raises(errors.ContractError, match="no 'totl' to keep") as caught:
            ask(pipe, "a", 1)
        assert "'total', 'said'" in str(caught.value.hint)


def test_a_session_that_cannot_be_hashed_fails_alone(adder):
    with headrace.pipe(config(max=4)) as pipe:
        with pytest.raises(errors.InputError) as caught:
            ask(pipe, [1], 1)
        assert caught.value.key == "session"
        with pytest.raises(errors.InputError, match="no session"):
            pipe({"data": 1})
        assert ask(pipe, (1,), 1) == 1


@pytest.mark.first("loop, cache, limit, keep state: a session keeps its state")
def test_sessions_that_a_dict_takes_for_one_are_told_apart(adder):
    apart = [1, True, "1", "True", (1,), (True,), ("a", (0, False)), ("a", (0, 0)), frozenset({1})]
    apart += [frozenset({True}), 0, False, b"1", "", (), None.__class__, ("x", None)]
    with headrace.pipe(config(max=4)) as pipe:
        assert [ask(pipe, one, 1) for one in apart] == [1] * len(apart)
        assert sessions(pipe)["kept"] == len(apart)
        assert [ask(pipe, one, 1) for one in reversed(apart)] == [2] * len(apart)
        # What Python holds for the same number or the same text is one session, as before.
        same = [np.int64(1), 1.0, np.float32(1), np.str_("1"), np.True_, (np.int8(1),)]
        assert [ask(pipe, one, 1) for one in same] == [3, 4, 5, 3, 3, 3]


@pytest.mark.parametrize(
    "session",
    [
        *(None, math.nan, np.float32("nan"), complex("nan"), Decimal("nan"), Decimal("snan")),
        *(("a", math.nan), frozenset({math.nan}), np.datetime64("NaT"), np.array(1), {}, ([],)),
    ],
    ids=repr,
)
def test_what_names_no_session_is_refused_and_leaves_no_session(adder, session):
    with headrace.pipe(config(max=4)) as pipe:
        requests = [{"session": one, "data": 1} for one in ("a", session, "b")]
        with pytest.raises(errors.RequestsFailed) as caught:
            pipe(requests)
        first, error, last = caught.value.errors
        assert (first, last) == (None, None)
        assert isinstance(error, errors.InputError)
        assert error.key == "session"
        assert sessions(pipe)["kept"] == 2


STARTED = "must specify the START flag on the first request of the sequence"


def begun(pipe, session, **keys):
    """Return whether a request of a session is answered, and not refused since nobody has begun it."""
    try:
        ask(pipe, session, 1, **keys)
    except errors.InputError as error:
        if STARTED not in str(error):
            raise
        return False
    return True


def test_the_context_says_whose_session_it_is_and_who_has_to_begin_it(adder):
    alice, bob = ({"client": name, "clients": 2} for name in ("alice", "bob"))
    with headrace.pipe(config(states=5)) as pipe:
        assert [ask(pipe, 1, n, context=alice) for n in (1, 2)] == [1, 3]
        assert ask(pipe, 1, 10, context=bob, sequence_end=True) == 10
        assert ask(pipe, 1, 100) == 100
        assert ask(pipe, 1, 3, context=alice) == 6
        ask(pipe, 2, 1, context=alice)
        with pytest.raises(errors.OverloadedError, match="2 sessions of this client are kept"):
            ask(pipe, 3, 1, context=alice)
        assert [ask(pipe, n, 1, context=bob) for n in (1, 2)] == [1, 1]
        assert [ask(pipe, n, 1) for n in range(2, 6)] == [1] * 4
        with pytest.raises(errors.OverloadedError, match="5 sessions are kept"):
            ask(pipe, 6, 1)
        assert sessions(pipe)["kept"] == 9
        assert ask(pipe, 2, 1, context=alice, sequence_end=True) == 2
        assert not begun(pipe, 3, context={**alice, "sequence_start": "required"})
        assert begun(pipe, 3, context=alice)


def test_the_option_says_who_begins_whatever_the_context_says(adder):
    with headrace.pipe(config(start="begin")) as pipe:
        assert begun(pipe, 1, context={"sequence_start": "required"})
    with pytest.raises(errors.ConfigError, match="'begin' or 'required'"):
        headrace.pipe(config(start="never"))


@pytest.mark.parametrize("name", ["sequence_start", "sequence_end"])
@pytest.mark.parametrize(
    ("value", "meant"),
    [
        *((one, True) for one in (True, 1, np.True_, np.int8(1), "true", "TRUE", "1")),
        *((one, False) for one in (False, 0, np.False_, None, "false", "fAlse", "0")),
        *((one, None) for one in ("", "no", "yes", "None", 2, -1, 0.5, math.nan, [], [True], b"1")),
    ],
    ids=repr,
)
def test_a_flag_is_true_or_false(adder, name, value, meant):
    with headrace.pipe(config()) as pipe:
        ask(pipe, "a", 1)
        if meant is None:
            with pytest.raises(errors.InputError, match="expected true, false, 1 or 0") as caught:
                ask(pipe, "a", 1, **{name: value})
            assert caught.value.key == name
            assert ask(pipe, "a", 1) == 2
            return
        found = ask(pipe, "a", 1, **{name: value})
        after = ask(pipe, "a", 1)
        if name == "sequence_start":
            assert (found, after) == ((1, 2) if meant else (2, 3))
        else:
            assert (found, after) == ((2, 1) if meant else (2, 3))


def test_a_plan_says_what_keeps_a_state():
    plan = headrace.PipelineConfig.load(config("StateFul(session)[Identity]")).plan()
    assert [one.stateful for one in plan.nodes["main"].tree.walk()] == [True, False]
    assert plan.to_dict()["nodes"]["main"]["tree"]["stateful"] is True


@pytest.mark.parametrize(
    ("keep", "text"),
    [
        ({"total": "context"}, "'context' has a meaning already"),
        ({"total": "session"}, "'session' has a meaning already"),
        ({"total": "sequence_end"}, "has a meaning already"),
        ({"a": "x", "b": "x"}, "two outputs go to one key"),
        (None, "keep"),
    ],
)
def test_wrong_options_are_refused_before_anything_is_built(adder, keep, text):
    keys = {"backend": "StateFul(session)[Adder]", **({} if keep is None else {"keep": keep})}
    with pytest.raises(errors.ConfigError, match=text):
        headrace.pipe(keys)


def test_with_an_empty_table_it_only_keeps_the_order(adder):
    with headrace.pipe({**config(), "keep": {}}) as pipe:
        assert [ask(pipe, "a", 1), ask(pipe, "a", 1)] == [1, 1]
        assert pipe({"session": 1, "data": 1})["result"] == {"total": 1, "said": 1}
        assert pipe({"session": 1, "data": 1, "before": 4})["result"] == {"total": 5, "said": 5}


def test_what_is_left_below_the_least_batch_is_filled_up():
    class Pairs(headrace.Backend):
        reads = ("data",)
        min = 2

        def forward(self, batch):
            for request in batch:
                total = request.get("before", 0) + request["data"]
                request["result"] = {"total": total, "said": total}

    headrace.register("Pairs", Pairs, replace=True)
    with headrace.pipe(config("StateFul(session)[Pairs]", pad=True, max=4)) as pipe:
        futures = [pipe.submit({"session": "a", "data": 1}) for _ in range(5)]
        said = [one.result(WAIT_S)["result"]["said"] for one in futures]
        assert said == [1, 2, 3, 4, 5]


@pytest.mark.first("loop, cache, limit, keep state: a session keeps its state")
def test_the_state_of_a_session_that_has_ended_is_free():
    class State:
        alive = 0

        def __init__(self):
            State.alive += 1

        def __del__(self):
            State.alive -= 1

    class Makes(headrace.Backend):
        reads = ("data",)

        def forward(self, batch):
            for request in batch:
                request["result"] = {"total": State()}

    headrace.register("Makes", Makes, replace=True)
    with headrace.pipe(config("StateFul(session)[Makes]")) as pipe:
        for i in range(6):
            pipe({"session": i % 2, "data": 0, "sequence_end": i == 5})
        gc.collect()
        assert State.alive == 1
