"""`compare_rows` tells which outputs of a row come from other rows: each function's right verdict follows from its text."""

import numpy as np
import pytest

from headrace_tensors import RowVerdict, compare_rows, sizes_to_compare
from headrace_tensors.comparing import nudged

F32 = np.float32
draw = np.random.default_rng(3)
ROWS = [{"x": draw.random(6).astype(F32), "ids": draw.integers(0, 9, 2)} for _ in range(20)]
WEIGHTS = draw.normal(size=(6, 6)).astype(F32)


def each(function):
    """Run a function of the stacked inputs; its array is the output ``y``."""

    def run(rows):
        x, ids = (np.stack([row[name] for row in rows]) for name in ("x", "ids"))
        with np.errstate(all="ignore"):
            return [{"y": one} for one in function(x, ids)]

    return run


def verdict(function, sizes=(1, 2, 8), rows=ROWS, **more):
    return compare_rows(each(function), rows, sizes, **more)["y"]


def rounded(x, ids):
    """Other kernels for longer batches, as with TF32: 10 bits of mantissa."""
    bits = F32(1 << 10)
    y = x if len(x) == 1 else np.round(x * bits) / bits
    return y @ WEIGHTS


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (lambda x, ids: -x, "equal"),
        (lambda x, ids: ids, "equal"),
        (lambda x, ids: np.log(-x), "equal"),  # NaN everywhere
        (lambda x, ids: x[:, :0], "equal"),
        (lambda x, ids: [str(one) for one in ids], "equal"),
        (lambda x, ids: x + F32(1e-7) * len(x), "noise"),
        (rounded, "noise"),
        (lambda x, ids: np.sin(3000 * rounded(x, ids)), "noise"),  # noise enlarged to all there is
        (lambda x, ids: np.sign(rounded(x - x[:, :1], ids)[:, 0] - F32(1e-4)), "equal"),
        (lambda x, ids: x + draw.random(x.shape), "random"),
        (lambda x, ids: draw.integers(0, 2, len(x)), "random"),
        (lambda x, ids: [np.zeros(draw.integers(1, 99)) for _ in x], "random"),
        (lambda x, ids: x + ids[:1, :1], "dependent"),
        (lambda x, ids: x + F32(1e-2) * x.mean(), "dependent"),
        (lambda x, ids: np.arange(len(x)), "dependent"),
        (lambda x, ids: [f"{place}" for place in range(len(x))], "dependent"),
        (lambda x, ids: np.concatenate([np.arange(len(x))[:, None], 900 * x], 1), "dependent"),
        (lambda x, ids: [one[: len(x)] for one in x], "dependent"),
        (lambda x, ids: np.where(np.arange(len(x))[:, None] == 4, np.nan, x), "dependent"),
        (lambda x, ids: np.where(len(x) == 2, x * 2, x), "dependent"),
        (lambda x, ids: x + draw.random(x.shape) / 100 + x[::-1], "dependent"),
    ],
)
def test_the_verdict_of_an_output(function, expected):
    assert verdict(function).verdict == expected


def test_a_verdict_names_the_sizes_and_the_place_and_says_by_how_much():
    found = verdict(lambda x, ids: np.where(np.arange(len(x)) == 5, 1, 0), sizes=(2, 8))
    assert found == RowVerdict("dependent", (2, 8), 8, 5, "1 of 1 values")
    assert "node 'main': output 'y'" in found.warning("main", "y")
    assert "at place 5 of a batch of 8" in found.warning("main", "y")
    assert verdict(lambda x, ids: x) == RowVerdict("equal", (1, 2, 8))


@pytest.mark.parametrize("sizes", [(2,), (3,), (4,), (1, 2), (1, 5), (3, 4, 8), (16,)])
@pytest.mark.parametrize("many", [20, 3])
def test_batches_of_any_size_and_few_rows_will_do(sizes, many):
    rows = ROWS[:many]
    for function in (
        lambda x, ids: x[:1].repeat(len(x), 0),
        lambda x, ids: x.cumsum(0),
        lambda x, ids: x[::-1].cumsum(0)[::-1],
        lambda x, ids: np.arange(len(x)),
        lambda x, ids: np.roll(ids, 1, axis=0),
    ):
        assert verdict(function, sizes, rows).verdict == "dependent"
    assert verdict(lambda x, ids: x, sizes, rows).verdict == "equal"


def test_each_place_of_the_largest_batch_is_compared():
    for wrong in range(8):

        def one_place(x, ids, wrong=wrong):
            return x + (np.arange(len(x)) == wrong)[:, None] * (len(x) == 8)

        assert verdict(one_place).verdict == "dependent", wrong


def test_rows_of_different_shapes_may_be_padded_by_the_run():
    """Only the sum of what is not padding is right."""
    rows = [{"x": draw.random(length).astype(F32) + 1} for length in range(2, 15)]

    def run(some):
        longest = max(len(row["x"]) for row in some)
        padded = [np.pad(row["x"], (0, longest - len(row["x"]))) for row in some]
        return [{"sum": one.sum(), "mean": one.mean()} for one in padded]

    found = compare_rows(run, rows, (1, 4))
    assert found["sum"].verdict in ("equal", "noise")
    assert found["mean"].verdict == "dependent"


def test_rows_may_be_anything_with_a_nudge_of_their_own():
    def run(some):
        return [{"y": one + some[0]} for one in some]

    rows = [float(number) for number in range(9)]
    found = compare_rows(run, rows, (1, 2), nudge=lambda row, part, seed: row * (1 + part / 2))
    assert found["y"].verdict == "dependent"


def test_a_right_model_is_run_in_few_batches_and_one_that_cannot_be_batched_in_none():
    counts = []

    def counted(x, ids):
        counts.append(len(x))
        return x

    verdict(counted)
    assert counts == [1, 2, 8, 8, 8]
    assert compare_rows(each(counted), ROWS, (1,)) == {}
    assert len(counts) == 5


def test_a_run_that_gives_another_number_of_results_is_refused():
    with pytest.raises(ValueError, match="a run of 2 rows has given 1 results"):
        compare_rows(lambda rows: [{"y": 1}], ROWS, (2,))


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        ((1, 1), (1,)),
        ((1, 2), (1, 2)),
        ((1, 4), (1, 2, 4)),
        ((1, 64), (1, 2, 8)),
        ((1, None), (1, 2)),
        ((4, 4), (4,)),
        ((3, 20), (3, 4, 8)),
        ((16, 32), (16, 17)),
        ((1, 8, (2, 4)), (1, 2, 4)),
        ((1, None, (4, 8)), (1, 2, 4, 8)),
        ((1, 64, (16, 32)), (1, 2, 16)),
    ],
)
def test_the_sizes_that_a_warm_up_compares(asked, expected):
    assert sizes_to_compare(*asked) == expected


def test_a_nudge_changes_floats_by_a_part_of_themselves_and_nothing_else():
    row = {"x": F32([1, -2, 0]), "h": np.float16([1]), "ids": np.array([3]), "text": "a"}
    other = nudged(row, 1e-3, 1)
    assert 0 < np.abs(other["x"] / F32([1, -2, 1]) - F32([1, 1, 0])).max() <= 1.001e-3
    assert (other["x"].dtype, other["h"].dtype) == (np.float32, np.float16)
    assert (other["ids"].tolist(), other["text"]) == ([3], "a")
    assert np.array_equal(nudged(row, 1e-3, 1)["x"], other["x"])
