"""`Alike` and what it promises, against slow loops over all batches there could be."""

from __future__ import annotations

import itertools
import threading
from types import MappingProxyType

import numpy as np
import pytest
from flow_helpers import instance, plain_queue
from hypothesis import given
from hypothesis import strategies as st

import headrace
from headrace import errors
from headrace.policies import Cut
from headrace_flow.policies.alike import Alike
from headrace_testing import PolicyConformance, PolicyQueue, Sent, play


class TestConformance(PolicyConformance):
    policy = Alike

    def make_requests(self, count):
        return [{"data": "x" * (1 + 7 * k % 40)} for k in range(count)]


class TestConformanceOfShapes(PolicyConformance):
    policy = Alike
    options = MappingProxyType({"by": "shape", "patience_ms": 0})

    def make_requests(self, count):
        return [{"data": np.zeros((1 + k % 3, 2))} for k in range(count)]


class TestConformanceWithSizes(PolicyConformance):
    policy = Alike
    options = MappingProxyType({"batch_sizes": (1, 2, 4), "batching_timeout": 500})

    def make_requests(self, count):
        return [{"data": None, "length": 1 + 7 * k % 40} for k in range(count)]


def alike(**options):
    return Alike(Alike.Options(**options))


def queued(policy, *lengths, at=0.0, **more):
    queue = PolicyQueue(policy, [Sent(at, {"length": one, **more}) for one in lengths])
    queue.running = 1
    return queue


# What it cuts, as a table.


@pytest.mark.parametrize(
    ("why", "lengths", "most", "now", "places"),
    [
        ("just before the patience of the first is over", [100, 10, 9, 8], 4, 0.0199, (1, 2, 3)),
        ("then it takes its neighbours along", [100, 10, 9, 8, 99], 4, 1.0, (0, 4)),
        ("unbounded", [10] * 50, None, 0.0, tuple(range(50))),
    ],
)
def test_which_requests_share_a_batch(why, lengths, most, now, places):
    policy = alike()
    cut = policy.cut(queued(policy, *lengths), instance(most), now)
    assert cut == Cut(places), why


def test_what_is_no_number_has_to_be_equal():
    policy = alike(by="lang")
    queue = PolicyQueue(policy, [Sent(0.0, {"lang": one}) for one in ("de", "en", "en", "fr")])
    assert policy.cut(queue, instance(), 0.0) == Cut((1, 2))
    assert policy.cut(queue, instance(), 0.02) == Cut((0,))


def test_numbers_and_texts_under_one_key_never_mix():
    policy = alike(by="size")
    sizes = (10, "10", 10.0, "10", [10], (10,), (10,))
    queue = PolicyQueue(policy, [Sent(0.0, {"size": one}) for one in sizes])
    assert policy.cut(queue, instance(), 0.0) == Cut((4, 5, 6))
    assert policy.cut(queue, instance(), 1.0) == Cut((0, 2))


def test_the_length_and_the_shape_are_those_of_data_where_no_key_says_them():
    policy = alike()
    assert policy.trait({"data": "four"}) == 4.0
    assert policy.trait({"data": b"four!"}) == 5.0
    assert policy.trait({"data": [1, 2, 3]}) == 3.0
    assert policy.trait({"data": np.zeros((7, 2))}) == 7.0
    assert policy.trait({"data": "four", "length": 9}) == 9.0
    assert policy.trait({"data": "four", "length": np.int64(9)}) == 9.0
    assert alike(by="shape").trait({"data": np.zeros((7, 2))}) == ((7, 2),)
    assert alike(by="shape").trait({"data": 0, "shape": [7, 2]}) == ((7, 2),)


@pytest.mark.parametrize(
    ("by", "request_", "match"),
    [
        ("length", {"data": 5}, "length.*data that has a length.*int"),
        ("length", {"data": {"a": "x"}}, "data that has a length.*dict"),
        ("length", {"data": np.float32(1)}, "data that has a length"),
        ("length", {}, "NoneType"),
        ("shape", {"data": "text"}, "data that has a shape.*str"),
        ("tokens", {"data": "text"}, "tokens"),
        ("length", {"length": -1}, "at least 0.*-1"),
        ("length", {"length": float("nan")}, "finite.*nan"),
        ("length", {"length": float("inf")}, "finite.*inf"),
        ("key", {"key": {"a": 1}}, "a number, a text or a shape.*dict"),
        ("key", {"key": [[1]]}, "a number, a text or a shape"),
    ],
)
def test_a_request_that_cannot_be_compared_is_refused(by, request_, match):
    with pytest.raises(errors.InputError, match=match) as caught:
        alike(by=by).trait(request_)
    assert caught.value.key == by


@pytest.mark.parametrize(
    "options", [{"spread": -0.1}, {"spread": 1.1}, {"patience_ms": -1}, {"by": ""}]
)
def test_options_that_mean_nothing_are_refused(options):
    with pytest.raises(ValueError, match=next(iter(options))):
        Alike.Options(**options)


# Waiting.


def test_with_a_timeout_a_group_that_is_not_full_waits_while_another_instance_runs():
    policy = alike(batching_timeout=10, patience_ms=20)
    queue = queued(policy, 10, 9, 100)
    assert policy.cut(queue, instance(), 0.0) == Cut(0, 0.01, 4)
    assert policy.cut(queue, instance(), 0.01) == Cut((0, 1))
    assert policy.cut(queued(policy, 10, 9, 10, 9, 100), instance(), 0.0) == Cut((0, 1, 2, 3))
    queue.running = 0
    assert policy.cut(queue, instance(), 0.0) == Cut((0, 1))
    queue.running, queue.closing = 1, True
    assert policy.cut(queue, instance(), 0.0) == Cut((0, 1))


def test_patience_begins_after_the_timeout():
    policy = alike(batching_timeout=10, patience_ms=20)
    queue = queued(policy, 100, 10, 9)
    assert policy.cut(queue, instance(), 0.0299) == Cut((1, 2))
    assert policy.cut(queue, instance(), 0.03) == Cut((0,))


def test_below_min_a_group_waits_for_neighbours_and_then_takes_the_nearest():
    policy = alike()
    queue = queued(policy, 100, 10, 60, 9)
    few = instance(4, least=3)
    assert policy.cut(queue, few, 0.0) == Cut(0, 0.02)
    assert policy.cut(queue, few, 0.02) == Cut((0, 2, 1))  # 60 is nearer than 10
    queue.open = False  # nobody else can come
    assert policy.cut(queue, few, 0.0) == Cut((1, 3, 2))


def test_below_min_shapes_that_differ_are_never_mixed():
    policy = alike(by="shape")
    queue = PolicyQueue(policy, [Sent(0.0, {"shape": one}) for one in ((1, 2), (1, 3))])
    assert policy.cut(queue, instance(4, least=2), 1.0) == Cut((0,))  # the scheduler refuses it


def test_with_pad_a_small_group_is_filled_up_with_copies():
    policy = alike(pad=True)
    assert policy.cut(queued(policy, 100, 10, 9), instance(8, least=4), 0.0) == Cut((1, 2))


def test_only_allowed_sizes_are_cut():
    policy = alike(batch_sizes=(1, 2, 4))
    assert policy.cut(queued(policy, 10, 10, 10), instance(8), 0.0) == Cut((0, 1))
    assert policy.cut(queued(policy, *[10] * 7), instance(8), 0.0) == Cut((0, 1, 2, 3))
    padded = alike(batch_sizes=(2, 4), pad=True)
    assert padded.cut(queued(padded, 10, 10, 10), instance(8), 0.0) == Cut((0, 1, 2))


def test_a_request_of_the_greatest_priority_is_in_every_batch():
    policy = alike()
    sent = [Sent(0.0, {"length": one}) for one in (10, 10, 10)]
    queue = PolicyQueue(policy, [*sent, Sent(0.0, {"length": 50}, 1), Sent(0.0, {"length": 11}, 1)])
    assert [one.trait for one in queue.items] == [50, 11, 10, 10, 10]
    assert policy.cut(queue, instance(), 0.0) == Cut((1, 2, 3, 4))
    assert policy.cut(queue, instance(), 0.02) == Cut((0,))


def test_weights_count_and_one_that_is_too_heavy_is_left_to_others():
    policy = alike()
    queue = queued(policy, 10, 10, 10, request_size=3)
    assert policy.cut(queue, instance(7), 0.0) == Cut((0, 1))
    assert policy.cut(queue, instance(2), 0.0) == Cut(0)


# Against all batches there could be.

LENGTHS = st.lists(
    st.sampled_from([0, 1, 5, 8, 9, 10, 11, 12, 20, 40, 100]), min_size=1, max_size=7
)


def differ(lengths):
    return (max(lengths) - min(lengths)) / max(lengths) if max(lengths) else 0.0


@given(LENGTHS, st.integers(1, 4), st.sampled_from([0.0, 0.1, 0.2, 0.5, 1.0]), st.booleans())
def test_it_cuts_the_best_of_all_batches(lengths, most, spread, due):
    policy = alike(spread=spread)
    cut = policy.cut(queued(policy, *lengths), instance(most), 1.0 if due else 0.0)
    possible = [
        some
        for count in range(1, most + 1)
        for some in itertools.combinations(range(len(lengths)), count)
        if differ([lengths[k] for k in some]) <= spread and (not due or 0 in some)
    ]
    best = max((len(some), -some[0], -differ([lengths[k] for k in some])) for some in possible)
    chosen = cut.take
    assert chosen in possible
    assert (len(chosen), -chosen[0], -differ([lengths[k] for k in chosen])) == best


SENT = st.lists(
    st.tuples(st.integers(0, 12), st.integers(1, 60), st.integers(0, 1), st.integers(1, 3)),
    min_size=1,
    max_size=30,
)


@given(SENT, st.integers(1, 2), st.sampled_from([0, 3, 10]), st.sampled_from([0, 4]))
def test_order_places_and_patience_over_time(rows, instances, patience_s, linger_s):
    sent = [
        Sent(float(at), {"length": length, "request_size": size, "number": k}, priority)
        for k, (at, length, priority, size) in enumerate(sorted(rows))
    ]
    policy = alike(spread=0.2, patience_ms=patience_s * 1000, batching_timeout=linger_s * 1000)
    played = play(policy, sent, runs_s=2.0, instance_num=instances, max=4, closes=True)
    waiting = {one.request["number"]: one for one in sent}
    last = sent[-1].at
    for at, batch in played.batches:
        numbers = {one["number"] for one in batch}
        assert numbers <= waiting.keys()
        assert differ([one["length"] for one in batch]) <= 0.2
        assert sum(one["request_size"] for one in batch) <= 4
        here = [one for one in waiting.values() if one.at <= at]
        greatest = max(one.priority for one in here)
        front = [one for one in here if one.priority == greatest]
        assert numbers & {one.request["number"] for one in front}, (
            "the greatest priority has a part"
        )
        first = min(front, key=lambda one: (one.at, one.request["number"]))
        if at >= first.at + linger_s + patience_s or at >= last:
            assert first.request["number"] in numbers, "its patience was over"
        for number in numbers:
            del waiting[number]
    assert not waiting


def test_a_long_queue_costs_what_its_window_does():
    """Of 256 requests as of as many more: `cut` looks at no other."""
    looked = set()

    class Watched(PolicyQueue):
        def __getitem__(self, index):
            looked.add(index)
            return super().__getitem__(index)

    policy = alike()
    queue = Watched(policy, [Sent(0.0, {"length": 1 + k % 50}) for k in range(600)])
    assert len(policy.cut(queue, instance(16), 0.0).take) == 16
    assert looked == set(range(256))


# In a pipeline.


def test_in_a_pipeline_batches_are_alike_and_a_wrong_request_fails_alone():
    batches, entered, leave = [], threading.Semaphore(0), threading.Event()

    class Pads(headrace.Backend):
        max = None

        def forward(self, batch):
            batches.append(sorted(len(one["data"]) for one in batch))
            entered.release()
            assert leave.wait(60)
            for one in batch:
                one["result"] = one["data"].upper()

    headrace.register("Pads", Pads, replace=True)
    lengths = [30, 5, 29, 6, 28, 5, 31, 6]
    policy = "Alike(by=length, spread=0.2, patience_ms=1e6)"
    with headrace.pipe({"backend": "Pads", "max": 4, "batch_policy": policy}) as pipe:
        first = pipe.submit({"data": "first"})
        assert entered.acquire(timeout=60)
        futures = pipe.submit([{"data": "x" * length} for length in lengths])
        wrong = pipe.submit({"data": 5})
        assert isinstance(wrong.exception(60), errors.InputError)
        leave.set()
        assert [one.result(60)["result"] for one in futures] == ["X" * one for one in lengths]
        assert first.result(60)["result"] == "FIRST"
        assert pipe.stats()["nodes"]["main"]["failed"] == {"input": 1}
    assert batches == [[5], [28, 29, 30, 31], [5, 5, 6, 6]]


def test_a_request_that_is_queued_again_counts_with_the_length_that_it_has_now():
    steps = []

    class GrowsLonger(headrace.Backend):
        """Doubles a text; both requests begin alike, and one of them grows."""

        max = 4

        def forward(self, batch):
            steps.append(sorted(len(one["data"]) for one in batch))
            for one in batch:
                one["result"] = one["data"] * one["times"]
                one["ran"] = one.get("ran", 0) + 1
                if one["ran"] == 4:
                    one["end"] = True

    headrace.register("GrowsLonger", GrowsLonger, replace=True)
    config = {
        "backend": "Iterate(until=end)[GrowsLonger]",
        "batch_policy": "Alike(by=length, spread=0.2, patience_ms=1e6)",
    }
    with headrace.pipe(config) as pipe:
        answers = pipe([{"data": "xx", "times": times} for times in (1, 2, 1, 2)])
    assert [len(one["result"]) for one in answers] == [2, 32, 2, 32]
    assert sorted(length for step in steps for length in step) == sorted(
        [2] * 8 + [2, 4, 8, 16] * 2
    )
    assert all(len(set(step)) == 1 for step in steps)


def test_a_plain_queue_needs_no_more_than_a_length_a_weight_and_items():
    def waiting(policy, *lengths):
        return plain_queue(policy, *({"length": length} for length in lengths))

    for more in ({}, {"batching_timeout": 1000}):
        policy = Alike(Alike.Options(patience_ms=0, **more))
        assert policy.cut(waiting(policy, 10, 50, 11), instance(8), 0.0) == Cut((0, 2))
    # More may come, so below min the first one waits for neighbours.
    policy = Alike(Alike.Options(patience_ms=500))
    assert policy.cut(waiting(policy, 10, 50), instance(8, 2), 0.0) == Cut(0, 0.5)
    assert policy.cut(waiting(policy, 10, 50), instance(8, 2), 0.5) == Cut((0, 1))
