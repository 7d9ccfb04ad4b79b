"""What callers have queued on streams of their own: recorded in their threads, waited for in the instance's thread."""

import threading
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import headrace
from headrace_torch import _tensor_backend, entering


class Stream:
    """A stand-in for torch's stream, which notes what is recorded and waited for, and in which thread."""

    def __init__(self, handle, log):
        self.cuda_stream, self.log = handle, log

    def record_event(self):
        self.log.append(("recorded", self.cuda_stream, threading.get_ident()))
        return f"event of {self.cuda_stream}"

    def wait_event(self, event):
        self.log.append((event, self.cuda_stream, threading.get_ident()))


class Interface:
    """What says the stream of an array on a device."""

    def __init__(self, stream):
        self.__cuda_array_interface__ = {"version": 3, "stream": stream}


@pytest.fixture
def log(monkeypatch):
    """Streams that are none: 5 is current in every thread, others are external."""
    found = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device=None: Stream(5, found))
    monkeypatch.setattr(
        torch.cuda, "ExternalStream", lambda handle, device=None: Stream(handle, found)
    )
    monkeypatch.setattr(entering.Recorded, "any", False)
    return found


def test_an_event_is_recorded_on_each_stream_that_is_no_default_one(log):
    me = threading.get_ident()
    request = {"data": Interface(77), "list": [Interface(5), Interface(1)], "more": Interface(77)}
    assert sorted(entering.enter(request)) == ["event of 5", "event of 77"]
    assert sorted(log) == [("recorded", 5, me), ("recorded", 77, me)]
    assert entering.Recorded.any


def test_nothing_is_recorded_for_arrays_of_the_host_and_on_default_streams(log):
    request = {"data": torch.ones(3), "list": [torch.ones(3), np.ones(3), 1], "table": {"x": 1}}
    assert entering.enter(request) is None
    assert entering.enter({"data": Interface(1), "none": Interface(None)}) is None
    assert log == []
    assert not entering.Recorded.any


def test_the_current_stream_waits_and_the_values_are_kept(log):
    own, kept = Stream(9, log), []
    place = SimpleNamespace(events=[], keep=kept.append, stream=own, current_stream=lambda: own)
    batch = [{"data": "a", "mask": "b"}, {"data": "c"}, {"data": "d"}]
    events = [("one", "two"), None, ("three",)]
    entering.wait_for_callers(place, batch, lambda request: events[batch.index(request)])
    me = threading.get_ident()
    assert log == [("one", 9, me), ("two", 9, me), ("three", 9, me)]
    assert place.events == ["one", "two", "three"]
    assert kept == [["a", "b"], ["d"]]


@pytest.mark.parametrize("way", ["call", "list", "submit", "each"])
def test_what_is_recorded_in_the_callers_thread_reaches_the_instances(log, way, monkeypatch):
    seen, wait = [], entering.wait_for_callers

    def spy(place, batch, entered):
        seen.extend((entered(request), threading.get_ident()) for request in batch)
        wait(place, batch, entered)

    monkeypatch.setattr(_tensor_backend, "wait_for_callers", spy)
    config = {"backend": "SoftmaxTensor", "device": "cpu", "max": 4}
    if way == "each":
        config = {
            "first": {"backend": "Identity", "next": "net"},
            "net": {**config, "each": "list:data", "next": "end"},
            "end": {"backend": "Identity"},
        }
    request = {"data": torch.zeros(4), "of another library": Interface(77)}
    with headrace.pipe(config) as pipe:
        if way == "each":
            results = pipe({**request, "list": [torch.zeros(4), torch.zeros(4)]})["result"]
        elif way == "list":
            results = [pipe([request])[0]["result"]]
        elif way == "submit":
            results = [pipe.submit(request).result(60)["result"]]
        else:
            results = [pipe(request)["result"]]
    assert all(one.tolist() == [0.25] * 4 for one in results)
    assert log == [("recorded", 77, threading.get_ident())]
    assert {events for events, _ in seen} == {("event of 77",)}
    assert threading.get_ident() not in {thread for _, thread in seen}
