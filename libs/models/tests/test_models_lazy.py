"""Models that are built at their first request."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from headrace.errors import ClosedError, DeadlineExceededError, SetupError
from headrace_models import Models, UnloadedError
from headrace_testing import FakeClock


def saying(text, **keys):
    return {"backend": f"Says({text})", **keys}


def test_however_many_ask_it_is_built_once_and_all_get_their_own_answer(says):
    says.gate = threading.Event()
    with Models({"detect": saying("one")}, preload=False) as models, ThreadPoolExecutor(9) as pool:
        calls = [pool.submit(models, "detect", {"data": n}) for n in range(8)]
        awaited = pool.submit(lambda: asyncio.run(models.call_async("detect", {"data": 8})))
        later = models.submit("detect", {"data": 9})
        many = models.submit("detect", [{"data": 10}, {"data": 11}])
        assert says.building.acquire(timeout=60)
        assert models.status()["detect"]["state"] == "loading"
        assert not later.done()
        says.gate.set()
        futures = [*calls, awaited, later, *many]
        assert [one.result(60)["data"] for one in futures] == [*range(12)]
        assert {one.result(60)["result"] for one in futures} == {"one"}
        assert says.built == ["one"]


def test_a_failure_reaches_all_who_wait_each_with_an_error_of_its_own(says):
    says.gate, says.broken = threading.Event(), {"one"}
    with Models({"detect": saying("one")}, preload=False) as models, ThreadPoolExecutor(9) as pool:
        calls = [pool.submit(models, "detect", {"data": n}) for n in range(8)]
        awaited = pool.submit(lambda: asyncio.run(models.call_async("detect", {"data": 8})))
        later = models.submit("detect", {"data": 9})
        says.gate.set()
        errors = [one.exception(60) for one in [*calls, awaited, later]]
        assert {type(one) for one in errors} == {SetupError}
        assert len({id(one) for one in errors}) == len(errors)
        assert all("one is broken" in str(one) for one in errors)
        assert models.status()["detect"]["state"] == "failed"
        assert "one is broken" in models.status()["detect"]["reason"]


def test_a_failed_build_is_tried_again_after_a_second_and_then_after_twice_the_time(says):
    clock, says.broken = FakeClock(), {"one"}
    with Models({"detect": saying("one")}, preload=False, clock=clock) as models:
        for wait_s in (1, 2, 4, 8, 16, 32, 60, 60):
            with pytest.raises(SetupError):
                models("detect", {"data": 0})
            assert models.status()["detect"]["retry_after_s"] == wait_s
            clock.advance(wait_s - 0.5)
            with pytest.raises(SetupError):
                models("detect", {"data": 0})
            assert len(list(iter(lambda: says.building.acquire(blocking=False), False))) == 1
            clock.advance(0.5)
        says.broken = set()
        assert models("detect", {"data": 0})["result"] == "one"
        assert models.status()["detect"]["reason"] == ""
        assert models.status()["detect"]["retry_after_s"] is None


def test_a_request_waits_for_a_build_no_longer_than_its_timeout(says):
    says.gate = threading.Event()
    with Models({"detect": saying("one")}, preload=False) as models:
        with pytest.raises(DeadlineExceededError, match="not built in time"):
            models("detect", {"data": 0}, timeout=0.001)
        with pytest.raises(DeadlineExceededError, match="not built in time"):
            asyncio.run(models.call_async("detect", {"data": 0}, timeout=0.001))
        says.gate.set()
        assert models("detect", {"data": 0})["result"] == "one"
        assert says.built == ["one"]


def test_a_cancelled_task_leaves_the_build_to_the_others(says):
    says.gate = threading.Event()

    async def cancelled(models):
        task = asyncio.create_task(models.call_async("detect", {"data": 0}))
        await asyncio.to_thread(says.building.acquire, timeout=60)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    with Models({"detect": saying("one")}, preload=False) as models, ThreadPoolExecutor(1) as pool:
        asyncio.run(cancelled(models))
        other = pool.submit(models, "detect", {"data": 1})
        says.gate.set()
        assert other.result(60)["result"] == "one"
        assert says.built == ["one"]


def test_a_request_that_waits_for_a_build_is_refused_when_the_models_are_closed(says):
    says.gate = threading.Event()
    models = Models({"detect": saying("one")}, preload=False)
    with ThreadPoolExecutor(1) as pool:
        request = pool.submit(models, "detect", {"data": 0})
        assert says.building.acquire(timeout=60)
        models.close()
        assert isinstance(request.exception(60), ClosedError)
        says.gate.set()
        assert says.closed.acquire(timeout=60)  # what was built meanwhile is closed as well
    assert says.living == 0


def test_an_update_of_a_model_that_is_being_built_serves_who_waits(says):
    says.gate = threading.Event()
    with Models({"detect": saying("one")}, preload=False) as models, ThreadPoolExecutor(2) as pool:
        request = pool.submit(models, "detect", {"data": 0})
        assert says.building.acquire(timeout=60)
        update = pool.submit(models.update, "detect", saying("two"))
        says.gate.set()
        assert update.result(60) == "2"
        assert request.result(60)["result"] in {"one", "two"}
        assert models("detect", {"data": 0})["result"] == "two"


def test_a_name_means_the_greatest_version_though_a_smaller_one_was_built_first(says):
    with Models({"a:1": saying("one"), "a:2": saying("two")}, preload=False) as models:
        assert models("a:1", {"data": 0})["result"] == "one"
        assert models("a", {"data": 0})["result"] == "two"


def test_wake_has_a_lazy_model_built_and_waits_for_nothing(says):
    now = 0.0
    says.gate, says.broken = threading.Event(), {"broken"}
    lazy = {"a": saying("one"), "b": saying("broken")}
    with Models(lazy, preload=False, clock=lambda: now) as models:
        for _ in range(2):
            models.wake("a")
        assert says.building.acquire(timeout=60)
        assert models.status()["a"]["state"] == "loading"
        says.gate.set()
        assert models("a", {"data": 0}, timeout=60)["result"] == "one"
        models.wake("a")
        assert says.built == ["one"]
        for now in (0.0, 1.5):  # noqa: B007 - the clock
            models.wake("b")
            assert says.building.acquire(timeout=60)
            with pytest.raises(SetupError, match="broken"):
                models("b", {"data": 0}, timeout=60)  # waits for that build
            with pytest.raises(SetupError, match="broken"):
                models.wake("b")
        assert not says.building.acquire(blocking=False)
        models.unload("a")
        with pytest.raises(UnloadedError):
            models.wake("a")
