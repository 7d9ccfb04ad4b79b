"""JSON against the grammar and examples of RFC 8259 and 7493, headers against those of RFC 9110."""

from __future__ import annotations

import json
import math
import random
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace_formats import (
    FormatError,
    joined_headers,
    listed,
    quality,
    read_json,
    read_labels,
    write_json,
)

pytestmark = pytest.mark.first("what is written is read as the same value")

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)  # fmt: skip


@given(VALUES)
def test_what_is_written_is_read_as_the_same_value(value):
    for text in (write_json(value), write_json(value, ascii_only=True, indent=2)):
        assert json.loads(text) == read_json(text) == read_json(text.encode()) == value
    try:
        assert write_json(value, strict=True) == write_json(value)
    except FormatError:
        assert re.search("[\ud800-\udfff]", json.dumps(value, ensure_ascii=False))


@pytest.mark.parametrize("number", [2**63, 2**64, 2**64 + 1, 10**30 + 7, -(2**63) - 1])
def test_whole_numbers_are_exact(number):
    assert read_json(f'{{"n": [{number}]}}') == {"n": [number]}
    assert write_json([number]) == f"[{number}]"


@pytest.mark.parametrize(
    "text",
    ["", "NaN", "[Infinity]", "-Infinity", "1e400", "-1e999", "01", "'a'", '"\t"', "[1,]", "{1:2}", "\ufeff\ufeff1",
     "[" * 100_000, "9" * 5000, b"\xff", b'"\xed\xa0\x80"', "1\u00a0"],
)  # fmt: skip
def test_what_is_no_json_is_refused(text):
    with pytest.raises(FormatError, match=r"^it is no JSON: "):
        read_json(text)


def test_a_byte_order_mark_is_no_part_of_the_text():  # RFC 8259, 8.1
    assert read_json(b'\xef\xbb\xbf{"a": 1}') == read_json('\ufeff{"a": 1}') == {"a": 1}


def test_of_a_name_that_is_there_twice_the_last_value_counts():
    assert read_json('{"a": 1, "a": 2}') == {"a": 2}


def test_half_of_a_pair_is_read_and_written_as_an_escape():  # RFC 8259, 8.2
    for half in ("\ud800", "name\udc80"):
        text = write_json({half: half})
        assert text.isascii()
        assert read_json(text.encode()) == {half: half}
        with pytest.raises(FormatError, match="surrogate"):
            write_json([half], strict=True)


def test_nan_and_infinities_are_null_or_refused():
    odd = {"a": [math.nan, 1.5], "b": {"c": (math.inf, -math.inf)}}
    assert json.loads(write_json(odd)) == {"a": [None, 1.5], "b": {"c": [None, None]}}
    assert write_json({"a": complex(1)}, default=lambda _: math.nan) == '{"a": null}'
    with pytest.raises(FormatError, match="NaN"):
        write_json(odd, strict=True)


@pytest.mark.parametrize(
    "odd", [{1: "a", "1": "b"}, {"true": "a", True: "b"}, {"null": "a", None: "b"}, {0.5: "a", "0.5": "b"}]
)  # fmt: skip
def test_no_name_is_written_twice(odd):
    text = write_json([{"in": odd}])
    assert text.count(":") == 2
    assert next(iter(json.loads(text)[0]["in"].values())) == "b"
    with pytest.raises(FormatError, match="two keys"):
        write_json([{"in": odd}], strict=True)


def test_other_keys_that_are_no_text_are_written():
    assert write_json({1: 2, "2": 3, None: 4}, strict=True) == '{"1": 2, "2": 3, "null": 4}'


def test_what_has_no_form_says_so():
    held: list[object] = []
    held.append(held)
    with pytest.raises(FormatError, match="Circular"):
        write_json(held)
    deep: object = 1
    for _ in range(100_000):
        deep = [deep]
    with pytest.raises(FormatError):
        write_json(deep)
    for odd in ({1, 2}, {(1, 2): 3}, b"a"):
        with pytest.raises(TypeError):
            write_json(odd)


def test_lines_of_one_name_are_one_list():  # RFC 9110, 5.3
    lines = [(b"accept", b"text/html"), (b"host", b"a"), (b"accept", b"*/*;q=0.1, a/b")]
    assert joined_headers(lines) == {b"accept": b"text/html, */*;q=0.1, a/b", b"host": b"a"}
    assert joined_headers(iter([("a", "1"), ("a", ""), ("a", "2")])) == {"a": "1, , 2"}


@pytest.mark.parametrize(
    ("value", "elements"),  # the first three are those of RFC 9110, 5.6.1.2
    [("foo,bar", ["foo", "bar"]), ("foo ,bar,", ["foo", "bar"]), ("foo , ,bar,charlie", ["foo", "bar", "charlie"]),
     ("", []), (", ,", []), ('"a,b", c', ['"a,b"', "c"]), (r'"a\",b",c', [r'"a\",b"', "c"]), ('"a,b', ['"a,b'])],
)  # fmt: skip
def test_a_list_has_its_elements(value, elements):
    assert listed(value) == elements


RFC = "text/*;q=0.3, text/plain;q=0.7, text/plain;format=flowed, text/plain;format=fixed;q=0.4, */*;q=0.5"


@pytest.mark.parametrize(
    ("accepted", "offered", "expected"),
    [
        (RFC, "text/plain", 0.7), (RFC, "text/html", 0.3), (RFC, "image/jpeg", 0.5),  # RFC 9110, 12.5.1
        ("*/*, text/event-stream;q=0.1", "application/json", 1.0),
        ("*/*, text/event-stream;q=0.1", "text/event-stream", 0.1),
        ("application/*;q=0.5, application/json;q=0", "application/json", 0.0),
        ("text/html, TEXT/PLAIN ; Q=0.25", "text/plain", 0.25),
        ('a/b;x="c/d, e/f;q=1", e/f;q=0.5', "e/f", 0.5),
        ("application/json; charset=UTF-8", "application/json", 1.0),
        ("application/json;version=2", "application/json", 0.0),
        ("text/html;q=2", "text/html", 1.0), ("text/html;q=0.000", "text/html", 0.0),
        ("", "a/b", 1.0), (" ", "gzip", 1.0),
        ("gzip;q=0.5, *;q=0.1", "gzip", 0.5), ("gzip;q=0.5, *;q=0.1", "br", 0.1), ("gzip", "br", 0.0),
        ("*", "a/b", 0.0), ("*/*", "gzip", 0.0),
        (";", "a/b", 0.0), ("; ;", "gzip", 0.0), (";;, a/b; ;q=0.5;", "a/b", 0.5),
    ],
)  # fmt: skip
def test_the_closest_range_gives_the_quality(accepted, offered, expected):
    assert quality(accepted, offered) == expected
    lines = listed(accepted)
    random.Random(1).shuffle(lines)
    assert quality(", ".join(lines), offered) == expected


@pytest.mark.parametrize("value", ['"' * 60_000, "," * 60_000, '"\\' * 30_000, ";q=1" * 15_000])
def test_a_hostile_header_is_read(value):
    assert quality(value, "a/b") in (0.0, 1.0)


def test_labels_are_lines_that_end_as_lines_do():
    assert read_labels("a\r\nb\u2028c\x0b\n\n d \n") == ["a", "b\u2028c\x0b", "", " d "]
    assert read_labels("") == []
    assert read_labels("[PAD]\n{}", ".txt") == ["[PAD]", "{}"]


@given(st.lists(st.text(st.characters(exclude_categories=["Cs"]), min_size=1), unique=True))
def test_labels_in_json_are_those_of_each_form(names):
    pairs = [*enumerate(names)][::-1]
    for value in (
        names,
        {str(n): name for n, name in pairs},
        {name: n for n, name in pairs},
        {str(n): ["id", name] for n, name in pairs},
        {"id2label": {f"0{n}": name for n, name in pairs}},
    ):
        assert read_labels(json.dumps(value), ".json") == names  # fmt: skip


def test_a_class_between_others_may_have_no_label():
    assert read_labels('{"3": "cow", "1": "cat"}', ".json") == ["", "cat", "", "cow"]


@pytest.mark.parametrize(
    "text",
    ["1", "null", '"a"', "[1]", '["a", null]', '{"0": 1.5}', '{"0": []}', '{"0": null}', '{"a": true}', '{"a": -1}',
     '{"-1": "a"}', '{"1000000": "a"}', '{"\u0661": "a"}', '{"0": "a", "00": "b"}', '{"id2label": 3}', '{"a": ["b"]}', "["],
)  # fmt: skip
def test_json_without_labels_is_refused(text):
    with pytest.raises(FormatError, match=r"^it "):
        read_labels(text, ".json")
