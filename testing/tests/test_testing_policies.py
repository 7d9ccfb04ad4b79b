"""The kit for policies: the default policy keeps the rules, and policies that break one are found."""

from __future__ import annotations

from types import MappingProxyType

import pytest

from headrace.errors import LimitError
from headrace.policies import BatchPolicy, Cut, Greedy
from headrace_testing import PolicyConformance, PolicyQueue, Sent, play


class TestGreedy(PolicyConformance):
    policy = Greedy


class TestLingering(PolicyConformance):
    policy = Greedy
    options = MappingProxyType({"batching_timeout": 500})


class Newest(BatchPolicy):
    """Takes the newest it sees, alone."""

    picks = True

    def trait(self, request):
        return request["data"]

    def cut(self, queue, instance, now):
        fits = [k for k in range(len(queue)) if queue[k].weight <= instance.max]
        return Cut((fits[-1],) if fits else 0)


class TestNewest(PolicyConformance):
    policy = Newest


# Each breaks one rule.


class Forgetful(BatchPolicy):
    def __init__(self, options=None):
        super().__init__(options)
        self.asked = 0

    def cut(self, queue, instance, now):
        self.asked += 1
        return Cut(self.asked % 2)


class Steals(Greedy):
    def cut(self, queue, instance, now):
        cut = super().cut(queue, instance, now)
        del queue.items[:1]
        return cut


class Places(Greedy):
    def cut(self, queue, instance, now):
        return Cut((0,))


class Twice(Newest):
    def cut(self, queue, instance, now):
        return Cut((0, 0))


class Beyond(Newest):
    def cut(self, queue, instance, now):
        return Cut((len(queue),))


class Heavy(BatchPolicy):
    def cut(self, queue, instance, now):
        return Cut(len(queue))


class Pairs(BatchPolicy):
    def cut(self, queue, instance, now):
        return Cut(
            2 if len(queue) >= 2 and instance.max >= queue[0].weight + queue[1].weight else 0
        )


class Sevens(Newest):
    """Never takes one that it dislikes, whatever comes."""

    def cut(self, queue, instance, now):
        liked = [k for k in range(len(queue)) if queue[k].trait % 7]
        return Cut(tuple(liked[:1]))


class Spins(Greedy):
    def cut(self, queue, instance, now):
        return Cut(0, wake_at=now)


class Marks(Newest):
    def trait(self, request):
        request["seen"] = True
        return 1


class Draws(Newest):
    numbers = iter(range(10**6))

    def trait(self, request):
        return next(self.numbers)


BROKEN = {
    Forgetful: ("decides_the_same", "different answers"),
    Steals: ("decides_the_same", "changed the queue"),
    Places: ("served_once", "does not say picks"),
    Twice: ("served_once", "names no places"),
    Beyond: ("served_once", "names no places"),
    Heavy: ("served_once", "above max"),
    Sevens: ("served_once", "left in the queue"),
    Spins: ("served_once", "asked without end"),
    Marks: ("a_trait", "changed the request"),
    Draws: ("a_trait", "of one request"),
}


@pytest.mark.parametrize("broken", BROKEN, ids=lambda cls: cls.__name__)
def test_a_policy_that_breaks_a_rule_is_found(broken):
    name, why = BROKEN[broken]
    kit = type("Kit", (PolicyConformance,), {"policy": broken})()
    (rule,) = [getattr(kit, one) for one in dir(kit) if one.startswith("test_") and name in one]
    with pytest.raises(AssertionError, match=why):
        rule()


def test_a_rule_that_holds_for_most_weights_is_found_for_all():
    kit = type("Kit", (PolicyConformance,), {"policy": Pairs, "max": 4})()
    with pytest.raises(AssertionError, match="some were left"):
        kit.test_weights_stay_within_the_instance()


def test_play_is_a_node_on_a_virtual_clock():
    sent = [Sent(at, {"data": at}) for at in (0.0, 0.2, 0.4, 1.1, 5.0)]
    played = play(Greedy(), sent, runs_s=1.0, max=2)
    assert [(at, [one["data"] for one in batch]) for at, batch in played.batches] == [
        (0.0, [0.0]),
        (1.0, [0.2, 0.4]),
        (2.0, [1.1]),
        (5.0, [5.0]),
    ]
    assert not played.left
    assert not played.refused


def test_play_wakes_a_policy_when_it_asks_for_that():
    class Half(Greedy):
        def cut(self, queue, instance, now):
            due = queue[0].arrival + 0.5
            return Cut(len(queue)) if now >= due else Cut(0, wake_at=due)

    sent = [Sent(0.0, {"data": 0}), Sent(0.4, {"data": 1}), Sent(0.6, {"data": 2})]
    played = play(Half(), sent, runs_s=0.25)
    assert [at for at, _ in played.batches] == [0.5, 1.1]


def test_play_tells_what_waits_for_ever_and_what_was_refused():
    class Odd(Newest):
        def trait(self, request):
            if request["data"] == 1:
                raise LimitError("one is too much")
            return request["data"]

        def cut(self, queue, instance, now):
            return Cut(0)

    sent = [Sent(0.0, {"data": 0}), Sent(0.0, {"data": 1})]
    played = play(Odd(), sent)
    assert played.left == [{"data": 0}]
    ((refused, error),) = played.refused
    assert (refused, error.code) == ({"data": 1}, "limit")


def test_a_queue_by_hand_stands_in_the_order_of_service():
    sent = [Sent(at, {"data": at}, at % 2) for at in range(4)]
    queue = PolicyQueue(Newest(), sent)
    assert [one.trait for one in queue.items] == [1, 3, 0, 2]
    assert (queue.oldest, queue.weight, len(queue)) == (0.0, 4, 4)
    assert [one.trait for one in queue.take(Cut((2, 0)))] == [0, 1]
    assert [one.trait for one in queue.items] == [3, 2]
