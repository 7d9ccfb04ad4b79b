"""Iterate: every request gets what a slow loop of its own gives, and the places are used as the word says."""

from __future__ import annotations

import contextlib
import gc
import queue
import threading
import weakref

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import headrace
from headrace.errors import (
    BackendError,
    BatchRangeError,
    ClosedError,
    ConfigError,
    DeadlineExceededError,
    InputError,
    LimitError,
    NoResultError,
)
from headrace_flow import Iterate

pytestmark = pytest.mark.first("loop, cache, limit, keep state: requests leave a loop one by one")

WAIT_S = 60.0
"""A test that hangs fails after this; nothing else is measured in seconds."""


class Collatz(headrace.Backend):
    """A step of the Collatz sequence; a request brings `done` when it has come to 1."""

    writes = ("result", "done")
    max = 4

    def forward(self, batch):
        for request in batch:
            number = request["data"]
            request["result"] = number // 2 if number % 2 == 0 else 3 * number + 1
            request["steps"] = request.get("steps", 0) + 1
            if request["result"] == 1:
                request["done"] = True


headrace.register("Collatz", Collatz, replace=True)


def alone(number):
    """Return what a loop over one request gives: the last number, and how many steps it took."""
    steps = 0
    while True:
        number = number // 2 if number % 2 == 0 else 3 * number + 1
        steps += 1
        if number == 1:
            return number, steps


class Stepper(headrace.Backend):
    """Counts `data` down, a step at a time; every step waits until the test lets it go on."""

    writes = ("result", "done")
    max = 3

    def __init__(self):
        self.begun, self.go = queue.Queue(), queue.Queue()

    def init(self, options, context):
        Stepper.one = self

    def forward(self, batch):
        self.begun.put([request["name"] for request in batch])
        answer = self.go.get(timeout=WAIT_S)
        outcomes = [None] * len(batch)
        for place, request in enumerate(batch):
            request["result"] = request["data"] - 1
            if request["result"] == 0:
                request["done"] = "yes"
            if request["name"] == answer:
                outcomes[place] = InputError(key="data", expected="better", got="this")
        return outcomes

    def next(self):
        """Wait for a step to begin; return the names of the requests in it."""
        return self.begun.get(timeout=WAIT_S)

    def end(self, fails=None):
        """Let the step that runs end; the request of this name fails in it."""
        self.go.put(fails)


headrace.register("Stepper", Stepper, replace=True)


def sent(pipe, name, steps, **more):
    """Send a request, and return its future once it is in the queue or runs."""
    return pipe.submit({"name": name, "data": steps}, **more)


@pytest.mark.parametrize("instances", [1, 2])
@pytest.mark.parametrize("most", [1, 3, None])
def test_every_request_gets_what_a_loop_of_its_own_gives(instances, most):
    config = {"backend": "Iterate(until=done)[Collatz]", "instance_num": instances}
    if most is not None:
        config["max"] = most
    with headrace.pipe(config) as pipe:
        requests = [{"data": number} for number in range(2, 60)]
        pipe(requests)
        assert [(one["result"], one["steps"]) for one in requests] == [
            alone(number) for number in range(2, 60)
        ]
        assert [one["data"] for one in requests] == list(range(2, 60))
        stats = pipe.stats()
    counted = stats["iterate"]["main"]
    assert counted["steps"] == stats["nodes"]["main"]["batches"]
    total = sum(alone(number)[1] for number in range(2, 60))
    assert counted["in_flight"] * counted["steps"] == pytest.approx(total)
    assert counted["occupancy"] == pytest.approx(counted["in_flight"] / min(most or 4, 4))


def test_who_is_done_leaves_at_once_and_who_waits_takes_the_place_before_the_next_step():
    with headrace.pipe({"backend": "Iterate(until=done)[Stepper]"}) as pipe:
        futures = {"a": sent(pipe, "a", 4)}
        assert Stepper.one.next() == ["a"]
        futures |= {
            name: sent(pipe, name, steps) for name, steps in zip("bcde", (1, 3, 2, 1), strict=True)
        }
        Stepper.one.end()
        assert Stepper.one.next() == ["a", "b", "c"]
        Stepper.one.end()
        assert Stepper.one.next() == ["a", "c", "d"]  # b has left, the others keep their places
        assert futures["b"].result(WAIT_S) == {"name": "b", "data": 1, "result": 0, "done": "yes"}
        assert not futures["a"].done()
        Stepper.one.end()
        assert Stepper.one.next() == ["a", "c", "d"]
        Stepper.one.end()
        for name in "acd":
            assert futures[name].result(WAIT_S)["result"] == 0
        assert Stepper.one.next() == ["e"]
        Stepper.one.end()
        assert futures["e"].result(WAIT_S)["result"] == 0
        assert pipe.stats()["iterate"]["main"] == {
            "steps": 5,
            "in_flight": 11 / 5,
            "occupancy": 11 / 15,
        }


@settings(max_examples=40)
@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("send"), st.integers(1, 6)),
            st.tuples(st.just("step"), st.none()),
            st.tuples(st.just("step that fails"), st.integers(0, 2)),
            st.tuples(st.just("leave"), st.integers(0, 5)),
        ),
        max_size=30,
    )
)
def test_places_limits_failures_and_cancellations(script):
    """The word agrees with a list: those in flight in front, then those that wait, at most three, four steps each."""
    with headrace.pipe({"backend": "Iterate(until=done,limit=4)[Stepper]"}) as pipe:
        stepper, names = Stepper.one, iter(range(1000))
        streams, left, ran = {}, {}, {}  # by name; `left` and `ran` are those of the model
        flight, waiting, gone, expected = [], [], set(), {}

        def begin():
            flight.extend(waiting[: 3 - len(flight)])
            del waiting[: 3 - sum(one in ran for one in flight)]
            waiting[:] = [one for one in waiting if one not in flight]
            if flight:
                assert stepper.next() == flight

        def step(fails=None):
            stepper.end(fails)
            for one in [*flight]:
                left[one] -= 1
                ran[one] = ran.get(one, 0) + 1
                if one in gone:
                    flight.remove(one)
                    continue
                outcome = None
                if one == fails:
                    outcome = InputError
                elif not left[one]:
                    outcome = "answer"
                elif ran[one] == 4:
                    outcome = LimitError
                if outcome is not None:
                    flight.remove(one)
                    expected[one] = outcome
            begin()

        for what, value in script:
            if what == "send":
                name = next(names)
                left[name] = value
                streams[name] = pipe.stream({"name": name, "data": value})
                waiting.append(name)
                if not flight:
                    begin()
            elif what == "leave":
                living = [*flight, *waiting]
                if value < len(living) and living[value] not in gone:
                    name = living[value]
                    streams[name].close()
                    gone.add(name)
                    if name in waiting:
                        waiting.remove(name)
            elif flight:
                fails = None
                if what == "step that fails" and value < len(flight):
                    fails = flight[value]
                step(fails)
        while flight:
            step()
        for name, stream in streams.items():
            if name in gone:
                continue
            if expected[name] == "answer":
                (last,) = stream
                assert last["result"] == 0
                assert last["data"] == ran[name]
            else:
                with pytest.raises(expected[name]):
                    next(stream)
        assert stepper.begun.empty()


def test_the_limit_is_how_many_steps_may_run():
    with headrace.pipe({"backend": "Iterate(until=done,limit=3)[Collatz]"}) as pipe:
        assert pipe({"data": 8})["steps"] == 3
        request = {"data": 16}
        with pytest.raises(LimitError, match=r"ran 3 steps.*'done'") as caught:
            pipe(request)
        assert (caught.value.limit, caught.value.node, caught.value.backend) == (
            3,
            "main",
            "Iterate",
        )
        assert request == {"data": 16, "steps": 3}


def test_a_key_that_a_request_brings_is_removed_on_entry_also_when_the_dict_is_sent_again():
    with headrace.pipe({"backend": "Iterate(until=done)[Collatz]"}) as pipe:
        request = {"data": 8, "done": "already", "steps": 0}
        for _ in range(3):
            assert pipe(request)["steps"] == 3
            assert request["done"] is True
            request["steps"] = 0


def test_a_deadline_takes_one_request_out_and_disturbs_no_other():
    with headrace.pipe({"backend": "Iterate(until=done)[Stepper]"}) as pipe:
        first = sent(pipe, "a", 3)
        assert Stepper.one.next() == ["a"]
        late, other = sent(pipe, "late", 3, timeout=0.0), sent(pipe, "b", 2)
        soon = sent(pipe, "soon", 100, timeout=0.2)
        Stepper.one.end()
        assert "late" not in (names := Stepper.one.next())
        with pytest.raises(DeadlineExceededError):
            soon.result(WAIT_S)
        Stepper.one.end()
        assert Stepper.one.next() == ["a", "b"]
        assert "a" in names
        Stepper.one.end()
        assert [one.result(WAIT_S)["result"] for one in (first, other)] == [0, 0]
        with pytest.raises(DeadlineExceededError):
            late.result(WAIT_S)


def test_a_dict_that_was_cancelled_and_is_sent_again_begins_anew():
    with headrace.pipe({"backend": "Iterate(until=done,limit=3)[Stepper]"}) as pipe:
        request = {"name": "a", "data": 3}
        for _ in range(4):
            stream = pipe.stream(request)
            assert Stepper.one.next() == ["a"]
            Stepper.one.end()
            assert Stepper.one.next() == ["a"]  # its second step, which ends for nobody
            stream.close()
            keeper = sent(pipe, "b", 1)
            Stepper.one.end()
            assert Stepper.one.next() == ["b"]
            Stepper.one.end()
            keeper.result(WAIT_S)
            request.update(data=3)
            request.pop("result", None)
        future = pipe.submit(request)
        for _ in range(3):
            assert Stepper.one.next() == ["a"]
            Stepper.one.end()
        assert future.result(WAIT_S)["result"] == 0


def test_a_step_without_a_result_is_an_error_of_the_request_alone():
    class Silent(headrace.Backend):
        max = 4

        def forward(self, batch):
            for request in batch:
                if request["data"] != "silent":
                    request["result"], request["done"] = request["data"], True

    headrace.register("Silent", Silent, replace=True)
    with headrace.pipe({"backend": "Iterate(until=done)[Silent]"}) as pipe:
        with pytest.raises(headrace.errors.RequestsFailed) as caught:
            pipe([{"data": "silent"}, {"data": "loud"}])
        silent, loud = caught.value.errors
        assert isinstance(silent, NoResultError)
        assert "'done'" in str(silent)
        assert loud is None


def test_an_error_of_a_whole_step_fails_those_in_it_and_no_other():
    class Breaks(headrace.Backend):
        max = 2

        def forward(self, batch):
            for request in batch:
                if request["data"] == "bad":
                    raise ValueError("this step")
                request["result"], request["done"] = request["data"], True

    headrace.register("Breaks", Breaks, replace=True)
    with headrace.pipe({"backend": "Iterate(until=done)[Breaks]"}) as pipe:
        with pytest.raises(BackendError, match="this step"):
            pipe({"data": "bad"})
        assert pipe({"data": "good"})["result"] == "good"


def test_steps_are_filled_up_where_the_node_says_so():
    sizes = []

    class Pairs(headrace.Backend):
        min = max = 2

        def forward(self, batch):
            sizes.append(len(batch))
            for request in batch:
                request["result"] = request["data"] - 1
                if not request["result"]:
                    request["done"] = True

    headrace.register("Pairs", Pairs, replace=True)
    with headrace.pipe({"backend": "Iterate(until=done)[Pairs]", "pad": True}) as pipe:
        requests = pipe([{"data": 5}, {"data": 2}])
        assert [one["result"] for one in requests] == [0, 0]
        assert set(sizes) == {2}
        counted = pipe.stats()["iterate"]["main"]
        assert counted["in_flight"] * counted["steps"] == pytest.approx(7)  # copies are not counted


def test_weights_count_as_places():
    with headrace.pipe({"backend": "Iterate(until=done)[Stepper]"}) as pipe:
        first = sent(pipe, "a", 2)
        assert Stepper.one.next() == ["a"]
        heavy = pipe.submit({"name": "heavy", "data": 1, "request_size": 3})
        light = sent(pipe, "light", 1)
        Stepper.one.end()
        assert Stepper.one.next() == ["a"]  # no room for three
        Stepper.one.end()
        assert Stepper.one.next() == ["heavy"]
        Stepper.one.end()
        assert Stepper.one.next() == ["light"]
        Stepper.one.end()
        for future in (first, heavy, light):
            assert future.result(WAIT_S)["result"] == 0
        with pytest.raises(BatchRangeError):
            pipe({"name": "too heavy", "data": 1, "request_size": 4})


def test_the_elements_of_a_list_and_the_nodes_after_it():
    nodes = {
        "steps": {"backend": "Iterate(until=done)[Collatz]", "each": "items", "next": "count"},
        "count": {"backend": "Call(builtins:len)"},
    }
    with headrace.pipe(nodes) as pipe:
        assert pipe({"items": [6, 7, 1], "data": None})["result"] == 3


@pytest.mark.parametrize("around", ["S", "BackgroundThread"])
def test_it_is_still_outermost_where_nothing_stands_beside_it(around):
    with headrace.pipe({"backend": f"{around}[Iterate(until=done)[Collatz]]"}) as pipe:
        assert pipe({"data": 6})["result"] == 1


@pytest.mark.parametrize(("until", "says"), [("''", "at least 1"), ("data", "reads 'data'")])
def test_a_key_that_cannot_end_a_request_is_refused(until, says):
    with pytest.raises(ConfigError, match=says):
        headrace.PipelineConfig.load({"backend": f"Iterate(until={until})[Identity]"})


def test_it_warns_where_no_two_requests_share_a_step():
    def warnings(largest_batch):
        return list(Iterate.lint(Iterate.Options(until="done"), largest_batch))

    assert any("each step runs one request" in one for one in warnings(1))
    assert warnings(2) == []


def test_a_close_that_drains_lets_those_in_flight_end_and_one_that_does_not_ends_them():
    for drain in (True, False):
        pipe = headrace.pipe({"backend": "Iterate(until=done)[Stepper]"})
        stepper = Stepper.one
        future = sent(pipe, "a", 2)
        assert stepper.next() == ["a"]
        closing = threading.Thread(target=pipe.close, kwargs={"drain": drain})
        closing.start()
        while pipe.ready:
            pass
        stepper.end()
        if drain:
            assert stepper.next() == ["a"]
            stepper.end()
            assert future.result(WAIT_S)["result"] == 0
        else:
            with pytest.raises(ClosedError):
                future.result(WAIT_S)
        closing.join(WAIT_S)


def test_at_the_end_of_every_step_the_end_of_a_batch_is_told():
    ends = []

    class Ends(Collatz):
        def init(self, options, context):
            context.batch.at_end(lambda: ends.append(1))

    headrace.register("Ends", Ends, replace=True)
    with headrace.pipe({"backend": "Iterate(until=done)[Ends]"}) as pipe:
        pipe({"data": 8})
    assert len(ends) == 3


def test_nothing_is_kept_of_requests_that_have_ended():
    class Data:
        pass

    class Keeps(headrace.Backend):
        max = 4

        def forward(self, batch):
            for request in batch:
                request["left"] -= 1
                request["result"] = request["data"]
                if not request["left"]:
                    request["done"] = True

    headrace.register("Keeps", Keeps, replace=True)
    with headrace.pipe({"backend": "Iterate(until=done,limit=5)[Keeps]"}) as pipe:
        seen = []
        for left in (3, 5, 9):
            data = Data()
            seen.append(weakref.ref(data))
            with contextlib.suppress(LimitError):
                pipe({"data": data, "left": left})
            del data
        pipe({"data": None, "left": 2})
        gc.collect()
        assert [reference() for reference in seen] == [None] * 3
