"""Pauses double, within their bounds, and chance spreads them."""

from __future__ import annotations

import random

from headrace_formats import back_off


def test_pauses_double_up_to_the_longest():
    assert [back_off(n) for n in range(8)] == [0.5, 1, 2, 4, 8, 16, 30, 30]
    assert [back_off(n, first_s=1, most_s=60) for n in range(8)] == [1, 2, 4, 8, 16, 32, 60, 60]
    assert [back_off(n, most_s=5) for n in range(6)] == [0.5, 1, 2, 4, 5, 5]


def test_a_pause_after_any_number_of_failures_is_the_longest():
    assert [back_off(n) for n in (64, 2000, 10**9)] == [30, 30, 30]


def test_chance_spreads_pauses_by_a_quarter_within_the_bounds():
    assert [back_off(n, chance=lambda: 0.5) for n in range(8)] == [0.5, 1, 2, 4, 8, 16, 30, 30]
    assert (back_off(0, chance=lambda: 0.0), back_off(3, chance=lambda: 1.0)) == (0.5, 5.0)
    draw = random.Random(7).random
    assert all(6 <= back_off(4, chance=draw) <= 10 for _ in range(1000))


def test_a_first_pause_above_the_longest_is_the_longest():
    assert back_off(0, first_s=60, most_s=5) == 5
