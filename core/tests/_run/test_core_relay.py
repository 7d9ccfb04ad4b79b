"""Futures whose answer another future has: what their caller sees is what it sees of a pipeline's own."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import CancelledError

import pytest

import headrace
from headrace.errors import BackendError, ContractError
from headrace.futures import RelayFuture

BOUND_S = 60
"""Ends a wait for what never comes."""


def relayed(future, then=None):
    relay = RelayFuture()
    relay.follow(future, then)
    return relay


def test_its_outcome_is_that_of_the_future_it_follows(gate):
    with headrace.pipe({"backend": "Gate"}) as pipe:
        relay = relayed(gate.entered(pipe.submit({"data": 1})))
        assert (relay.running(), relay.cancel(), relay.done()) == (True, False, False)
        gate.let_go()
        assert relay.result(BOUND_S)["result"] == 1
        assert (relay.running(), relay.cancel(), relay.cancelled()) == (False, False, False)


def test_an_error_is_the_same():
    def fails(data):
        raise ValueError(data)

    headrace.register("Fails", fails, replace=True)
    with headrace.pipe({"backend": "Fails"}) as pipe, pytest.raises(BackendError) as caught:
        relayed(pipe.submit({"data": "why"})).result(BOUND_S)
    assert str(caught.value.__cause__) == "why"


def test_a_request_that_waits_is_withdrawn_from_its_pipeline(gate):
    with headrace.pipe({"backend": "Gate"}) as pipe:
        gate.entered(pipe.submit({"data": 1}))
        waiting = {"data": 2}
        future = pipe.submit(waiting)
        relay = relayed(future)
        assert relay.cancel()
        assert relay.cancelled()
        assert future.cancelled()
        with pytest.raises(CancelledError):
            relay.result(BOUND_S)
        gate.open()
        assert pipe(waiting)["result"] == 2  # it is the caller's again


def test_one_that_follows_nothing_yet_is_cancelled_and_cancels_what_comes(gate):
    relay = RelayFuture()
    assert (relay.running(), relay.cancel(), relay.cancelled()) == (False, True, True)
    with headrace.pipe({"backend": "Gate"}) as pipe:
        gate.entered(pipe.submit({"data": 1}))
        future = pipe.submit({"data": 2})
        relay.follow(future)
        assert future.cancelled()
        gate.let_go()


def test_its_owner_may_answer_in_its_place_once():
    with headrace.pipe({"backend": "Identity"}) as pipe:
        relay = RelayFuture()
        relay.follow(
            pipe.submit({"data": 1}), lambda done: relay.finish({"result": done.result()["data"]})
        )
        assert relay.result(BOUND_S) == {"result": 1}
        assert relay.finish({"result": 2}) is False
        assert relay.result(BOUND_S) == {"result": 1}


def test_what_its_owner_raises_is_the_outcome():
    def wrong(_):
        raise KeyError("gone")

    with headrace.pipe({"backend": "Identity"}) as pipe, pytest.raises(KeyError, match="gone"):
        relayed(pipe.submit({"data": 1}), wrong).result(BOUND_S)


def test_who_waits_before_there_is_anything_to_follow_is_answered():
    relay, answers = RelayFuture(), []
    thread = threading.Thread(target=lambda: answers.append(relay.result(BOUND_S)["result"]))
    thread.start()
    with headrace.pipe({"backend": "Identity"}) as pipe:
        relay.follow(pipe.submit({"data": 7}))
        thread.join(BOUND_S)
    assert answers == [7]


def test_a_coroutine_awaits_it():
    async def ask(pipe):
        return (await relayed(pipe.submit({"data": 3})))["result"]

    with headrace.pipe({"backend": "Identity"}) as pipe:
        assert asyncio.run(ask(pipe)) == 3


@pytest.mark.parametrize("waits", ["in result", "elsewhere"])
def test_a_circle_of_calls_is_refused_through_it(waits):
    class Again(headrace.Backend):
        def forward(self, batch):
            relay = RelayFuture()
            if waits == "elsewhere":
                relay.note_waiting(threading.get_ident())
            relay.follow(pipe.submit({"data": 1}))
            if waits == "in result":
                relay.result(BOUND_S)
            ended = threading.Event()
            relay.add_done_callback(lambda _: ended.set())
            assert ended.wait(BOUND_S)
            raise relay.exception()

    config = {"backend": "Again", "deadlock_after_s": 0.05}
    headrace.register("Again", Again, replace=True)
    with headrace.pipe(config) as pipe, pytest.raises(ContractError):
        pipe({"data": 0})
