"""Which values the row of a reader's table takes."""

from __future__ import annotations

import pytest

from headrace_formats.reader_table import Row, rows


@pytest.mark.parametrize(
    ("row", "taken", "refused"),
    [
        (Row("obeyed"), [1, "a", {}, None], []),
        (Row("obeyed", "no others", ("left", "right")), ["left"], ["up", None, 1]),
        (Row("harmless", "for people", ("a",)), ["a", "b", []], []),
        (Row("left out", "not here"), ["a", {}], []),
        (Row("refused", "not here"), [], ["a", None, 0, {}]),
        (Row("refused", "not here", ({}, False)), [{}, False], [{"a": 1}, True]),
        (Row(), ["a"], []),
    ],
    ids=repr,
)
def test_a_row_takes_what_its_mark_and_its_values_say(row, taken, refused):
    assert [row.takes(value) for value in taken] == [True] * len(taken)
    assert [row.takes(value) for value in refused] == [False] * len(refused)


def test_several_names_have_one_row():
    assert rows("harmless", "for people", "a  b\nc") == dict.fromkeys(
        "abc", Row("harmless", "for people")
    )
