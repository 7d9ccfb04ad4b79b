"""`Shadow`: the answers are those of A, B delays and changes nothing, and each difference is counted."""

from __future__ import annotations

import math
import threading

import numpy as np
import pytest
from flow_helpers import WAIT_S, wait_until
from hypothesis import example, given
from hypothesis import strategies as st

import headrace
from headrace import errors
from headrace_flow.comparing import IncomparableError, comparison


def stats(pipe):
    return pipe.stats()["shadows"]["main"]


def done(pipe, count):
    """Wait until B has run so many requests; return the counts."""
    kinds = ("compared", "failed", "uncompared", "dropped")
    wait_until(lambda: sum(stats(pipe)[kind] for kind in kinds) == count)
    return stats(pipe)


def pipeline(first, second, options="share=1", **keys):
    for name, function in (("ShadowedA", first), ("ShadowedB", second)):
        headrace.register(name, function, replace=True)
    return headrace.pipe({"backend": f"Shadow({options})[ShadowedA,ShadowedB]", **keys})


def test_the_answers_are_those_of_a_and_differences_are_counted_and_logged(caplog):
    with pipeline(lambda n: n * n, lambda n: n * n + (n % 3 == 0)) as pipe:
        answers = [pipe({"data": n, "request_id": f"r{n}"}) for n in range(10)]
        assert [one["result"] for one in answers] == [n * n for n in range(10)]
        found = done(pipe, 10)
    assert (found["compared"], found["differences"], found["failed"]) == (10, 4, 0)
    said = [one.getMessage() for one in caplog.records if "differ" in one.getMessage()]
    assert said == [f"request r{n}: A and B of Shadow differ" for n in (0, 3, 6, 9)]


def test_a_b_that_fails_is_counted_and_an_a_that_fails_is_the_answer(caplog):
    def fails(number):
        raise ValueError("only in B")

    with pipeline(lambda n: n, fails) as pipe:
        assert pipe({"data": 1})["result"] == 1
        assert done(pipe, 1)["failed"] == 1
    assert "only in B" in caplog.text
    with pipeline(fails, lambda n: n) as pipe:
        with pytest.raises(errors.BackendError, match="only in B"):
            pipe({"data": 1})
        assert sum(stats(pipe).values()) == 0


def test_nobody_waits_for_b_and_what_is_too_much_is_dropped():
    begun, leave, ran = threading.Event(), threading.Event(), []

    def slow(number):
        begun.set()
        assert leave.wait(WAIT_S)
        ran.append(number)
        return number

    with pipeline(lambda n: n, slow, "share=1,waiting=3") as pipe:
        assert pipe({"data": 0})["result"] == 0
        assert begun.wait(WAIT_S)
        assert [pipe({"data": n})["result"] for n in range(1, 10)] == list(range(1, 10))
        assert stats(pipe)["dropped"] == 6
        leave.set()
        assert done(pipe, 10)["compared"] == 4
    assert ran == [0, 1, 2, 3]


def test_b_has_copies_of_what_came_and_of_what_was_answered():
    begun, leave, seen = threading.Event(), threading.Event(), []

    def late(array):
        begun.set()
        assert leave.wait(WAIT_S)
        seen.append(array.tolist())
        array[:] = 100  # also where B changes what it reads
        return array - 99

    with pipeline(lambda array: array + 1, late) as pipe:
        request = {"data": np.zeros(3)}
        pipe(request)
        assert begun.wait(WAIT_S)
        request["data"][:] = 7
        request["result"][:] = 8
        leave.set()
        found = done(pipe, 1)
        assert request["data"].tolist() == [7] * 3
        assert request["result"].tolist() == [8] * 3
    assert seen == [[0, 0, 0]]
    assert (found["compared"], found["differences"]) == (1, 0)


@pytest.mark.parametrize(
    ("compare", "differences"),
    [("equal", 1), ("allclose(rtol=1e-3)", 0), ("allclose(rtol=0,atol=1e-9)", 1)],
)
def test_how_answers_are_compared(compare, differences):
    options = f'share=1,compare="{compare}"'
    with pipeline(lambda x: np.float32([x, 1]), lambda x: np.float64([x, 1.0001]), options) as pipe:
        pipe({"data": 3})
        assert done(pipe, 1)["differences"] == differences


def test_what_cannot_be_copied_or_compared_is_counted():
    with pipeline(lambda x: object(), lambda x: object()) as pipe:
        pipe({"data": 1})
        pipe({"data": threading.Lock()})
        found = done(pipe, 2)
        assert (found["uncompared"], found["compared"]) == (2, 0)


@pytest.mark.parametrize("share", [0, 0.25, 1])
def test_b_runs_a_share_of_the_requests(share):
    count = 2000
    with pipeline(lambda n: n, lambda n: n, f"share={share},waiting=100000", max=64) as pipe:
        pipe([{"data": n} for n in range(count)])
        sigma = math.sqrt(count * share * (1 - share))
        wait_until(lambda: abs(stats(pipe)["compared"] - count * share) <= 6 * sigma)
        assert stats(pipe)["dropped"] == 0


def test_b_gets_batches_of_its_own_range():
    sizes, lock = [], threading.Lock()

    class ShadowedThrees(headrace.Backend):
        min, max = 2, 3

        def forward(self, batch):
            with lock:
                sizes.append(len(batch))
            for one in batch:
                one["result"] = one["data"]

    with pipeline(lambda n: n, ShadowedThrees, max=8) as pipe:
        answers = pipe([{"data": n} for n in range(8)])
        assert [one["result"] for one in answers] == list(range(8))
        found = done(pipe, 8)
        assert (found["compared"], found["differences"]) == (8, 0)
    assert all(2 <= size <= 3 for size in sizes)


def test_a_close_drops_what_waits_and_ends_the_thread():
    begun, leave, ran = threading.Event(), threading.Event(), []

    def slow(number):
        begun.set()
        assert leave.wait(WAIT_S)
        ran.append(number)
        return number

    with pipeline(lambda n: n, slow) as pipe:
        for n in range(5):
            pipe({"data": n})
        assert begun.wait(WAIT_S)
        closing = threading.Thread(target=pipe.close)
        closing.start()
        wait_until(lambda: not pipe.ready)
        wait_until(lambda: leave.set() or not closing.is_alive())
    assert len(ran) <= 5
    assert not [one for one in threading.enumerate() if one.name == "headrace-shadow"]


@pytest.mark.parametrize(
    ("compare", "says"),
    [
        ("alclose", "Did you mean 'allclose"),
        ("allclose(rtoll=1)", "Did you mean 'rtol"),
        ("allclose(rtol=x)", "a number, not x"),
        ("allclose(1)", "by name"),
        ("equal(rtol=1)", "option of equal"),
        ("a b", "no comparison"),
    ],
)
def test_a_comparison_that_is_none_is_refused(compare, says):
    with pytest.raises(errors.ConfigError, match=says):
        headrace.pipe({"backend": f'Shadow(compare="{compare}")[Identity,Identity]'}).__enter__()


def test_a_sentence_about_an_option_ends_where_it_ends():
    config = {"backend": "Shadow(compare=eq)[Identity,Identity]"}
    with pytest.raises(errors.ConfigError, match=r"There are: equal, allclose\.\n"):
        headrace.PipelineConfig.load(config)


NUMBERS = st.one_of(
    st.sampled_from(
        [0, 1, -1, 1.0, 1.0001, 1.01, float("nan"), float("inf"), True, None, "a", b"a"]
    ),
    st.floats(-2, 2),
)
VALUES = st.recursive(
    NUMBERS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("ab"), inner)
)


def slow_close(a, b, rtol, atol):
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(slow_close(a[k], b[k], rtol, atol) for k in range(len(a)))
    if isinstance(a, dict) and isinstance(b, dict):
        return sorted(a) == sorted(b) and all(slow_close(a[k], b[k], rtol, atol) for k in a)
    if type(a) in (int, float) and type(b) in (int, float):
        if math.isnan(a) or math.isnan(b):
            return math.isnan(a) and math.isnan(b)
        if math.isinf(a) or math.isinf(b):
            return a == b
        return abs(b - a) <= atol + rtol * abs(a)
    return type(a) is type(b) and a == b


@example(a=math.inf, b=0, rtol=1e-3, atol=0.0)
@example(a=0.0, b=-math.inf, rtol=1e-3, atol=0.0)
@given(VALUES, VALUES, st.sampled_from([0.0, 1e-3, 0.1]), st.sampled_from([0.0, 0.5]))
def test_close_is_what_a_slow_comparison_says(a, b, rtol, atol):
    same = comparison(f"allclose(rtol={rtol}, atol={atol})")
    assert same(a, b) == slow_close(a, b, rtol, atol)
    assert same(a, a)
    assert comparison("equal")(a, a)


def test_an_integer_that_is_no_float_is_close_to_itself_alone():
    same = comparison("allclose(rtol=0.1)")
    assert same(10**400, 10**400)
    assert not same(10**400, 1.0)


@given(
    st.lists(NUMBERS.filter(lambda one: type(one) is float), min_size=1, max_size=4),
    st.floats(-0.1, 0.1),
)
def test_arrays_are_close_where_their_numbers_are(numbers, shift):
    a, b = np.array(numbers), np.array(numbers) + shift
    near = comparison("allclose(rtol=0.01, atol=0.01)")
    assert near(a, b) == slow_close(a.tolist(), b.tolist(), 0.01, 0.01)
    assert near(a, a.astype("f4").astype("f8")[::1])
    assert not near(a, np.append(b, 0))
    equal = comparison("equal")
    assert equal(a, a.copy())
    assert not equal(a, a.astype(object).astype("f4"))


def test_what_is_unknown_is_not_compared():
    for values in [
        (object(), object()),
        ([1, {1}], [1, {1}]),
        (np.array([None]), np.array([None])),
    ]:
        with pytest.raises(IncomparableError):
            comparison("equal")(*values)
