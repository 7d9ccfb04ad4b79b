"""`Budget`: what a batch costs stays within it, against a slow loop."""

from __future__ import annotations

from types import MappingProxyType
from typing import ClassVar

import pytest
from flow_helpers import instance, plain_queue
from hypothesis import given
from hypothesis import strategies as st

import headrace
from headrace import errors
from headrace.policies import Cut
from headrace_flow.policies.budget import Budget
from headrace_testing import PolicyConformance, PolicyQueue, Sent, play


class TestConformance(PolicyConformance):
    policy = Budget
    options = MappingProxyType({"most": 50})

    def make_requests(self, count):
        return [{"tokens": 1 + 7 * k % 40} for k in range(count)]


class TestConformanceOfAreas(PolicyConformance):
    policy = Budget
    options = MappingProxyType({"cost": "length", "most": 200, "area": "padded"})

    def make_requests(self, count):
        return [{"data": "x" * (1 + 7 * k % 40)} for k in range(count)]


def budget(**options):
    return Budget(Budget.Options(**options))


def queued(policy, *costs, **more):
    queue = PolicyQueue(policy, [Sent(0.0, {"tokens": one, **more}) for one in costs])
    queue.running = 1
    return queue


@pytest.mark.parametrize(
    ("why", "area", "costs", "places"),
    [
        ("one alone", "sum", [10], (0,)),
        ("as many as fit", "sum", [40, 30, 20, 10], (0, 1, 2, 3)),
        ("who does not fit is passed by", "sum", [60, 50, 30, 20, 10], (0, 2, 4)),
        ("the first is in, however dear", "sum", [100, 1, 1], (0,)),
        ("nothing costs nothing", "sum", [100, 0, 0], (0, 1, 2)),
        ("rows are padded to the longest", "padded", [10, 26, 9, 10], (0, 3, 2)),
        ("the nearest first", "padded", [10, 60, 25, 12, 11], (0, 4, 3, 2)),
        ("until the area is full", "padded", [20] * 9, (0, 1, 2, 3, 4)),
        ("a long one is alone", "padded", [60, 59, 1], (0,)),
    ],
)
def test_which_requests_fit_into_the_budget(why, area, costs, places):
    policy = budget(most=100, area=area)
    assert policy.cut(queued(policy, *costs), instance(8), 0.0) == Cut(places), why


@pytest.mark.parametrize(
    ("area", "spread", "costs", "places"),
    [
        ("padded", 0.2, [10, 8, 7, 12], (0, 1)),
        ("padded", 0.2, [10, 12, 8, 12.5], (0, 1, 3)),
        ("padded", 0.0, [10, 9, 10, 11, 10], (0, 2, 4)),
        ("sum", 0.5, [10, 4, 5, 20, 6], (0, 2, 4)),
        ("sum", 0.2, [0, 1, 0], (0, 2)),
        ("padded", 1.0, [10, 1, 20], (0, 1, 2)),
    ],
)
def test_unlike_costs_share_no_batch(area, spread, costs, places):
    policy = budget(most=100, area=area, spread=spread)
    found = policy.cut(queued(policy, *costs), instance(8), 0.0).take
    assert set(found) == set(places)
    chosen = [costs[place] for place in found]
    assert max(chosen) - min(chosen) <= spread * max(chosen)


def test_max_holds_as_well():
    policy = budget(most=1000)
    assert policy.cut(queued(policy, *[1] * 9), instance(3), 0.0) == Cut((0, 1, 2))
    heavy = queued(policy, 1, 1, 1, request_size=2)
    assert policy.cut(heavy, instance(5), 0.0) == Cut((0, 1))
    assert policy.cut(heavy, instance(1), 0.0) == Cut(0)


def test_rows_of_a_request_count_in_a_padded_area_only():
    padded, summed = budget(most=100, area="padded"), budget(most=100)
    rows = {"request_size": 3}
    assert padded.cut(queued(padded, 15, 15, 15, **rows), instance(64), 0.0) == Cut((0, 1))
    assert summed.cut(queued(summed, 15, 15, 15, **rows), instance(64), 0.0) == Cut((0, 1, 2))


def test_copies_of_a_padded_batch_have_their_part_of_the_area():
    policy = budget(most=100, area="padded", batch_sizes=(1, 2, 4, 8), pad=True)
    # Three rows of 20 would run as four, five of 20 as eight.
    assert policy.cut(queued(policy, *[20] * 5), instance(8), 0.0) == Cut((0, 1, 2, 3))


def test_a_request_above_the_budget_is_refused_as_it_comes():
    policy = budget(most=4096)
    assert policy.trait({"tokens": 4096}) == 4096.0
    with pytest.raises(errors.LimitError, match="5000 in 'tokens' is above the 4096") as caught:
        policy.trait({"tokens": 5000})
    assert caught.value.limit == 4096
    padded = budget(most=100, area="padded")
    assert padded.trait({"tokens": 50, "request_size": 2}) == 50.0
    with pytest.raises(errors.LimitError, match=r"3 rows of 50"):
        padded.trait({"tokens": 50, "request_size": 3})
    assert budget(most=100).trait({"tokens": 50, "request_size": 3}) == 50.0


@pytest.mark.parametrize("cost", [None, "5", True, [5], -1, float("nan"), float("inf")])
def test_a_cost_that_is_none_is_refused(cost):
    with pytest.raises(errors.InputError, match="tokens"):
        budget(most=10).trait({"tokens": cost})


def test_a_cost_that_is_missing_is_refused_and_a_length_is_that_of_data():
    with pytest.raises(errors.InputError, match="reads the key 'tokens'"):
        budget(most=10).trait({"data": "text"})
    assert budget(cost="length", most=10).trait({"data": "text"}) == 4.0


@pytest.mark.parametrize("options", [{}, {"most": 0}, {"most": 1, "area": "round"}])
def test_options_that_mean_nothing_are_refused(options):
    with pytest.raises(ValueError, match=r"most|area"):
        Budget.Options(**options)


def test_a_batch_that_leaves_nobody_out_waits_for_company():
    policy = budget(most=100, batching_timeout=10)
    queue = queued(policy, 40, 30)
    assert policy.cut(queue, instance(8), 0.0) == Cut(0, 0.01, 8)
    assert policy.cut(queue, instance(8), 0.01) == Cut((0, 1))
    assert policy.cut(queued(policy, 40, 30, 31), instance(8), 0.0) == Cut((0, 1))
    queue.running = 0
    assert policy.cut(queue, instance(8), 0.0) == Cut((0, 1))
    assert policy.cut(queue, instance(8, least=3), 0.0) == Cut(0, 0.01)


# Over time, against a slow loop.

SENT = st.lists(
    st.tuples(st.integers(0, 9), st.integers(0, 120), st.integers(0, 1), st.integers(1, 3)),
    min_size=1,
    max_size=30,
)


def costs_of(batch, area):
    costs = [one["tokens"] for one in batch]
    return sum(costs) if area == "sum" else max(costs) * sum(one["request_size"] for one in batch)


@given(SENT, st.integers(1, 2), st.sampled_from(["sum", "padded"]))
def test_every_batch_is_within_the_budget_and_the_first_is_in_it(rows, instances, area):
    sent = [
        Sent(float(at), {"tokens": tokens, "request_size": size, "number": k}, priority)
        for k, (at, tokens, priority, size) in enumerate(sorted(rows))
    ]
    policy = budget(most=100, area=area)
    played = play(policy, sent, runs_s=2.0, instance_num=instances, max=6, closes=True)
    waiting = {}
    for one in sent:
        if costs_of([one.request], area) <= 100:
            waiting[one.request["number"]] = one
    refused = [request["number"] for request, _ in played.refused]
    assert sorted(refused) == sorted({one.request["number"] for one in sent} - waiting.keys())
    assert {error.code for _, error in played.refused} <= {"limit"}
    for at, batch in played.batches:
        assert costs_of(batch, area) <= 100
        assert sum(one["request_size"] for one in batch) <= 6
        here = sorted(
            (one for one in waiting.values() if one.at <= at),
            key=lambda one: (-one.priority, one.request["number"]),
        )
        assert batch[0] is here[0].request, "the first in the order of service"
        left = [one.request for one in here if not any(one.request is taken for taken in batch)]
        for one in left:  # whoever was left out would have been too much
            whole = [*batch, one]
            weight = sum(each["request_size"] for each in whole)
            assert weight > 6 or costs_of(whole, area) > 100
        for one in batch:
            del waiting[one["number"]]
    assert not waiting


def test_in_a_pipeline_a_request_above_the_budget_is_a_limit_error():
    config = {"backend": "Identity", "max": 64, "batch_policy": "Budget(cost=tokens, most=64)"}
    with headrace.pipe(config) as pipe:
        with pytest.raises(errors.LimitError) as caught:
            pipe({"data": 1, "tokens": 65})
        assert caught.value.node == "main"
        assert pipe({"data": 1, "tokens": 64})["result"] == 1
        assert pipe.stats()["nodes"]["main"]["failed"] == {"limit": 1}


# Requests that are queued again.


class GrowingStep(headrace.Backend):
    """A step of a decoder: a request costs one token more after each; `sums` has what each step cost as it began."""

    max = 8
    reads = ("tokens", "steps")
    sums: ClassVar[list[tuple[int, ...]]] = []

    def forward(self, batch):
        self.sums.append(tuple(one["tokens"] for one in batch))
        for one in batch:
            one["tokens"] += 1
            one["ran"] = one.get("ran", 0) + 1
            one["result"] = one["ran"]
            if one["ran"] == one["steps"]:
                one["end"] = True


@pytest.fixture
def growing(monkeypatch):
    monkeypatch.setattr(GrowingStep, "sums", [])
    headrace.register("GrowingStep", GrowingStep, replace=True)
    return GrowingStep.sums


def iterating(**options):
    written = ",".join(f"{key}={value}" for key, value in {"cost": "tokens", **options}.items())
    return {"backend": "Iterate(until=end)[GrowingStep]", "batch_policy": f"Budget({written})"}


@pytest.mark.parametrize(
    ("area", "cost"), [("sum", sum), ("padded", lambda costs: max(costs) * len(costs))]
)
def test_a_request_in_flight_counts_with_what_it_costs_now(growing, area, cost):
    with headrace.pipe(iterating(most=64, area=area)) as pipe:
        requests = pipe([{"data": 0, "tokens": 10, "steps": 20} for _ in range(12)])
    assert [one["ran"] for one in requests] == [20] * 12
    assert max(map(cost, growing)) <= 64
    assert max(map(len, growing)) > 1  # they do share steps


@pytest.mark.parametrize("area", ["sum", "padded"])
def test_one_that_has_outgrown_the_budget_runs_alone_to_its_end(growing, area):
    with headrace.pipe(iterating(most=64, area=area)) as pipe:
        futures = [
            pipe.submit({"data": 0, "tokens": tokens, "steps": steps})
            for tokens, steps in ((50, 40), (1, 3), (1, 60))
        ]
        assert [one.result(60)["ran"] for one in futures] == [40, 3, 60]
        with pytest.raises(errors.LimitError, match="above the 64"):
            pipe({"data": 0, "tokens": 65, "steps": 1})  # a newcomer is refused as before
    assert max(map(max, growing)) == 89
    assert all(len(costs) == 1 for costs in growing if max(costs) > 64)


def test_a_request_that_loses_its_cost_between_two_steps_ends_with_an_error():
    class ForgetsItsCost(headrace.Backend):
        def forward(self, batch):
            for one in batch:
                one["result"] = one.pop("tokens")

    headrace.register("ForgetsItsCost", ForgetsItsCost, replace=True)
    config = {**iterating(most=64), "backend": "Iterate(until=end)[ForgetsItsCost]"}
    with headrace.pipe(config) as pipe, pytest.raises(errors.InputError, match="tokens"):
        pipe({"data": 0, "tokens": 1})


def test_a_plain_queue_needs_no_more_than_a_length_a_weight_and_items():
    costs = [{"tokens": one} for one in (60, 50, 30)]
    for policy in (budget(most=100), budget(most=100, batching_timeout=1000)):
        assert policy.cut(plain_queue(policy, *costs), instance(8), 0.0) == Cut((0, 2))
    # No instance runs, so nothing waits for company; below min it waits from the arrival of queue[0] on.
    policy = budget(most=100, batching_timeout=1000)
    assert policy.cut(plain_queue(policy, costs[0]), instance(8), 0.0) == Cut((0,))
    assert policy.cut(plain_queue(policy, costs[0]), instance(8, least=2), 0.0) == Cut(0, 1.0)
    assert policy.cut(plain_queue(policy, costs[0]), instance(8, least=2), 1.0) == Cut((0,))
