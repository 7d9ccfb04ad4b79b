"""What is logged under ``headrace.requests`` of requests whose backends failed."""

from __future__ import annotations

import logging
import threading

import pytest
from internals import FailureLog
from sending import WAYS

import headrace
from headrace.errors import BackendError, ContractError, HeadraceError, InputError
from headrace_testing import FakeClock

pytestmark = pytest.mark.usefixtures("shortcut")


class Raises(headrace.Backend):
    """Fails in the way that ``data`` names."""

    def forward(self, batch):
        outcomes = []
        for request in batch:
            way, error = request["data"], None
            if way == "disk":
                error = RuntimeError("the disk is full")
            elif way == "input":
                error = InputError("not this one")
            elif way == "contract":
                return [None] * (len(batch) + 1)
            elif way != "silent":
                request["result"] = way
            outcomes.append(error)
        if any(isinstance(one, RuntimeError) for one in outcomes):
            raise next(one for one in outcomes if one is not None)
        return outcomes


headrace.register("RaisesAsTold", Raises)


@pytest.fixture
def records(caplog):
    caplog.set_level(logging.INFO, logger="headrace.requests")
    return lambda: [one for one in caplog.records if one.name == "headrace.requests"]


@pytest.mark.parametrize("way", ["call", "submit"])
@pytest.mark.parametrize("backend", ["RaisesAsTold", "S[Identity,BackgroundThread[RaisesAsTold]]"])
def test_what_a_backend_raises_is_logged_with_its_traceback_node_and_identifier(
    records, caplog, way, backend
):
    with headrace.pipe({"only": {"backend": backend}}) as pipe:
        with pytest.raises(BackendError, match="the disk is full"):
            WAYS[way](pipe, {"data": "disk", "request_id": "r-17"})
        assert WAYS[way](pipe, {"data": "fine"})["result"] == "fine"
    (record,) = records()
    assert record.levelno == logging.ERROR
    assert (record.node, record.backend, record.code) == ("only", "RaisesAsTold", "backend")
    assert (record.request_id, record.unlogged) == ("r-17", 0)
    assert "the disk is full" in record.getMessage()
    assert "r-17" in record.getMessage()
    assert isinstance(record.exc_info[1], RuntimeError)
    assert "raise next(one for one in outcomes if one is not None)" in caplog.text
    assert "raise next(one for one in outcomes if one is not None)" in record.exc_text


@pytest.mark.parametrize(
    ("data", "code"), [("contract", "contract"), ("silent", "no_result"), ("disk", "backend")]
)
def test_each_failure_that_is_a_backends_is_logged_once_wherever_it_is_found(records, data, code):
    config = {
        "first": {"backend": "Identity", "next": "second,third"},
        "second": {"backend": "Identity"},
        "third": {"backend": "S[Identity,RaisesAsTold]"},
    }
    with headrace.pipe(config) as pipe, pytest.raises(HeadraceError):
        pipe({"data": data, "context": {"request_id": "c-1"}})
    assert [(one.node, one.code, one.request_id) for one in records()] == [("third", code, "c-1")]


def test_what_the_sender_has_done_wrong_is_not_logged(records):
    with headrace.pipe({"backend": "RaisesAsTold", "max": 1}) as pipe:
        with pytest.raises(InputError):
            pipe({"data": "input"})
        with pytest.raises(InputError):
            pipe({})
        assert records() == []


def test_a_failure_before_the_entry_is_logged_too(records):
    class RefusesToEnter(headrace.Backend):
        @staticmethod
        def enter(request):
            raise OSError("no stream here")

        def forward(self, batch):
            raise AssertionError

    headrace.register("RefusesToEnter", RefusesToEnter, replace=True)
    refused = pytest.raises(BackendError, match="no stream here")
    with headrace.pipe({"backend": "RefusesToEnter"}) as pipe, refused:
        pipe({"data": 1, "request_id": "e"})
    (record,) = records()
    assert isinstance(record.exc_info[1], OSError)
    assert (record.node, record.request_id) == ("main", "e")


def test_a_call_of_a_node_from_inside_another_is_logged_where_it_failed(records):
    config = {
        "outer": {"backend": "S[Identity,Forward[node.inner]]"},
        "inner": {"backend": "RaisesAsTold"},
    }
    with headrace.pipe(config) as pipe, pytest.raises(BackendError):
        pipe({"data": "disk"})
    assert [one.node for one in records()] == ["inner"]


def test_a_handler_may_call_the_pipeline_for_no_lock_is_held(caplog):
    answers = []

    class Calls(logging.Handler):
        def emit(self, record):
            called = threading.Thread(
                target=lambda: answers.append((pipe({"data": 5})["result"], pipe.stats()["state"]))
            )
            called.start()
            called.join(60)

    handler = Calls()
    logging.getLogger("headrace.requests").addHandler(handler)
    try:
        with headrace.pipe({"backend": "RaisesAsTold", "instance_num": 2}) as pipe:
            with pytest.raises(BackendError):
                pipe({"data": "disk"})
            with pytest.raises(BackendError):
                pipe.submit({"data": "silent"}).result(timeout=60)
    finally:
        logging.getLogger("headrace.requests").removeHandler(handler)
    assert answers == [(5, "ready")] * 2


# The rate, by a clock that the test moves.


def failure(backend="A", cause=None):
    error = BackendError(f"{backend} raised something", node="main", backend=backend)
    error.__cause__ = cause
    return error


def test_a_kind_is_logged_at_first_and_then_once_a_second_with_a_count(records):
    clock = FakeClock()
    log = FailureLog("main", clock)
    for seconds in (0.0, 0.25, 0.25, 0.25, 0.5, 0.0, 5.0, 1.0):
        clock.advance(seconds)
        log.on_failed({"request_id": clock()}, failure())
    found = [(one.request_id, one.unlogged) for one in records()]
    assert found == [(0.0, 0), (1.25, 3), (6.25, 1), (7.25, 0)]
    assert "3 more like it" in records()[1].getMessage()


def test_each_kind_is_counted_for_itself(records):
    log = FailureLog("main", FakeClock())
    kinds = [failure("A"), failure("B"), failure("A", OSError()), failure("A", ValueError())]
    kinds.append(ContractError("other", node="main", backend="A"))
    for error in [*kinds, *kinds]:
        log.on_failed({}, error)
    assert len(records()) == len(kinds)
    log.on_failed({}, BackendError("of another node", node="elsewhere", backend="A"))
    log.on_failed({}, InputError("the sender's", node="main"))
    assert len(records()) == len(kinds)


def test_a_dict_or_a_handler_that_raises_costs_nobody_an_answer():
    class Odd(dict):
        def get(self, *_):
            raise RuntimeError("odd")

    FailureLog("main", FakeClock()).on_failed(Odd(), failure())
