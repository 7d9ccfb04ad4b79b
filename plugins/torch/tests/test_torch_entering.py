"""What callers have queued on streams of their own: marked in their threads, waited for in the instance's thread."""

import threading
import weakref
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import headrace
from headrace_tensors import entering
from headrace_torch.devices.place import Place


class Marked:
    """A mark, which notes who waits for it, and in which thread."""

    def __init__(self, ordinal, handle, log):
        self.handle, self.log = handle, log
        log.append(("marked", handle, threading.get_ident()))

    def hold_back(self, stream):
        self.log.append((self.handle, stream, threading.get_ident()))


class Interface:
    """What says the stream of an array on a device."""

    def __init__(self, stream):
        self.__cuda_array_interface__ = {"version": 3, "stream": stream}


@pytest.fixture
def log(monkeypatch):
    """Streams that are none. All are busy, and 5 is torch's in every thread."""
    found = []
    monkeypatch.setattr(entering, "mark_of", lambda *stream: Marked(*stream, found))
    monkeypatch.setattr(entering.Mark, "made", True)
    return found


@pytest.fixture
def place():
    return Place(torch.device("cpu"), None)


def test_the_current_stream_waits_once_for_each_mark_and_the_values_are_kept(log, place):
    place.stream = place.current_stream = lambda: SimpleNamespace(cuda_stream=9)
    one, two, three = (Marked(0, number, log) for number in (1, 2, 3))
    values = [np.ones(1), np.ones(2), np.ones(3)]
    batch = [{"data": values[0], "mask": values[1]}, {"data": 1}, {"data": values[2]}]
    marks = dict(zip(map(id, batch), [(one, two), None, (two, three)], strict=True))
    log.clear()
    place.wait_for_callers(batch, lambda request: marks[id(request)])
    me = threading.get_ident()
    assert sorted(log) == [(1, 9, me), (2, 9, me), (3, 9, me)]
    alive = [weakref.ref(value) for value in values]
    batch.clear()
    values.clear()
    assert all(one() is not None for one in alive)
    place.stream = None
    place.end()
    assert [one() for one in alive] == [None] * 3


def test_a_stream_of_another_device_waits_too(log, place):
    """The instance is on the CPU, and reads from the device by a stream of its own."""
    mark = Marked(0, 1, log)
    log.clear()
    place.wait_for_callers([{"data": 1}], lambda _: (mark,))
    assert log == []
    device = torch.device("cuda:0")
    place._others[device] = SimpleNamespace(stream=SimpleNamespace(cuda_stream=9), end=lambda: None)
    place.beside(device)
    assert log == [(1, 9, threading.get_ident())]
    place.end()
    place.beside(device)
    assert len(log) == 1


def test_what_is_marked_in_the_callers_thread_reaches_the_instances(log, monkeypatch):
    seen, wait = [], Place.wait_for_callers

    def spy(place, batch, entered):
        seen.extend((entered(request), threading.get_ident()) for request in batch)
        wait(place, batch, entered)

    monkeypatch.setattr(Place, "wait_for_callers", spy)
    request = {"data": torch.zeros(4), "of another library": Interface(77)}
    with headrace.pipe({"backend": "SoftmaxTensor", "device": "cpu"}) as pipe:
        assert pipe(request)["result"].tolist() == [0.25] * 4
    assert log == [("marked", 77, threading.get_ident())]
    assert {mark.handle for marks, _ in seen for mark in marks} == {77}
    assert threading.get_ident() not in {thread for _, thread in seen}
