"""StateFul against a slow model of it: a dict of states, and one request after the other."""

from __future__ import annotations

import operator
import sys
import threading
import tracemalloc
from collections import Counter
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import headrace
from headrace import errors
from headrace_flow.order import InOrder
from headrace_flow.stateful import StateFul
from headrace_testing import FakeClock

WAIT_S = 60.0
IDLE_S, STATES = 10.0, 2


class Words(headrace.Backend):
    """Appends ``data`` to the words of its session so far; "bad" fails. It notes whether a session runs twice at once."""

    reads = ("data",)
    running: Counter
    overlaps: list
    lock = threading.Lock()

    def forward(self, batch):
        with self.lock:
            for request in batch:
                self.running[request["session"]] += 1
                self.overlaps += [1] * (self.running[request["session"]] > 1)
        outcomes = []
        for request in batch:
            if request["data"] == "bad":
                outcomes.append(ValueError("bad"))
                continue
            words = (*request.get("before", ()), request["data"])
            request["result"] = {"words": words, "all": words}
            outcomes.append(None)
        with self.lock:
            for request in batch:
                self.running[request["session"]] -= 1
        return outcomes


class Timed(StateFul):
    """StateFul on a clock that the test moves."""

    fake = FakeClock()

    @staticmethod
    def clock():
        """Return the time of the test."""
        return Timed.fake()


@pytest.fixture(scope="module", autouse=True)
def registered():
    headrace.register("Words", Words, replace=True)
    headrace.register("Timed", Timed, replace=True)


@pytest.fixture(autouse=True)
def fresh():
    Words.running, Words.overlaps = Counter(), []


class Model:
    """What StateFul promises, one request after the other: states by session, and when each was last used."""

    def __init__(self, on_error, start):
        self.states, self.used, self.on_error, self.start = {}, {}, on_error, start
        self.expired = self.refused = 0

    def answer(self, now, session, data, starts, ends):
        """Return the words of an answer, "bad", "full", or "not begun"."""
        for name in [one for one, when in self.used.items() if now - when >= IDLE_S]:
            self.forget(name)
            self.expired += 1
        if session not in self.used and len(self.used) >= STATES:
            self.refused += 1
            return "full"
        before = self.states.get(session, ())
        if self.start == "required" and not starts and session not in self.states:
            answer = "not begun"
        elif data == "bad":
            answer = "bad"
            if self.on_error == "drop":
                self.states.pop(session, None)
        else:
            answer = (*(() if starts else before), data)
            self.states[session] = answer
        if ends or session not in self.states:
            self.forget(session)
        else:
            self.used[session] = now
        return answer

    def forget(self, session):
        self.states.pop(session, None)
        self.used.pop(session, None)


SELDOM = st.sampled_from([False] * 4 + [True])
STEPS = st.one_of(
    st.floats(0, 12, allow_nan=False).map(lambda seconds: ("wait", seconds)),
    st.tuples(st.sampled_from("abcde"), st.sampled_from(["x", "y", "bad"]), st.booleans(), SELDOM),
)


STARTS = st.sampled_from(["begin", "required"])


def request_of(session, data, starts, ends):
    request = {"session": session, "data": data, "before": ("a state of its own",)}
    if starts:
        request["sequence_start"] = True
    if ends:
        request["sequence_end"] = True
    return request


@settings(max_examples=80, deadline=None)
@given(st.lists(STEPS, max_size=40), st.sampled_from(["keep", "drop"]), STARTS)
def test_one_request_after_the_other_answers_as_the_model(steps, on_error, start):
    Timed.fake, model = FakeClock(), Model(on_error, start)
    config = {"backend": "Timed(session)[Words]", "keep": {"words": "before"}}
    config |= {"idle_s": IDLE_S, "states": STATES, "on_error": on_error, "start": start}
    with headrace.pipe(config) as pipe:
        for step in steps:
            if step[0] == "wait":
                Timed.fake.advance(step[1])
                continue
            request = request_of(*step)
            try:
                answer = pipe(request)["result"]["all"]
            except errors.OverloadedError:
                answer = "full"
            except errors.InputError:
                answer = "not begun"
            except errors.BackendError:
                answer = "bad"
            assert answer == model.answer(Timed.fake(), *step)
            assert request.get("result") == ({"all": answer} if type(answer) is tuple else None)
            assert "words" not in request
            counts = pipe.stats()["sessions"]["main"]
            expected = (len(model.used), model.expired, model.refused)
            assert (counts["kept"], counts["expired"], counts["refused"]) == expected


@settings(max_examples=40, deadline=None)
@given(
    st.lists(STEPS.filter(lambda one: one[0] != "wait"), max_size=60),
    st.sampled_from(["keep", "drop"]),
    st.integers(1, 8),
    st.sets(st.integers(0, 59), max_size=4),
    STARTS,
    st.sampled_from([1, 3]),
)
def test_requests_that_are_sent_at_once_answer_as_if_one_after_the_other(
    steps, on_error, most, cancelled, start, instance_num
):
    """All are submitted before any is waited for; those that are cancelled in time never were."""
    Timed.fake, model = FakeClock(), Model(on_error, start)
    config = {"backend": "Timed(session)[Words]", "keep": {"words": "before"}, "max": most}
    config |= {"start": start, "instance_num": instance_num}
    with headrace.pipe({**config, "on_error": on_error}) as pipe:
        futures = [pipe.submit(request_of(*step)) for step in steps]
        gone = {place for place in cancelled if place < len(futures) and futures[place].cancel()}
        model.states, answers = {}, []
        for place, (step, future) in enumerate(zip(steps, futures, strict=True)):
            if place in gone:
                continue
            error = future.exception(WAIT_S)
            failed = "not begun" if isinstance(error, errors.InputError) else "bad"
            answers.append(failed if error else future.result()["result"]["all"])
            assert answers[-1] == expected_without_bound(model, step)
        counts = pipe.stats()["sessions"]["main"]
        assert (counts["busy"], counts["waiting"]) == (0, 0)
        assert counts["kept"] == len(model.states)
    assert not Words.overlaps


def expected_without_bound(model, step):
    model.used = {}
    return model.answer(0.0, *step)


@pytest.mark.parametrize("instance_num", [2, 4])
def test_with_several_instances_no_session_runs_twice_at_once_and_order_holds(instance_num):
    config = {"backend": "StateFul(session)[Words]", "keep": {"words": "before"}, "max": 4}
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        with headrace.pipe({**config, "instance_num": instance_num}) as pipe:
            futures = [pipe.submit({"session": i % 7, "data": i}) for i in range(700)]
            answers = [one.result(WAIT_S)["result"]["all"] for one in futures]
            counts = pipe.stats()["sessions"]["main"]
    finally:
        sys.setswitchinterval(interval)
    assert not Words.overlaps
    assert (counts["busy"], counts["waiting"], counts["kept"]) == (0, 0, 7)
    for session in range(7):
        words = range(session, 700, 7)
        assert answers[session::7] == [tuple(words[:n]) for n in range(1, 101)]


class Lines:
    """The context of a backend, as far as InOrder uses it: what is asked for, and the ends that are to be told.

    A request has its ``number`` as it came in; ``others`` are run by other instances.
    """

    def __init__(self):
        self.resumed, self.ends, self.over, self.others = [], [], [], []
        self.request, self.handles = self, {}

    def keep(self, request):
        return self.handles.setdefault(request["number"], SimpleNamespace(request=request))

    def resume(self, handle):
        if handle.request in self.over:
            return False
        self.resumed.append(handle.request["number"])
        return True

    def on_end(self, handle, function):
        self.ends.append((handle, function))
        return True

    def tell(self, request):
        handle = self.keep(request)
        for function in [one for kept, one in self.ends if kept is handle]:
            function(handle)

    def alongside(self):
        return [(self.keep(one), one["number"]) for one in self.others]

    @staticmethod
    def entered(request):
        return request["number"]


def a_line(count):
    made = [{"number": number, "key": "k"} for number in range(1, count + 1)]
    return InOrder(operator.itemgetter("key")), Lines(), made


def test_who_was_called_before_an_earlier_one_had_come_lets_it_go_first():
    order, context, (first, second, third) = a_line(3)
    assert order.take([first], context) == [True]
    context.others = [second]  # in a batch that was cut before, and begins after
    assert order.take([third], context) == [False]
    order.leave("k")
    assert context.resumed == [3]
    context.others = []
    assert order.take([second], context) == [False]
    assert order.take([third], context) == [False]
    assert context.resumed == [3, 2]
    assert order.take([second], context) == [True]
    order.leave("k")
    assert context.resumed == [3, 2, 3]
    assert order.take([third], context) == [True]
    order.leave("k")
    assert not order.busy("k")


def test_the_next_is_called_when_the_one_before_has_left():
    order, context, requests = a_line(4)
    other = {"number": 9, "key": "l"}
    assert order.take([*requests[:3], other], context) == [True, False, False, True]
    order.leave("k")
    assert context.resumed == [2]
    assert order.take([requests[3]], context) == [False]
    for one in requests[1:]:
        assert context.resumed[-1] == one["number"]
        assert order.take([one], context) == [True]
        order.leave("k")
    order.leave("l")
    assert context.resumed == [2, 3, 4]
    assert order.statistics() == {"busy": 0, "waiting": 0}


def test_who_ends_while_it_waits_or_is_called_gives_the_turn_on():
    order, context, requests = a_line(5)
    assert order.take(requests, context) == [True, *[False] * 4]
    context.tell(requests[2])  # it waits
    context.over.append(requests[1])  # it has ended, which is told later
    order.leave("k")
    assert context.resumed == [4]
    context.tell(requests[1])
    context.tell(requests[3])  # it was called
    assert context.resumed == [4, 5]
    assert order.take([requests[4]], context) == [True]
    order.leave("k")
    for one in requests:  # told late, or of one that has run: nothing changes
        context.tell(one)
    assert not order.busy("k")


def test_who_came_in_before_goes_first_also_when_another_instance_is_late_with_it():
    order, context, requests = a_line(4)
    context.others = requests[:2]
    assert order.take(requests[2:], context) == [False, False]
    context.others = requests[1:2]
    assert order.take(requests[:1], context) == [True]
    order.leave("k")
    assert context.resumed == [3]  # the second is late
    assert order.take(requests[2:3], context) == [False]  # so it waits again
    context.others = []
    assert order.take(requests[1:2], context) == [True]
    context.tell(requests[0])
    assert context.resumed == [3]
    for one in requests[2:]:
        order.leave("k")
        assert context.resumed[-1] == one["number"]
        assert order.take([one], context) == [True]
    order.leave("k")
    assert not order.busy("k")


def test_who_waits_for_one_that_never_comes_is_called_when_that_has_ended():
    order, context, requests = a_line(2)
    context.others = requests[:1]
    assert order.take(requests[1:], context) == [False]
    context.others = []
    context.tell(requests[0])
    assert context.resumed == [2]
    assert order.take(requests[1:], context) == [True]
    order.leave("k")
    assert not order.busy("k")


def test_an_hour_of_more_than_a_thousand_sessions_that_come_and_go_keeps_memory_flat():
    """Twenty begin every minute, with three pieces each; half of them end, the others just stop."""
    Timed.fake = FakeClock()
    config = {"backend": "Timed(session)[Keeps]", "keep": {"state": "before"}, "max": 64}

    class Keeps(headrace.Backend):
        reads = ("data",)

        def forward(self, batch):
            for request in batch:
                count = request["before"][0] + 1 if "before" in request else 1
                request["result"] = {"state": (count, bytearray(1 << 15)), "count": count}

    headrace.register("Keeps", Keeps, replace=True)
    sizes, begun = [], 0
    with headrace.pipe({**config, "idle_s": 30.0}) as pipe:
        tracemalloc.start()
        try:
            for minute in range(60):
                begun += 20
                for turn in range(3):
                    wave = [
                        {
                            "session": (minute, n),
                            "data": 0,
                            "sequence_end": turn == 2 and n % 2 == 0,
                        }
                        for n in range(20)
                    ]
                    done = [one.result(WAIT_S) for one in map(pipe.submit, wave)]
                    assert {one["result"]["count"] for one in done} == {turn + 1}
                    del done, wave
                    Timed.fake.advance(20)
                assert pipe.stats()["sessions"]["main"]["kept"] <= 20
                sizes.append(tracemalloc.get_traced_memory()[0])
        finally:
            tracemalloc.stop()
        Timed.fake.advance(30)
        found = pipe.stats()["sessions"]["main"]
    assert found == {"kept": 0, "expired": begun // 2, "refused": 0, "busy": 0, "waiting": 0}
    assert max(sizes[30:]) < 1.05 * max(sizes[5:30])
