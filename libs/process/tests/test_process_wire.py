"""What arrives in another process is what was sent: its kind, dtype, layout and content, and what is one object stays one."""

from __future__ import annotations

import contextlib
import os
import pickle
from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace_process import spawning
from headrace_process.packing import pack, unpack
from headrace_process.pipes import PipeLink

np = pytest.importorskip("numpy")


def formed(array, form, frozen):
    """Return an array in a layout, or with a mask, that may not be written."""
    array = {"rows": np.array, "columns": np.asfortranarray, "masked": np.ma.masked_array}.get(
        form, lambda whole: whole[::2] if whole.ndim else whole
    )(array)
    array.flags.writeable = not frozen or form == "masked"
    return array


DTYPES = [np.dtype("u1", metadata={"unit": "m"}), np.dtype([("a", "i4"), ("b", "f8")])]
DTYPES += map(np.dtype, ("?", "i2", ">f4", "f8", "c16", "U3", "M8[D]", object))
SHAPES = st.lists(st.integers(0, 20), max_size=3).map(tuple)
ARRAYS = st.builds(
    formed,
    st.builds(np.ones, SHAPES, st.sampled_from(DTYPES)),
    st.sampled_from(["rows", "columns", "every second", "masked"]),
    st.booleans(),
)
BYTES = st.integers(0, 5000).map(os.urandom)
VALUES = (
    ARRAYS | BYTES | BYTES.map(bytearray) | BYTES.map(bytes.hex) | st.none() | st.lists(st.text())
)


@st.composite
def requests(draw):
    """Requests whose keys, and those of tables in them, have some values in common."""
    values = draw(st.lists(VALUES, min_size=1, max_size=4))
    tables = st.dictionaries(
        st.sampled_from("xyz") | st.just(1), st.sampled_from(values), max_size=3
    )
    values += draw(st.lists(tables, max_size=2))
    return draw(
        st.lists(st.dictionaries(st.sampled_from("abcd"), st.sampled_from(values)), max_size=3)
    )


def leaves(requests):
    """Return by its path each value of the requests, and each in a table among them."""
    found = {(n, key): value for n, one in enumerate(requests) for key, value in one.items()}
    tables = [(path, value) for path, value in found.items() if type(value) is dict]
    return found | {(*path, name): value for path, one in tables for name, value in one.items()}


@settings(max_examples=150, deadline=None)
@given(requests())
def test_what_arrives_is_what_was_sent(requests):
    sent = leaves(requests)
    for _ in range(2):  # the second time each dtype is known
        with contextlib.closing(PipeLink(*os.pipe(), spawning.memory_file())) as link:
            packed, bad = pack(requests, link)
            again, unknown = unpack(pickle.loads(pickle.dumps(packed)), link)
        assert (bad, unknown) == ({}, [])
        came = leaves(again)
        assert [*came] == [*sent]
        for path, value in sent.items():
            assert type(came[path]) is type(value)
            if isinstance(value, np.ndarray):
                np.testing.assert_array_equal(came[path], value)
            elif type(value) is not dict:
                assert came[path] == value
            if type(value) is np.ndarray:
                # Pickle takes it, which turns its bytes, and has no flag of an array inside of a dict.
                by_pickle = value.dtype.kind in "OmM" or not value.flags.c_contiguous
                dtype = came[path].dtype
                assert dtype == value.dtype or (by_pickle and dtype.newbyteorder() == value.dtype)
                assert came[path].shape == value.shape
                # Dates have none, or an empty table once numpy 2.2 has pickled them.
                assert (came[path].dtype.metadata or {}) == (value.dtype.metadata or {})
                inside = by_pickle and len(path) == 3
                assert inside or came[path].flags.writeable == value.flags.writeable
        for left, right in combinations(sent, 2):
            beside = left[:-1] == right[:-1] or len(left) == len(right) == 2
            if beside and sent[left] is sent[right] and type(sent[left]) not in (bytes, str):
                assert came[left] is came[right]
