"""Requests that nobody has looked at yet: begun in event loops, in great number, given up, and beside a close."""

from __future__ import annotations

import asyncio
import sys
import threading

import pytest

import headrace
from headrace.errors import ClosedError

WAIT_S = 60.0
"""A test that hangs fails after this."""

ROUNDS = 30


class Twice(headrace.Backend):
    max = 64

    def forward(self, batch):
        for request in batch:
            request["result"] = 2 * request["data"]


class Held(headrace.Backend):
    """Runs a batch once it may, and notes what it has run."""

    ran: list
    entered: threading.Event
    opened: threading.Event

    def forward(self, batch):
        for request in batch:
            self.ran.append(request["data"])
            self.entered.set()
            assert self.opened.wait(WAIT_S)
            request["result"] = request["data"]


@pytest.fixture
def held():
    headrace.register("Held", Held, replace=True)
    yield lambda: vars_of(Held)
    Held.opened.set()


def vars_of(cls):
    """Begin anew: nothing has run, and nothing may."""
    cls.ran, cls.entered, cls.opened = [], threading.Event(), threading.Event()
    return cls


def in_thread(function, *args):
    thread = threading.Thread(target=function, args=args, daemon=True)
    thread.start()
    return thread


def ended(thread):
    thread.join(WAIT_S)
    return not thread.is_alive()


@pytest.mark.parametrize("nodes", ["one", "two"])
def test_ten_thousand_requests_of_a_loop_each_send_the_next_one(nodes):
    headrace.register("Twice", Twice, replace=True)
    chain = {"a": {"backend": "Twice", "next": "b"}, "b": {"backend": "Twice"}}
    config, factor = ({"backend": "Twice"}, 2) if nodes == "one" else (chain, 4)
    count, right, wrong, deepest, inside = 10_000, [], [], [0], [False]

    async def main(pipe):
        over = asyncio.Event()

        def begin(n, again):
            inside[0] = True
            pipe.call_soon({"data": n}, lambda call: done(call, n, again))
            inside[0] = False

        def done(call, n, again):
            if inside[0] or call.error is not None or call.request["result"] != factor * n:
                wrong.append((n, call.error))
            depth, frame = 0, sys._getframe()
            while frame := frame.f_back:
                depth += 1
            deepest[0] = max(deepest[0], depth)
            right.append(n)
            if again:
                begin(n, again=False)
            if len(right) == 2 * count:
                over.set()

        base, frame = 0, sys._getframe()
        while frame := frame.f_back:
            base += 1
        for n in range(count):
            begin(n, again=True)
        await asyncio.wait_for(over.wait(), WAIT_S)
        assert deepest[0] < base + 20

    with headrace.pipe(config) as pipe:
        asyncio.run(main(pipe))
    assert (wrong, len(right)) == ([], 2 * count)


def test_what_a_loop_gives_up_beside_a_close_never_runs(held):
    for _ in range(ROUNDS):
        backend, meet, told = held(), threading.Barrier(2), []
        pipe = headrace.pipe({"backend": "Held"})
        first = pipe.submit({"data": "first"})
        assert backend.entered.wait(WAIT_S)

        def close(pipe=pipe, meet=meet):
            meet.wait(WAIT_S)
            pipe.close(timeout=WAIT_S)

        async def main(pipe=pipe, meet=meet, told=told):
            call = pipe.call_soon({"data": "given up"}, told.append)
            meet.wait(WAIT_S)
            assert call.cancel() is False
            await asyncio.sleep(0)

        closer = in_thread(close)
        asyncio.run(main())
        backend.opened.set()
        assert ended(closer)
        assert first.result(WAIT_S)["result"] == "first"
        assert (backend.ran, told) == (["first"], [])
        assert pipe.stats()["nodes"]["main"]["waiting"] == 0


def test_what_a_loop_gives_up_beside_another_loop_never_runs(held):
    for _ in range(ROUNDS):
        backend, meet = held(), threading.Barrier(2)
        with headrace.pipe({"backend": "Held"}) as pipe:
            first = pipe.submit({"data": "first"})
            assert backend.entered.wait(WAIT_S)
            answers = []

            async def begins(pipe=pipe, meet=meet, answers=answers):
                over = asyncio.Event()
                pipe.call_soon(
                    {"data": "other"}, lambda answer: (answers.append(answer), over.set())
                )
                meet.wait(WAIT_S)
                await asyncio.wait_for(over.wait(), WAIT_S)

            async def gives_up(pipe=pipe, meet=meet, answers=answers):
                call = pipe.call_soon({"data": "given up"}, answers.append)
                meet.wait(WAIT_S)
                assert call.cancel() is False
                await asyncio.sleep(0)

            other = in_thread(asyncio.run, begins())
            asyncio.run(gives_up())
            backend.opened.set()
            assert ended(other)
            assert first.result(WAIT_S)["result"] == "first"
            assert backend.ran == ["first", "other"]
            assert [call.request["result"] for call in answers] == ["other"]


def test_a_loop_that_is_interrupted_hears_of_the_others_afterwards():
    headrace.register("Twice", Twice, replace=True)
    loop = asyncio.new_event_loop()
    heard = []

    async def begin(pipe):
        def interrupted(call):
            heard.append("interrupted")
            raise KeyboardInterrupt

        told = asyncio.Event()
        pipe.call_soon({"data": 1}, interrupted)
        pipe.call_soon({"data": 2}, lambda call: (heard.append("second"), told.set()))
        pipe.call_soon({"data": 3}, lambda call: heard.append("third"))
        return told

    async def wait(told):
        await asyncio.wait_for(told.wait(), WAIT_S)
        await asyncio.sleep(0)

    with headrace.pipe({"backend": "Twice"}) as pipe:
        told = loop.run_until_complete(begin(pipe))
        with pytest.raises(KeyboardInterrupt):
            loop.run_until_complete(wait(told))
        loop.run_until_complete(wait(told))
        loop.close()
    assert heard[:2] == ["interrupted", "second"]


def test_submit_returns_once_its_request_is_in_the_queue_and_not_with_its_answer(held, until):
    backend, returned = held(), threading.Event()
    futures = []
    with headrace.pipe({"backend": "Held", "queue_size": 1, "queue_full": "wait"}) as pipe:
        futures.append(pipe.submit({"data": "runs"}))
        assert backend.entered.wait(WAIT_S)
        waiting = pipe.submit({"data": "waits"})

        def submit():
            futures.append(pipe.submit({"data": "for room"}))
            returned.set()

        thread = in_thread(submit)
        until(lambda: pipe.stats()["nodes"]["main"]["waiting"] == 2)
        assert waiting.cancel()
        assert returned.wait(WAIT_S)
        assert backend.ran == ["runs"]
        backend.opened.set()
        assert ended(thread)
        assert [one.result(WAIT_S)["result"] for one in futures] == ["runs", "for room"]


def test_requests_of_two_loops_and_threads_beside_a_close_each_end_once(held):
    backend = held()
    backend.opened.set()
    count = 200
    outcomes = [[] for _ in range(4)]

    def threads(pipe, own):
        for n in range(count):
            try:
                own.append(pipe({"data": n})["result"])
            except ClosedError:
                own.append(None)
            if n == count // 4:
                quarter.wait(WAIT_S)

    async def loops(pipe, own):
        over = asyncio.Event()

        def done(call):
            own.append(call.request.get("result"))
            if len(own) == count:
                over.set()

        for n in range(count):
            try:
                pipe.call_soon({"data": n}, done)
            except ClosedError:
                own.append(None)
            if n == count // 4:
                await asyncio.sleep(0)
                quarter.wait(WAIT_S)
        if len(own) < count:
            await asyncio.wait_for(over.wait(), WAIT_S)

    quarter = threading.Barrier(5)
    pipe = headrace.pipe({"backend": "Held", "instance_num": 2})
    workers = [in_thread(threads, pipe, own) for own in outcomes[:2]]
    workers += [in_thread(lambda own=own: asyncio.run(loops(pipe, own))) for own in outcomes[2:]]
    quarter.wait(WAIT_S)
    pipe.close(drain=False, timeout=WAIT_S)
    assert all(map(ended, workers))
    assert [len(own) for own in outcomes] == [count] * 4


class Sums(headrace.Backend):
    """Takes long enough that callers leave idle instances to a worker after a batch of several."""

    max = 4

    def forward(self, batch):
        total = sum(range(20_000))
        for request in batch:
            request["result"] = (request["data"], total)


def test_a_caller_at_the_end_of_its_stack_costs_nobody_else_an_answer():
    headrace.register("Sums", Sums, replace=True)
    most = sys.getrecursionlimit()
    outcomes = {"answered": 0, "refused": 0}

    def deep(levels):
        return deep(levels - 1) if levels else pipe({"data": "deep"})

    def call(levels):
        try:
            deep(levels)
            outcomes["answered"] += 1
        except RecursionError:
            outcomes["refused"] += 1

    with headrace.pipe({"backend": "Sums"}) as pipe:
        for levels in range(most - 120, most):
            pipe([{"data": n} for n in range(4)])
            assert ended(in_thread(call, levels))
            assert ended(in_thread(pipe, {"data": "other"})), f"nobody answers after {levels}"
    assert min(outcomes.values()) > 0
