"""Why the policies of the plugin form batches: what `Cut.reason` says."""

from __future__ import annotations

import pytest
from flow_helpers import instance

from headrace_flow.conditions import ConditionPolicy, Count, Enough, Idle, Waited, Weight
from headrace_flow.policies.alike import Alike
from headrace_flow.policies.budget import Budget
from headrace_testing import PolicyQueue, Sent


def policy_of(made):
    return type("Mine", (ConditionPolicy,), {"condition": made})()


COUNTED = [
    (Count(2), "weight"),
    (Weight(2), "weight"),
    (Enough(), "weight"),
    (Idle(), "idle"),
    (Waited(ms=5), "timer"),
    (Count(9) | Waited(ms=5), "timer"),
    (Count(2) & Waited(ms=5), "weight"),
    (~Count(9), ""),
]


@pytest.mark.parametrize(
    ("condition", "reason"), COUNTED, ids=map(repr, [one for one, _ in COUNTED])
)
def test_a_condition_says_what_made_a_batch_due(condition, reason):
    policy = policy_of(condition)
    queue = PolicyQueue(policy, [Sent(0.0, {}), Sent(0.0, {})])
    cut = policy.cut(queue, instance(), 0.005)
    assert (cut.take, cut.reason) == (2, reason)


def test_a_full_batch_leaves_the_reason_to_the_node():
    policy = policy_of(Count(1))
    queue = PolicyQueue(policy, [Sent(0.0, {}) for _ in range(4)])
    assert policy.cut(queue, instance(), 0.0).reason == ""


@pytest.mark.parametrize(
    ("cls", "options", "now", "reason"),
    [
        (Alike, {"batching_timeout": 10, "patience_ms": 20}, 0.011, "timer"),
        (Alike, {"batching_timeout": 10, "patience_ms": 20}, 0.031, "patience"),
        (Alike, {"batching_timeout": 10, "patience_ms": 20}, 0.001, ""),
        (Budget, {"batching_timeout": 10, "cost": "length", "most": 100}, 0.011, "timer"),
        (Budget, {"batching_timeout": 10, "cost": "length", "most": 100}, 0.001, ""),
        (Budget, {"batching_timeout": 10, "cost": "length", "most": 2}, 0.011, ""),
    ],
)
def test_a_policy_that_picks_names_the_timer_and_its_patience(cls, options, now, reason):
    policy = cls(cls.Options(**options))
    queue = PolicyQueue(policy, [Sent(0.0, {"length": 2}), Sent(0.0, {"length": 2})])
    assert policy.cut(queue, instance(), now).reason == reason
