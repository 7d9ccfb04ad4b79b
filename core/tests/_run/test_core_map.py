"""Iterators of requests: what is drawn, what comes where, and what is left when the reader leaves."""

from __future__ import annotations

import asyncio
import itertools
import threading

import pytest
from sending import backend

import headrace
from headrace.errors import BackendError, ClosedError, ContractError, InputError

BOUND_S = 60
"""Ends a wait for what never comes."""


def cube(request):
    if request["data"] == "bad":
        raise ValueError("bad")
    return request["data"] ** 3


@pytest.fixture
def pipe():
    backend("Cube", cube, max=4)
    with headrace.pipe({"backend": "Cube"}) as built:
        yield built


class Counted:
    """An iterator of requests that counts how many were drawn, for ``for`` or for ``async for``."""

    def __init__(self, numbers):
        self.numbers, self.drawn = iter(numbers), 0

    def __iter__(self):
        return self

    def __next__(self):
        number = next(self.numbers)
        self.drawn += 1
        return {"data": number}


class AsyncCounted(Counted):
    __iter__ = None

    def __aiter__(self):
        return self

    async def __anext__(self):
        try:
            return next(self)
        except StopIteration:
            raise StopAsyncIteration from None


def read(pipe, requests, **how):
    """Read a map to its end."""
    return list(pipe.map(requests, **how))


def read_in_loop(pipe, requests, **how):
    async def read_all():
        return [answer async for answer in pipe.amap(requests, **how)]

    return asyncio.run(read_all())


def read_two_loops(pipe, requests, **how):
    """Read it with requests that come to ``async for``."""

    async def each():
        for request in requests:
            yield request

    return read_in_loop(pipe, each(), **how)


WAYS = {"map": read, "amap": read_in_loop, "amap of async": read_two_loops}
every_way = pytest.mark.parametrize("read_all", WAYS.values(), ids=WAYS)


@every_way
@pytest.mark.parametrize("ahead", [1, 3, 256])
def test_answers_come_in_the_order_of_the_requests(pipe, read_all, ahead):
    requests = [{"data": k} for k in range(50)]
    answers = read_all(pipe, iter(requests), ahead=ahead)
    assert [answer["result"] for answer in answers] == [k**3 for k in range(50)]
    assert all(answer is request for answer, request in zip(answers, requests, strict=True))


@every_way
def test_none_are_none(pipe, read_all):
    assert read_all(pipe, []) == []


@every_way
@pytest.mark.parametrize("ahead", [1, 7])
def test_as_they_end_each_comes_once(pipe, read_all, ahead):
    answers = read_all(pipe, ({"data": k} for k in range(100)), ahead=ahead, ordered=False)
    assert sorted(answer["result"] for answer in answers) == [k**3 for k in range(100)]


@every_way
@pytest.mark.parametrize("ordered", [True, False])
def test_the_first_error_is_raised(pipe, read_all, ordered):
    requests = Counted([1, 2, "bad", *range(1000)])
    with pytest.raises(BackendError, match="bad"):
        read_all(pipe, requests, ahead=4, ordered=ordered)
    assert requests.drawn < 20
    assert pipe({"data": 2})["result"] == 8


@every_way
def test_errors_may_stand_in_the_places_of_answers(pipe, read_all):
    requests = [{"data": 1}, {"data": "bad"}, 7, [], {"no data": 1}, {"data": 3}]
    first, bad, *others, last = read_all(pipe, requests, on_error="give", ahead=1)
    assert (first["result"], last["result"]) == (1, 27)
    assert str(bad.__cause__) == "bad"
    assert [type(error) for error in others] == [InputError] * 3


@every_way
@pytest.mark.parametrize("on_error", ["raise", "give"])
def test_what_the_iterator_raises_ends_it(pipe, read_all, on_error):
    def broken():
        yield {"data": 2}
        raise OSError("the disk is gone")

    with pytest.raises(OSError, match="the disk is gone"):
        read_all(pipe, broken(), on_error=on_error)
    assert pipe.stats()["nodes"]["main"]["waiting"] == 0


@pytest.mark.parametrize("ordered", [True, False])
def test_it_draws_no_more_than_ahead_beyond_what_its_reader_has(pipe, ordered):
    requests = Counted(itertools.count())
    answers = pipe.map(requests, ahead=5, ordered=ordered)
    assert requests.drawn == 0
    for given in range(1, 100):
        next(answers)
        assert requests.drawn <= given + 5
    answers.close()
    assert requests.drawn <= 99 + 5


def test_in_a_loop_it_draws_no_more_either(pipe):
    async def read_some():
        requests = AsyncCounted(itertools.count())
        answers = pipe.amap(requests, ahead=5)
        assert requests.drawn == 0
        for given in range(1, 100):
            await anext(answers)
            assert requests.drawn <= given + 5
        await answers.aclose()

    asyncio.run(read_some())


@pytest.mark.parametrize("ordered", [True, False])
def test_who_leaves_withdraws_what_waits(gate, ordered):
    requests = [{"data": k} for k in range(4)]
    with headrace.pipe({"backend": "Gate", "max": 1}) as pipe:
        answers = pipe.map(iter(requests), ahead=4, ordered=ordered)
        reading = threading.Thread(target=next, args=(answers,), daemon=True)
        reading.start()
        gate.wait_entered()
        gate.let_go()
        reading.join(BOUND_S)
        gate.wait_entered()  # the second runs, two wait
        answers.close()
        assert pipe.stats()["nodes"]["main"]["waiting"] == 0
        gate.open()
        assert [pipe(requests[k])["result"] for k in (0, 2, 3)] == [0, 2, 3]
    assert gate.batches == [[0], [1], [0], [2], [3]]


def test_a_task_that_is_cancelled_withdraws_what_waits(gate):
    requests = [{"data": k} for k in range(4)]

    async def leave():
        async def read_all():
            async for _ in pipe.amap(requests):
                pass

        task = asyncio.create_task(read_all())
        await asyncio.to_thread(gate.wait_entered)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    with headrace.pipe({"backend": "Gate", "max": 1}) as pipe:
        asyncio.run(leave())
        assert pipe.stats()["nodes"]["main"]["waiting"] == 0
        gate.open()
        assert [pipe(requests[k])["result"] for k in (1, 2, 3)] == [1, 2, 3]
    assert gate.batches == [[0], [1], [2], [3]]


def test_calls_without_a_priority_go_first(gate):
    with headrace.pipe({"backend": "Gate", "max": 1}) as pipe:
        answers = pipe.map({"data": k} for k in range(3))
        reading = threading.Thread(target=list, args=(answers,), daemon=True)
        reading.start()
        gate.wait_entered()
        while pipe.stats()["nodes"]["main"]["waiting"] < 2:
            pass
        future = pipe.submit({"data": "people"})
        gate.open()
        assert future.result(BOUND_S)["result"] == "people"
        reading.join(BOUND_S)
    assert gate.batches == [[0], ["people"], [1], [2]]


@every_way
@pytest.mark.parametrize("on_error", ["raise", "give"])
def test_a_closed_pipeline_ends_it(read_all, on_error):
    backend("Cube", cube)
    pipe = headrace.pipe({"backend": "Cube"})

    def requests():
        yield {"data": 1}
        pipe.close()
        while True:
            yield {"data": 2}

    with pytest.raises(ClosedError):
        read_all(pipe, requests(), on_error=on_error)


@pytest.mark.parametrize("ordered", [True, False])
def test_a_backend_that_waits_for_its_own_pipeline_is_refused(ordered):
    def calls_itself(request):
        return list(pipe.map([{"data": 1}], ordered=ordered))

    backend("CallsItself", calls_itself)
    with headrace.pipe({"backend": "CallsItself"}) as pipe:
        with pytest.raises(BackendError) as caught:
            pipe({"data": 0})
        assert isinstance(caught.value.__cause__ or caught.value, ContractError)


@every_way
@pytest.mark.parametrize("how", [{"ahead": 0}, {"ahead": 2.0}, {"on_error": "skip"}])
def test_wrong_terms_are_refused_before_anything_is_drawn(pipe, read_all, how):
    requests = Counted([1])
    with pytest.raises(ValueError, match=next(iter(how))):
        read_all(pipe, requests, **how)
    assert requests.drawn == 0
