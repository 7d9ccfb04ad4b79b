"""Requests that their callers run themselves, on an idle instance: the next is served, whatever happens."""

from __future__ import annotations

import pytest

import headrace
from headrace.errors import BackendError


class Step(headrace.Backend):
    """``result = data``; gives what `during` gives, once."""

    max = None
    during = None

    def forward(self, batch):
        for request in batch:
            request["result"] = request["data"]
        function, Step.during = Step.during, None
        return None if function is None else function(batch)


@pytest.fixture(autouse=True)
def _step():
    headrace.register("Step", Step, replace=True)


@pytest.fixture
def pipe():
    with headrace.pipe({"backend": "Step"}) as pipe:
        yield pipe


def during(function):
    """Have a function called while the next batch runs."""
    Step.during = function


def busy(pipe):
    return [one["busy"] for one in pipe.stats()["nodes"]["main"]["instances"]]


def test_its_instance_is_busy_while_a_request_runs_and_free_afterwards(pipe):
    seen = []
    during(lambda batch: seen.append(busy(pipe)))
    pipe({"data": 1})
    assert seen == [[True]]
    assert busy(pipe) == [False]


def test_instances_take_turns_from_the_first_request_on():
    with headrace.pipe({"backend": "Step", "instance_num": 3}) as pipe:
        for k in range(9):
            pipe({"data": k})
        assert [one["batches"] for one in pipe.stats()["nodes"]["main"]["instances"]] == [3, 3, 3]


def test_an_error_is_counted_and_the_instance_goes_on(pipe):
    for wrong in (lambda batch: [ValueError("no")], lambda batch: 1 / 0, lambda batch: 7):
        during(wrong)
        request = {"data": 1}
        with pytest.raises(BackendError):
            pipe(request)
        assert request == {"data": 1}
        assert busy(pipe) == [False]
    assert pipe.stats()["nodes"]["main"]["failed"] == {"backend": 2, "contract": 1}
