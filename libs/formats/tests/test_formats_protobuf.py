"""Fields of messages, beside the library of Protocol Buffers."""

from __future__ import annotations

import pytest
from google.protobuf.descriptor_pb2 import FileDescriptorProto, UninterpretedOption
from google.protobuf.empty_pb2 import Empty
from google.protobuf.unknown_fields import UnknownFieldSet
from hypothesis import given
from hypothesis import strategies as st

from headrace_formats.protobuf import fields, inner

FILE = FileDescriptorProto(name="a.proto", dependency=["b", "", "ä"])
for title in "xy":
    made = FILE.message_type.add(name=title)
    for number in (1, 300, 2**29 - 1):
        made.field.add(name=f"{title}{number}", number=number, type="TYPE_BYTES")


def test_names_and_numbers_are_those_of_the_library():
    content = FILE.SerializeToString()
    whole = (0, len(content))
    names = [content[a:b].decode() for a, b in inner(content, whole, 4, 2, 1)]
    numbers = [
        value for one in inner(content, whole, 4, 2) for n, value in fields(content, one) if n == 3
    ]
    theirs = [one for kind in FILE.message_type for one in kind.field]
    assert names == [one.name for one in theirs]
    assert numbers == [one.number for one in theirs]
    assert [content[a:b].decode() for a, b in inner(content, whole, 3)] == ["b", "", "ä"]
    assert inner(content, whole, 4, 2, 3) == []  # numbers have no place


@given(st.integers(0, 2**64 - 1), st.floats(allow_nan=False), st.binary(max_size=300))
def test_each_kind_of_a_field_is_read(positive, double, text):
    option = UninterpretedOption(
        positive_int_value=positive, double_value=double, string_value=text
    )
    content = option.SerializeToString()
    found = {
        number: value if isinstance(value, int) else content[slice(*value)]
        for number, value in fields(content, (0, len(content)))
    }
    theirs = {one.field_number: one.data for one in UnknownFieldSet(Empty.FromString(content))}
    assert found.keys() == theirs.keys()
    assert (found[4], found[7]) == (theirs[4], theirs[7])
    assert int.from_bytes(found[6], "little") == theirs[6]


@pytest.mark.parametrize(
    "content",
    [b"\x0a\x05ab", b"\x0b", b"\x09\x00", b"\x80", b"\x08" + b"\xff" * 10, b"\x0a"],
    ids=["too short", "a group", "half a double", "half a tag", "a long number", "no length"],
)
def test_what_is_no_message_is_refused(content):
    with pytest.raises((ValueError, IndexError)):
        [*fields(content, (0, len(content)))]
