"""What a thread takes (an instance, a batch, a token) is never left with nobody: not by an interrupt, a refused thread, or a full stack."""

from __future__ import annotations

import _thread
import asyncio
import gc
import sys
import threading
import time

import internals
import pytest

import headrace
from headrace.errors import BackendError, ContractError, DeadlineExceededError


class NoExceptionError(BaseException):
    """As KeyboardInterrupt and SystemExit are."""


class TakenEcho(headrace.Backend):
    def forward(self, batch):
        for request in batch:
            request["result"] = request["data"]


class TakenOwn(TakenEcho):
    owns_thread = True


headrace.register("TakenEcho", TakenEcho)
headrace.register("TakenOwn", TakenOwn)


# A batch.


@pytest.mark.parametrize("raised", [NoExceptionError, SystemExit, asyncio.CancelledError])
def test_who_leaves_by_what_is_no_exception_takes_no_batch_along(raised, client):
    """The second one of a list raises it, while a third request waits."""
    third = []

    class Leaves(headrace.Backend):
        def forward(self, batch):
            data = batch[0]["result"] = batch[0]["data"]
            if data == "first":
                third.append(pipe.submit({"data": "third"}))
            if data == "second":
                raise raised

    headrace.register("TakenLeaves", Leaves, replace=True)
    with headrace.pipe({"backend": "TakenLeaves"}) as pipe:

        def work():
            for number in range(100):  # so that batches are known to be short
                pipe({"data": number})
            pipe([{"data": "first"}, {"data": "second"}])

        with pytest.raises((raised, headrace.errors.RequestsFailed)):
            client(work).outcome()
        assert third[0].result(timeout=30)["result"] == "third"


# A request that a backend keeps.


@pytest.mark.parametrize("asked", ["on_end", "finish", "resume"])
def test_who_asks_for_a_request_and_does_not_say_keeps_is_told_so(asked):
    class Asks(headrace.Backend):
        def init(self, options, context):
            self.context = context

        def forward(self, batch):
            more = {"on_end": [print], "finish": [1]}.get(asked, [])
            getattr(self.context.request, asked)(self.context.request.keep(batch[0]), *more)

    headrace.register("TakenAsks", Asks, replace=True)
    with (
        headrace.pipe({"backend": "TakenAsks"}) as pipe,
        pytest.raises(ContractError, match=f"called context.request.{asked}") as caught,
    ):
        pipe({"data": 1})
    assert "keeps = True" in str(caught.value)


def test_pending_of_a_class_that_does_not_say_keeps_is_refused():
    class Later(headrace.Backend):
        def forward(self, batch):
            return [headrace.PENDING for _ in batch]

    headrace.register("TakenLater", Later, replace=True)
    with headrace.pipe({"backend": "S[TakenEcho,TakenLater]"}) as pipe:
        for ask in (pipe, lambda request: pipe.submit(request).result()):
            with pytest.raises(ContractError, match="returned PENDING") as caught:
                ask({"data": 1})
            assert "keeps = True" in str(caught.value)


def test_of_many_callers_each_has_its_own_answer_where_some_are_kept(client):
    """Before its class said so, an entry that was made for one of them could be taken for that of the next."""

    class Mixes(headrace.Backend):
        keeps = True

        def init(self, options, context):
            self.context = context

        def forward(self, batch):
            (request,) = batch
            number = request["data"]
            if number % 2:
                handle = self.context.request.keep(request)
                assert self.context.request.finish(handle, ("finished", number))
                return [headrace.PENDING]
            handle = self.context.request.keep(request)
            self.context.request.on_end(
                handle, lambda given: told.append((number, given == handle))
            )
            request["result"] = ("answered", number)
            return None

    told = []
    headrace.register("TakenMixes", Mixes, replace=True)
    with headrace.pipe({"backend": "TakenMixes"}) as pipe:

        def calls(first):
            for number in range(first, first + 50):
                got = pipe({"data": number})["result"]
                assert got == ("finished" if number % 2 else "answered", number)

        for one in [client(calls, 100 * k) for k in range(6)]:
            one.outcome()
    assert all(own for _, own in told)


# Room.


def test_a_list_counts_itself_where_it_waits_for_room(gate, client, until):
    with headrace.pipe({"backend": "Gate", "queue_size": 4}) as pipe:
        requests = [{"data": n} for n in range(20)]
        many = client(lambda: (pipe.submit(requests), len(gate.batches)))
        gate.wait_entered()
        until(lambda: pipe.stats()["nodes"]["main"]["waiting"] == 19)
        gate.open()
        futures, begun = many.outcome()
        assert begun >= 20 - 4
        assert [one.result()["result"] for one in futures] == [*range(20)]


# A thread that cannot be started.


def test_a_timer_whose_thread_was_refused_once_is_started_later(monkeypatch):
    class Slow(headrace.Backend):
        def forward(self, batch):
            released.wait(30)
            batch[0]["result"] = 1

    refused, released, start = [], threading.Event(), _thread.start_new_thread

    def start_new_thread(function, args, *rest):
        if getattr(function, "__qualname__", "") == "Timer._run" and not refused:
            refused.append(1)
            raise RuntimeError("can't start new thread")
        return start(function, args, *rest)

    headrace.register("TakenSlow", Slow, replace=True)
    with internals.own_threads():
        monkeypatch.setattr(_thread, "start_new_thread", start_new_thread)
        with headrace.pipe({"backend": "TakenSlow"}) as pipe:
            with pytest.raises(BackendError, match="no thread could be started"):
                pipe.submit({"data": 0}, timeout=60).result()
            assert refused
            with pytest.raises(DeadlineExceededError):
                pipe.submit({"data": 1}, timeout=0.05).result(timeout=30)
            released.set()


def test_a_job_for_which_no_thread_was_found_is_not_done_later(monkeypatch, until):
    """Who brought it has been told so, and has done something else: a batch would be run twice."""
    pool, done = internals.Pool(), []
    with monkeypatch.context() as patched:
        patched.setattr(_thread, "start_new_thread", internals.refuse_thread)
        with pytest.raises(RuntimeError):
            pool.run(done.append, "refused")
    pool.run(done.append, "later")
    until(lambda: "later" in done)
    assert done == ["later"]


# A step of closing that hangs.


def test_a_thread_that_comes_back_from_a_step_left_behind_takes_no_further_one(client, until):
    """Else the third step would run beside the second: what instances share would be closed before them."""
    pool, hangs, goes_on, done = internals.Pool(), threading.Event(), threading.Event(), []

    def second():
        goes_on.wait(30)
        done.append("second")

    steps = [
        ("first", lambda: hangs.wait(30)),
        ("second", second),
        ("third", lambda: done.append("third")),
    ]
    closing = internals.Pass(steps, pool)
    closing.start(time.monotonic())
    assert closing.current == "first"
    hangs.set()
    until(lambda: len(pool._parked) == 1)  # the thread of the first step has nothing to do
    assert done == []
    goes_on.set()
    until(lambda: done == ["second", "third"])
    until(lambda: closing.current is None)


# A stack without room.


def call_at(room, function):
    """Call a function in a thread that has ``room`` frames left then, and drop what it raises."""

    def deep(levels):
        return function() if levels <= 0 else deep(levels - 1)

    def run():
        frame, depth = sys._getframe(), 0
        while frame:
            depth, frame = depth + 1, frame.f_back
        try:
            deep(sys.getrecursionlimit() - depth - room)
        except RecursionError:
            return
        except BackendError as error:
            assert "recursion" in str(error.__cause__)  # noqa: PT017

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()


@pytest.fixture
def no_collection():
    """Let no pipeline of an earlier test be collected, and so closed, where there is no stack for that."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


CALLS = {
    "call": lambda pipe: pipe({"data": 1}),
    "list": lambda pipe: pipe([{"data": 1}, {"data": 2}]),
    "timeout": lambda pipe: pipe({"data": 1}, timeout=60),
    "submit": lambda pipe: pipe.submit({"data": 1}),
    "submit a list": lambda pipe: pipe.submit([{"data": 1}, {"data": 2}]),
    "stream": lambda pipe: list(pipe.stream({"data": 1})),
    "stats": lambda pipe: pipe.stats(),
}


@pytest.mark.usefixtures("no_collection")
@pytest.mark.parametrize("backend", ["TakenEcho", "TakenOwn"])
@pytest.mark.parametrize("call", CALLS)
def test_a_caller_without_stack_takes_nothing_with_it(call, backend):
    with headrace.pipe({"backend": backend, "max": 2}) as pipe:
        for room in range(1, 80):
            call_at(room, lambda: CALLS[call](pipe))
            assert pipe.submit({"data": room}).result(timeout=30)["result"] == room
        assert pipe.stats()["nodes"]["main"]["waiting"] == 0


@pytest.mark.usefixtures("no_collection")
@pytest.mark.parametrize("room", range(1, 80, 3))
def test_a_close_without_stack_may_be_tried_again(room):
    pipe = headrace.pipe({"backend": "TakenEcho"})
    call_at(room, pipe.close)
    pipe.close()
    assert pipe.stats()["state"] == "closed"
