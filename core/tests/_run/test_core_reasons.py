"""Why batches were formed: what `stats()` counts, and what each record of a probe says."""

from __future__ import annotations

import threading
from contextlib import ExitStack

import internals
import pytest

import headrace
from headrace.hookspecs import attached
from headrace.policies import Cut, Greedy


class Heard:
    def __init__(self):
        self.reasons = []

    def batch_ran(self, record):
        self.reasons.append(record.reason)


def reasons_of(pipe):
    stats = pipe.stats()["nodes"]["main"]
    assert sum(stats["reasons"].values()) == stats["batches"]
    return stats["reasons"]


class Says(Greedy):
    """Gives each batch a reason of its own, as its `reason` says."""

    takes_what_waits = sends_when_idle = False
    reason = staticmethod(str)

    def cut(self, queue, instance, now):
        self.cuts = getattr(self, "cuts", 0) + 1
        return Cut(1, reason=self.reason(self.cuts))


@pytest.mark.parametrize("heard", [False, True])
@pytest.mark.parametrize("backend", ["Gate", "OwnGate"])
def test_batches_of_callers_are_idle_or_full(backend, heard, gate, client, until):
    probe = Heard()
    with headrace.pipe({"backend": backend, "max": 2}) as pipe, ExitStack() as until_read:
        if heard:
            until_read.enter_context(attached(pipe, probe))
        clients = [client(pipe, {"data": 0})]
        gate.wait_entered()
        clients += [client(pipe, {"data": one}) for one in (1, 2, 3)]
        until(lambda: pipe.stats()["nodes"]["main"]["waiting"] == 3)
        gate.open()
        assert sorted(one.outcome()["result"] for one in clients) == [0, 1, 2, 3]
        assert reasons_of(pipe) == {"idle": 2, "full": 1}
    assert sorted(probe.reasons) == (["full", "idle", "idle"] if heard else [])


@pytest.mark.parametrize("reason", ["timer", "closing"])
def test_a_wait_for_others_ends_by_the_timer_or_as_the_pipeline_closes(
    reason, gate, client, until, monkeypatch
):
    timer = internals.time_by_hand(monkeypatch)
    config = {"backend": "Gate", "max": 4, "batching_timeout": 10, "instance_num": 2}
    probe = Heard()
    with headrace.pipe(config) as pipe, attached(pipe, probe):
        first = client(pipe, {"data": 0})
        gate.wait_entered()
        second = pipe.submit({"data": 1})
        until(lambda: pipe.stats()["nodes"]["main"]["waiting"] == 1)
        if reason == "timer":
            timer.clock.advance(0.01)
            timer.run_due()
        else:
            closes = threading.Thread(target=pipe.close)
            closes.start()
        gate.wait_entered()
        gate.open()
        first.outcome()
        assert second.result()["result"] == 1
        if reason == "closing":
            closes.join()
        assert reasons_of(pipe) == {"idle": 1, reason: 1}
    assert sorted(probe.reasons) == sorted(["idle", reason])


def test_a_policy_may_say_sixteen_things_and_the_rest_count_together():
    probe = Heard()
    headrace.register("Says", Says, replace=True)
    with headrace.pipe({"backend": "Identity", "batch_policy": "Says"}) as pipe:
        with attached(pipe, probe):
            for one in range(20):
                pipe.submit({"data": one}).result()
        found = reasons_of(pipe)
        assert found == {**{str(one): 1 for one in range(1, 17)}, "other": 4}
        assert probe.reasons == [*map(str, range(1, 17)), *["other"] * 4]


def test_a_reason_that_is_no_text_fails_what_waits(monkeypatch):
    monkeypatch.setattr(Says, "reason", staticmethod(int))
    headrace.register("Says", Says, replace=True)
    pipe = headrace.pipe({"backend": "Identity", "batch_policy": "Says"})
    with pipe, pytest.raises(headrace.errors.ContractError, match="reason"):
        pipe({"data": 1})
