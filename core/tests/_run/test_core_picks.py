"""Policies that pick: which requests share a batch, what they see, and what becomes of what they refuse."""

from __future__ import annotations

import threading
from typing import ClassVar

import pytest
from sending import WAYS

import headrace
from headrace import errors
from headrace.policies import BatchPolicy, Cut, Greedy


class PickedKinds(BatchPolicy):
    """Cuts the requests of the kind of the first one; a kind of "?" cannot be told.

    Attributes:
        read: Each request whose trait was worked out, and the thread that did.
        seen: The traits that each `cut` saw.
        says: What `cut` answers in place of that, if anything.
    """

    picks = True
    read: ClassVar[list] = []
    seen: ClassVar[list] = []
    says = None
    within = staticmethod(lambda: None)

    def trait(self, request):
        type(self).read.append((request["data"], threading.get_ident()))
        self.within()
        if request["kind"] == "?":
            raise errors.LimitError("a kind of ? is too much", limit=1)
        return request["kind"]

    def cut(self, queue, instance, now):
        kinds = [queue[place].trait for place in range(len(queue))]
        assert queue.weight == len(kinds)
        type(self).seen.append(kinds)
        if self.says is not None:
            return self.says
        return Cut(tuple(place for place, kind in enumerate(kinds) if kind == kinds[0]))


@pytest.fixture
def kinds(monkeypatch):
    monkeypatch.setattr(PickedKinds, "read", [])
    monkeypatch.setattr(PickedKinds, "seen", [])
    monkeypatch.setattr(PickedKinds, "says", None)
    monkeypatch.setattr(PickedKinds, "within", staticmethod(lambda: None))
    headrace.register("PickedKinds", PickedKinds, replace=True)
    return PickedKinds


def requests(text):
    """Return a request per letter: its kind; ``data`` is its place."""
    return [{"data": place, "kind": kind} for place, kind in enumerate(text)]


CONFIG = {"backend": "Gate", "batch_policy": "PickedKinds", "max": 512}


def held(pipe, gate):
    """Let a request enter the only instance and stay there; what comes next waits."""
    return gate.entered(pipe.submit({"data": "first", "kind": "-"}))


def cut(gate, kinds, waiting, text, says=None, **more):
    """Let requests wait together, and return the batches that they leave in."""
    with headrace.pipe({**CONFIG, **more}) as pipe:
        held(pipe, gate)
        futures = pipe.submit(requests(text))
        waiting(pipe, len(text))
        kinds.says = says
        gate.open()
        assert [one.result(60)["result"] for one in futures] == list(range(len(text)))
        assert pipe.stats()["nodes"]["main"]["ok"] == 1 + len(text)
    return gate.batches[1:]


@pytest.mark.parametrize(
    ("text", "says", "batches"),
    [
        pytest.param("abacab", None, [[0, 2, 4], [1, 5], [3]], id="places in their order"),
        pytest.param("abc", Cut((2, 0, 1)), [[2, 0, 1]], id="the order of the places"),
        pytest.param("abc", Cut(2), [[0, 1], [2]], id="a count is the head of the queue"),
    ],
)
def test_a_batch_has_the_requests_of_the_places_that_the_policy_says(
    gate, kinds, waiting, text, says, batches
):
    assert cut(gate, kinds, waiting, text, says) == batches


def test_a_trait_is_read_once_by_the_thread_that_sends_and_holds_no_lock(
    gate, kinds, client, waiting
):
    with headrace.pipe(CONFIG) as pipe:
        # Under the lock of the node `stats` would never answer from another thread.
        def look():
            looking = client(pipe.stats)
            looking.outcome()

        held(pipe, gate)
        kinds.within = staticmethod(look)
        callers = [client(pipe, one) for one in requests("abab")]
        waiting(pipe, 4)
        gate.open()
        for caller in callers:
            caller.outcome()
        assert dict(kinds.read[1:]) == {k: one.ident for k, one in enumerate(callers)}
        assert len(kinds.read) == 5


def test_nobody_skips_the_queue_of_a_policy_that_picks_whatever_it_says(gate, kinds, monkeypatch):
    monkeypatch.setattr(PickedKinds, "sends_when_idle", True)
    gate.open()
    with headrace.pipe(CONFIG) as pipe:
        assert pipe({"data": 1, "kind": "a"})["result"] == 1
        with pytest.raises(errors.LimitError):
            pipe({"data": 1, "kind": "?"})
    assert [data for data, _ in kinds.read] == [1, 1]


@pytest.mark.parametrize("busy", [False, True])
@pytest.mark.parametrize("way", ["call", "timeout", "list", "submit", "async"])
def test_a_request_that_the_policy_refuses_fails_on_entry_and_alone(way, busy, gate, kinds):
    with headrace.pipe(CONFIG) as pipe:
        if busy:
            running = held(pipe, gate)
        request = {"data": 1, "kind": "?"}
        with pytest.raises(errors.LimitError, match="a kind of \\? is too much") as caught:
            WAYS[way](pipe, request)  # although the instance is held: it does not wait
        assert (caught.value.node, caught.value.limit) == ("main", 1)
        assert request == {"data": 1, "kind": "?"}
        gate.open()
        if busy:
            assert running.result(60)["result"] == "first"
        assert pipe({"data": 2, "kind": "a"})["result"] == 2
        stats = pipe.stats()["nodes"]["main"]
        assert (stats["submitted"], stats["failed"]) == (2 + busy, {"limit": 1})


def test_of_a_list_only_what_the_policy_refuses_fails(gate, kinds):
    gate.open()
    with headrace.pipe(CONFIG) as pipe:
        with pytest.raises(errors.RequestsFailed) as caught:
            pipe(requests("a?a"))
        codes = [error and error.code for error in caught.value.errors]
        assert codes == [None, "limit", None]


def test_a_trait_that_raises_fails_its_request_with_a_contract_error(gate, kinds):
    gate.open()
    with headrace.pipe(CONFIG) as pipe:
        with pytest.raises(
            errors.ContractError, match="the policy PickedKinds raised KeyError"
        ) as caught:
            pipe({"data": 1})
        assert isinstance(caught.value.__cause__, KeyError)
        assert pipe({"data": 2, "kind": "a"})["result"] == 2


WRONG = [
    Cut((0, 0)),
    Cut((0, 2)),
    Cut((-1,)),
    Cut((0.5,)),
    Cut(("0",)),
    Cut([0, 1]),
    Cut(-1),
    Cut(None),
    Cut((0,), float("nan")),
    None,
]


@pytest.mark.parametrize("says", WRONG, ids=repr)
def test_places_that_are_none_fail_what_waits(says, gate, kinds, waiting, monkeypatch):
    with headrace.pipe(CONFIG) as pipe:
        held(pipe, gate)
        futures = pipe.submit(requests("ab"))
        waiting(pipe, 2)
        monkeypatch.setattr(PickedKinds, "cut", lambda *_: says)
        gate.open()
        for future in futures:
            error = future.exception(60)
            assert isinstance(error, errors.ContractError)
            assert "places, each once and within the queue" in str(error)


def test_places_of_a_policy_that_does_not_say_that_it_picks_are_an_error(gate):
    class SaysTrait(Greedy):
        def cut(self, queue, instance, now):
            return Cut((0,))

    headrace.register("SaysTrait", SaysTrait, replace=True)
    gate.open()
    with headrace.pipe({"backend": "Gate", "batch_policy": "SaysTrait"}) as pipe:
        error = pipe.submit({"data": 1}).exception(60)
        assert isinstance(error, errors.ContractError)
        assert "picks = True" in str(error)


def test_a_policy_that_picks_sees_the_head_of_a_long_queue_and_nobody_is_left(gate, kinds, waiting):
    count = 10_000
    cut(gate, kinds, waiting, "abcd" * (count // 4), queue_size=count)
    assert len(kinds.read) == count + 1
    assert max(map(len, kinds.seen)) == 256
    assert kinds.seen[1] == list("abcd") * 64


def test_a_higher_priority_stands_at_lower_places(gate, kinds, waiting):
    with headrace.pipe(CONFIG) as pipe:
        held(pipe, gate)
        later = pipe.submit(requests("ab"))
        sooner = pipe.submit({"data": 9, "kind": "b"}, priority=1)
        waiting(pipe, 3)
        gate.open()
        for one in [*later, sooner]:
            one.result(60)
    assert gate.batches[1:] == [[9, 1], [0]]


def test_a_request_that_is_cancelled_or_too_late_is_in_no_batch(gate, kinds, waiting):
    with headrace.pipe(CONFIG) as pipe:
        held(pipe, gate)
        futures = pipe.submit(requests("abaa"))
        waiting(pipe, 4)
        assert futures[2].cancel()
        late = pipe.submit({"data": 4, "kind": "b"}, timeout=0.001)
        assert isinstance(late.exception(60), errors.DeadlineExceededError)
        gate.open()
        assert [futures[k].result(60)["result"] for k in (0, 1, 3)] == [0, 1, 3]
    assert gate.batches[1:] == [[0, 3], [1]]


def test_a_pick_above_the_max_of_the_instance_fails_what_it_picks_and_nothing_else(
    gate, kinds, waiting, monkeypatch
):
    with headrace.pipe({**CONFIG, "max": 2}) as pipe:
        held(pipe, gate)
        futures = pipe.submit(requests("baaab"))
        waiting(pipe, 5)
        answers = iter([Cut((1, 2, 3)), Cut((1, 0))])
        monkeypatch.setattr(PickedKinds, "cut", lambda *_: next(answers))
        gate.open()
        for future in futures[1:4]:
            assert isinstance(future.exception(60), errors.BatchRangeError)
        assert [futures[k].result(60)["result"] for k in (0, 4)] == [0, 4]
    assert gate.batches[1:] == [[4, 0]]


def test_a_pick_below_the_min_fails_alone_what_fits_no_batch(gate, kinds, waiting, monkeypatch):
    """Also where it is not the head of the queue."""
    with headrace.pipe({**CONFIG, "max": 8, "min": 2}) as pipe:
        monkeypatch.setattr(PickedKinds, "cut", lambda *_: Cut((1, 0)))
        running = pipe.submit(requests("ab"))
        gate.wait_entered()
        futures = pipe.submit(requests("abc"))
        waiting(pipe, 3)
        answers = iter([Cut((1,)), Cut((1, 0))])
        monkeypatch.setattr(PickedKinds, "cut", lambda *_: next(answers))
        gate.open()
        assert isinstance(futures[1].exception(60), errors.BatchRangeError)
        assert [futures[k].result(60)["result"] for k in (0, 2)] == [0, 2]
        assert [one.exception(60) for one in running] == [None, None]
    assert gate.batches[1:] == [[2, 0]]


def test_a_request_heavier_than_any_instance_is_refused_before_its_kind_matters(gate, kinds):
    gate.open()
    with headrace.pipe({**CONFIG, "max": 2}) as pipe:
        future = pipe.submit({"data": 1, "kind": "a", "request_size": 3})
        assert isinstance(future.exception(60), errors.BatchRangeError)
        assert pipe({"data": 2, "kind": "a"})["result"] == 2


def test_explain_says_which_policy_picks(kinds):
    nodes = headrace.explain({"a": {**CONFIG, "backend": "Identity"}, "b": {"backend": "Identity"}})
    assert nodes["nodes"]["a"]["picked_by"] == "PickedKinds"
    assert "picked_by" not in nodes["nodes"]["b"]


def test_a_request_that_is_queued_again_is_read_again():
    class Twice(headrace.Backend):
        """Keeps a request once, and changes its kind meanwhile."""

        keeps = True

        def init(self, options, context):
            self.context = context

        def forward(self, batch):
            (request,) = batch
            if request["kind"] == "new":
                request["kind"] = "again" if request["data"] == 0 else "lost"
                self.context.request.resume(self.context.request.keep(request))
                return [headrace.PENDING]
            request["result"] = request["kind"]
            return None

    class Kinds(BatchPolicy):
        picks = True
        read: ClassVar[list] = []

        def trait(self, request):
            self.read.append(("trait", request["kind"]))
            return request["kind"]

        def trait_again(self, request):
            self.read.append(("again", request["kind"]))
            if request["kind"] == "lost":
                raise errors.LimitError("too much", limit=1)
            return request["kind"]

        def cut(self, queue, instance, now):
            self.read.append(("cut", queue[0].trait))
            return Cut((0,))

    class KindsAsTheyCome(Kinds):
        read: ClassVar[list] = []
        trait_again = BatchPolicy.trait_again

    for cls in (Twice, Kinds, KindsAsTheyCome):
        headrace.register(cls.__name__, cls, replace=True)
    for policy, how in ((Kinds, "again"), (KindsAsTheyCome, "trait")):
        config = {"backend": "Twice", "batch_policy": policy.__name__}
        with headrace.pipe(config) as pipe:
            assert pipe({"data": 0, "kind": "new"})["result"] == "again"
        assert policy.read == [("trait", "new"), ("cut", "new"), (how, "again"), ("cut", "again")]
    with headrace.pipe({"backend": "Twice", "batch_policy": "Kinds"}) as pipe:
        with pytest.raises(errors.LimitError, match="too much"):
            pipe({"data": 1, "kind": "new"})
        assert pipe({"data": 0, "kind": "new"})["result"] == "again"
