"""On which streams the calling thread may still be writing the arrays of a request."""

import sys
import threading
from types import SimpleNamespace

import numpy as np
import pytest

from headrace_tensors import CallerStream, caller_streams


class Tensor:
    """A stand-in for torch's tensor."""

    def __init__(self, ordinal=None):
        self.is_cuda, self._ordinal = ordinal is not None, ordinal

    def get_device(self):
        return self._ordinal


@pytest.fixture
def current(monkeypatch):
    """A stand-in for torch: per thread, and in it per device, the handle of the stream that is current."""
    here = threading.local()
    cuda = SimpleNamespace(
        current_stream=lambda ordinal: SimpleNamespace(cuda_stream=here.handles[ordinal])
    )
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(Tensor=Tensor, cuda=cuda))
    return here


class Interface:
    """An array with the CUDA array interface, which says the stream, and perhaps with DLPack."""

    def __init__(self, **about):
        self.__cuda_array_interface__ = {"version": 3, **about}


class InterfaceOn(Interface):
    def __dlpack_device__(self):
        return 2, 1

    def __dlpack__(self, *, stream=None):
        raise AssertionError("the interface has said the stream")


class Exchanged:
    """An array with DLPack alone."""

    def __init__(self, kind):
        self.kind, self.asked = kind, []

    def __dlpack_device__(self):
        return self.kind, 3

    def __dlpack__(self, *, stream=None):
        self.asked.append((stream, threading.get_ident()))
        return object()


def test_nothing_is_found_for_arrays_of_the_host_and_no_library_is_imported(monkeypatch):
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    values = [1, 2.5, "text", b"bytes", None, True, np.zeros(3), np.float32(1), object()]
    request = {str(number): value for number, value in enumerate(values)}
    on_host = Exchanged(1)
    request |= {"list": [1] * 1000, "all": values, "table": {"x": np.zeros(2)}, "dlpack": on_host}
    assert caller_streams(request) == set()
    assert caller_streams({}) == set()
    assert on_host.asked == []
    assert "torch" not in sys.modules


def test_a_tensor_of_torch_names_the_stream_that_is_current_in_the_thread_that_asks(current):
    current.handles = {0: 100, 1: 101}
    assert caller_streams({"data": Tensor()}) == set()  # on the host
    request = {"data": Tensor(0), "mask": Tensor(0), "list": [1, Tensor(1)]}
    assert caller_streams(request) == {CallerStream(0, 100), CallerStream(1, 101)}
    assert caller_streams({"table": {"x": Tensor(1)}}) == {(1, 101)}
    assert caller_streams({"deep": [[Tensor(1)]]}) == set()
    found = []

    def ask():
        current.handles = {0: 200}
        found.append(caller_streams({"data": (Tensor(0),)}))

    thread = threading.Thread(target=ask)
    thread.start()
    thread.join(60)
    assert found == [{(0, 200)}]


def test_the_cuda_array_interface_says_the_stream():
    assert caller_streams({"data": Interface(stream=77)}) == {(None, 77)}
    assert caller_streams({"data": [InterfaceOn(stream=78)]}) == {(1, 78)}
    assert caller_streams({"data": Interface(stream=None), "more": Interface()}) == set()


def test_dlpack_alone_is_exchanged_in_the_thread_that_asks():
    array = Exchanged(2)
    assert caller_streams({"data": array}) == {(3, 2)}
    assert array.asked == [(2, threading.get_ident())]


def test_an_array_that_raises_is_left_to_who_reads_it():
    class Broken:
        def __dlpack_device__(self):
            raise RuntimeError("gone")

    request = {"data": Broken(), "good": Interface(stream=77)}
    assert caller_streams(request) == {(None, 77)}
