"""`DeviceArray` on a device that is memory of this process: what a reader gets, and what it waits for."""

import ctypes
import gc
import weakref
from typing import ClassVar

import numpy as np
import pytest

from headrace.errors import InputError
from headrace_tensors import DeviceArray, device_arrays, dlpack, read_capsule
from headrace_tensors.device_arrays import StreamRef, read_on_device


@pytest.fixture
def behind(monkeypatch):
    """Note which stream is ordered behind which."""
    calls = []
    monkeypatch.setattr(device_arrays, "order_behind", lambda *streams: calls.append(streams))
    return calls


class Runtime:
    """The call of CUDA that an array needs."""

    streams: ClassVar[list[int]] = []

    def read(self, target, source, stream, ordinal):
        self.streams.append(stream)
        ctypes.memmove(target.ctypes.data, source, target.nbytes)


class Memory:
    """An allocation."""

    def __init__(self, values):
        self.values = values


def on_device(values, stream=7):
    return DeviceArray(
        Runtime(),
        values.ctypes.data,
        values.shape,
        values.dtype.name,
        ordinal=0,
        stream=StreamRef(stream),
        owner=Memory(values),
    )


BATCH = np.arange(24, dtype=np.float32).reshape(4, 2, 3)


@pytest.mark.parametrize(
    "take",
    [
        lambda whole: whole.rows(),
        lambda whole: list(whole),
        lambda whole: [whole[i] for i in range(4)],
        lambda whole: [*whole[:2].rows(), *whole[2:]],
        lambda whole: whole.rows()[1:3],
        lambda whole: whole.rows()[:1],
    ],
    ids=["rows", "iterated", "one by one", "slices", "some", "one"],
)
def test_neighbouring_rows_in_order_are_one_array_again(take):
    rows = take(on_device(BATCH))
    found = DeviceArray.of_rows(rows)
    assert found.pointer == rows[0].pointer
    assert np.array_equal(found.get(), [row.get() for row in rows])


@pytest.mark.parametrize(
    "spoil",
    [
        lambda rows: rows[::-1],
        lambda rows: rows[::2],
        lambda rows: [rows[0], rows[0]],
        lambda rows: [rows[0], on_device(BATCH)[1]],
        lambda rows: [rows[0], BATCH[1]],
        lambda rows: [BATCH[0], rows[1]],
        lambda rows: [rows[0][0], rows[0][1], rows[1]],
        lambda rows: [rows[0], rows[1].reshape(3, 2)],
        lambda rows: [rows[0], None],
    ],
    ids=["backwards", "gaps", "twice", "two batches", "numpy", "numpy first", "parts", "shape", ""],
)
def test_rows_that_are_not_the_neighbours_of_one_array_are_left_apart(spoil):
    assert DeviceArray.of_rows(spoil(on_device(BATCH).rows())) is None


def test_memory_that_the_array_does_not_own_is_not_put_together():
    lent = DeviceArray(
        Runtime(),
        BATCH.ctypes.data,
        BATCH.shape,
        "float32",
        ordinal=0,
        stream=StreamRef(7),
        owner=None,
    )
    assert DeviceArray.of_rows(lent.rows()) is None


def test_a_row_that_was_written_is_seen_in_the_whole():
    values = BATCH.copy()
    rows = on_device(values).rows()
    values[2] = -1
    assert np.array_equal(DeviceArray.of_rows(rows).get(), values)


def test_the_whole_keeps_the_memory_and_is_waited_for_once(behind):
    values = BATCH.copy()
    rows = on_device(values).rows()
    kept = weakref.ref(rows[0]._owner)
    found = DeviceArray.of_rows(rows)
    del rows
    gc.collect()
    capsule = found.__dlpack__(stream=9)
    assert read_capsule(capsule) == dlpack.Tensor(
        values.ctypes.data, (4, 2, 3), "float32", (dlpack.CUDA, 0), True
    )
    assert behind == [(9, 7, 0)]
    assert found.__cuda_array_interface__["stream"] == 7
    del found
    gc.collect()
    assert kept() is not None
    del capsule
    gc.collect()
    assert kept() is None


def test_a_finished_array_has_nothing_to_wait_for(behind):
    stream = StreamRef(7)
    array = DeviceArray(
        Runtime(), BATCH.ctypes.data, (4,), "float32", ordinal=0, stream=stream, owner=0
    )
    stream.close()
    array.__dlpack__(stream=9)
    assert np.array_equal(array[1:].get(), BATCH.ravel()[1:4])
    assert Runtime.streams.pop() == 0, "it waits for nothing, and its own stream may be gone"
    assert behind == []
    assert array.__cuda_array_interface__["stream"] is None


def test_an_array_is_sliced_and_turned_as_one_of_numpy():
    values = np.arange(24, dtype=np.int32).reshape(4, 3, 2)
    array = on_device(values)
    assert repr(array) == "DeviceArray(int32 [4, 3, 2] on cuda:0)"
    assert (len(array), array.ndim, array.nbytes) == (4, 3, values.nbytes)
    for take in (0, -1, slice(1, 3), slice(None), slice(3, 1)):
        assert np.array_equal(array[take].get(), values[take])
    assert [row.get().tolist() for row in array] == values.tolist()
    assert np.array_equal(array.reshape(2, 12).get(), values.reshape(2, 12))
    for wrong in (4, -5, slice(None, None, 2)):
        with pytest.raises(IndexError):
            array[wrong]
    with pytest.raises(ValueError, match="reshaped"):
        array.reshape(5)
    about = array[1].__cuda_array_interface__
    assert (about["shape"], about["typestr"], about["stream"]) == ((3, 2), "<i4", 7)
    part, kept = array[2], weakref.ref(array._owner)
    del array
    gc.collect()
    assert np.array_equal(part.get(), values[2]), "a slice keeps the memory"
    del part
    gc.collect()
    assert kept() is None


def test_an_array_is_exported_where_it_is_and_in_the_order_of_the_readers_stream(behind):
    array = on_device(BATCH)
    for asked, order in ((None, [1]), (1, [1]), (5, [5]), (-1, [])):
        array.__dlpack__(stream=asked)
        assert behind == [(one, 7, 0) for one in order]
        behind.clear()
    assert array.__dlpack__(dl_device=(1, 0)) is not None  # a copy on the host
    for elsewhere in ({"copy": True}, {"dl_device": (2, 1)}):
        with pytest.raises(BufferError, match="without a copy"):
            array.__dlpack__(**elsewhere)
    found = read_capsule(array.__dlpack__(copy=False, dl_device=(2, 0), max_version=(1, 0)))
    assert (found.pointer, found.shape, found.device) == (array.pointer, (4, 2, 3), (2, 0))


class Plain:
    """An array with the CUDA array interface alone, as numba has it."""

    def __init__(self, values, **about):
        self.__cuda_array_interface__ = {**values.__array_interface__, "version": 3, **about}


class Exported:
    """An array with DLPack alone."""

    def __init__(self, values, where=(dlpack.CUDA, 0)):
        self.values, self.where, self.asked = values, where, []

    def __dlpack_device__(self):
        return self.where

    def __dlpack__(self, *, stream):
        self.asked.append(stream)
        return self.values.__dlpack__()


def test_arrays_of_any_library_are_read_where_they_are_behind_their_stream(behind):
    exported, own = Exported(BATCH), on_device(BATCH, stream=5)
    for value in (own, exported, Plain(BATCH, stream=6), Plain(BATCH)):
        found = read_on_device(value, Runtime(), 9, 0)
        assert (found.pointer, found.shape, found.dtype) == (own.pointer, (4, 2, 3), "float32")
    assert behind == [(9, 5, 0), (9, 6, 0)]
    assert exported.asked == [9]  # its library orders the streams
    for elsewhere in (BATCH, [1.0], None, Exported(BATCH, (dlpack.CPU, 0))):
        assert read_on_device(elsewhere, Runtime(), 9, 0) is None


@pytest.mark.parametrize(
    ("value", "word"),
    [
        (Exported(BATCH, (dlpack.CUDA, 1)), "another device"),
        (Exported(BATCH[:, ::2].T), "not contiguous"),
        (Plain(BATCH.T), "not contiguous"),
        (Exported(BATCH.astype(np.complex64)), "dtype"),
        (Exported([1.0]), "cannot be read"),
        (Plain(BATCH, typestr="what"), "cannot be read"),
    ],
)
def test_an_array_that_cannot_be_read_is_refused_with_what_is_wrong(value, word):
    with pytest.raises(InputError, match=word) as caught:
        read_on_device(value, Runtime(), 9, 0)
    assert caught.value.expected
    assert caught.value.got
