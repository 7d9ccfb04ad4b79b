"""Marks behind what the calling thread has queued for the arrays of a request, by a driver that is none."""

import ctypes
import gc
import math
import sys
import threading
from types import SimpleNamespace

import numpy as np
import pytest

from headrace.errors import BackendError, InputError, InstanceLostError
from headrace_tensors import (
    device_copies,
    entering,
    order_behind,
    order_behind_torch,
    view_of_torch,
)
from headrace_tensors.device_arrays import read_on_device
from headrace_tensors.device_copies import is_one_allocation
from headrace_tensors.entering import Mark, device_context, mark_of

BUSY, NO_CONTEXT, LOST = 600, 201, 700
NAMES = {NO_CONTEXT: b"CUDA_ERROR_INVALID_CONTEXT", LOST: b"CUDA_ERROR_ILLEGAL_ADDRESS"}
NAMES |= {400: b"CUDA_ERROR_INVALID_HANDLE"}


class Driver:
    """Streams, events and contexts as CUDA's driver has them. The context of device N is 100 + N, events are 500, 501, ...

    Attributes:
        streams: The context of each stream, where that is not 100.
        memory: The number of the device of each address, and an error for what is no device memory.
        busy: The streams with work: a handle, or for a default stream its context and handle.
        capturing: The streams that are captured. `states` the errors of others.
        log: What was recorded and waited for: the name of the call, its arguments, and the context that was current.
    """

    def __init__(self, devices=1):
        self.devices, self.made, self.homes = devices, 0, {}
        self.streams, self.memory = {}, {}
        self.busy, self.capturing, self.states, self.log = set(), set(), {}, []
        self.here = threading.local()

    @property
    def stack(self):
        if not hasattr(self.here, "stack"):
            self.here.stack, self.here.mode = [], 0
        return self.here.stack

    @property
    def current(self):
        return self.stack[-1] if self.stack else None

    def _stream(self, handle):
        """Return what a handle means here; a default stream is one of the current context."""
        return handle if handle > 2 else (self.current, handle or 1)

    def cuThreadExchangeStreamCaptureMode(self, mode):  # noqa: N802 - the driver's names
        assert self.stack is not None
        self.here.mode, mode._obj.value = mode._obj.value, self.here.mode
        return 0

    def cuStreamIsCapturing(self, handle, status):  # noqa: N802
        if handle <= 2 and self.current is None:
            return NO_CONTEXT
        status._obj.value = int(handle in self.capturing)
        return 906 if handle <= 1 and self.capturing else 0

    def cuStreamQuery(self, handle):  # noqa: N802
        assert handle not in self.capturing, "the capture is broken off"
        assert self.here.mode == 2, "captures of other threads are broken off"
        if handle <= 2 and self.current is None:
            return NO_CONTEXT
        stream = self._stream(handle)
        return self.states.get(stream) or (BUSY if stream in self.busy else 0)

    def cuCtxGetCurrent(self, context):  # noqa: N802
        context._obj.value = self.current
        return 0

    def cuStreamGetCtx(self, handle, context):  # noqa: N802
        assert handle > 2
        context._obj.value = self.streams.get(handle, 100)
        return 0

    def cuPointerGetAttribute(self, value, attribute, pointer):  # noqa: N802
        assert attribute == 9  # the number of the device
        value._obj.value = self.memory.get(pointer, -1)
        return 0 if pointer in self.memory else 1

    def cuCtxPushCurrent_v2(self, context):  # noqa: N802
        assert context >= 100
        self.stack.append(context)
        return 0

    def cuCtxPopCurrent_v2(self, context):  # noqa: N802
        context._obj.value = self.stack.pop()
        return 0

    def cuDeviceGetCount(self, count):  # noqa: N802
        count._obj.value = self.devices
        return 0

    def cuDeviceGet(self, device, ordinal):  # noqa: N802
        device._obj.value = 40 + ordinal
        return 0 if ordinal < self.devices else 101

    def cuDevicePrimaryCtxRetain(self, context, device):  # noqa: N802
        context._obj.value = device.value + 60
        return 0

    def cuEventCreate(self, event, flags):  # noqa: N802
        assert flags == 2  # without timing
        event._obj.value = 500 + self.made
        self.homes[event._obj.value] = self.current
        self.made += 1
        return 0

    def cuEventRecord(self, event, handle):  # noqa: N802
        assert self.homes[event] == self.current, "an event of another device"
        error = self.states.get(self._stream(handle), 0)
        if not error:
            self.log.append(("record", event, self._stream(handle)))
        return error

    def cuStreamWaitEvent(self, handle, event, flags):  # noqa: N802
        assert flags == 0
        if self.current is None:
            return NO_CONTEXT
        self.log.append(("wait", self._stream(handle), event))
        return 0

    def cuMemGetAddressRange_v2(self, base, size, pointer):  # noqa: N802
        if self.current is None:
            return NO_CONTEXT
        base._obj.value, size._obj.value = pointer // 64 * 64, 64
        return 0

    def cuGetErrorName(self, number, name):  # noqa: N802
        name._obj.value = NAMES.get(number)
        return 0


def use(driver, monkeypatch):
    monkeypatch.setattr(entering, "load_driver", lambda: driver)
    monkeypatch.setattr(device_copies, "load_driver", lambda: driver)
    monkeypatch.setattr(entering, "_free", {})
    monkeypatch.setattr(entering, "_default_streams", {})
    monkeypatch.setattr(Mark, "made", False)
    return driver


@pytest.fixture
def driver(monkeypatch):
    return use(Driver(), monkeypatch)


@pytest.fixture
def two(monkeypatch):
    return use(Driver(2), monkeypatch)


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
    raw = SimpleNamespace(_cuda_getCurrentRawStream=lambda ordinal: here.handles[ordinal])
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(Tensor=Tensor, _C=raw))
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
        return self.kind, 0

    def __dlpack__(self, *, stream=None):
        self.asked.append((stream, threading.get_ident()))
        return object()


def recorded(driver):
    return [stream for call, _, stream in driver.log if call == "record"]


def in_thread(function):
    """Run a function in a thread that has used no device."""
    found = []
    thread = threading.Thread(target=lambda: found.append(function()))
    thread.start()
    thread.join(60)
    return found[0]


def test_nothing_is_asked_for_arrays_of_the_host_and_no_library_is_imported(monkeypatch):
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    monkeypatch.setattr(entering, "load_driver", None)
    values = [1, 2.5, "text", b"bytes", None, True, np.zeros(3), np.float32(1), object()]
    request = {str(number): value for number, value in enumerate(values)}
    on_host = Exchanged(1)
    request |= {"list": [1] * 1000, "all": values, "table": {"x": np.zeros(2)}, "dlpack": on_host}
    assert entering.enter(request) is None
    assert entering.enter({}) is None
    assert on_host.asked == []
    assert "torch" not in sys.modules


def test_a_tensor_of_torch_names_the_stream_that_is_current_in_the_thread_that_asks(two, current):
    two.busy = {300, 301, 400}
    current.handles = {0: 300, 1: 301}
    assert entering.enter({"data": Tensor()}) is None  # on the host
    assert entering.enter({"deep": [[Tensor(1)]]}) is None
    request = {"data": Tensor(0), "mask": Tensor(0), "list": [1, Tensor(1)]}
    marks = entering.enter(request)
    assert sorted(recorded(two)) == [300, 301]
    assert len(marks) == 2
    two.log.clear()
    table = entering.enter({"table": {"x": Tensor(1)}})
    assert recorded(two) == [301]
    two.log.clear()

    def ask():
        current.handles = {0: 400}
        return entering.enter({"data": (Tensor(0),)})

    late = in_thread(ask)
    assert recorded(two) == [400]
    assert len({*marks, *table, *late}) == 4


def test_a_version_of_torch_without_the_short_way_is_asked_for_its_stream(driver, monkeypatch):
    driver.busy = {300}
    cuda = SimpleNamespace(current_stream=lambda ordinal: SimpleNamespace(cuda_stream=300))
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(Tensor=Tensor, cuda=cuda))
    assert entering.enter({"data": Tensor(0)}) is not None
    assert recorded(driver) == [300]


def test_the_cuda_array_interface_says_the_stream(two):
    two.busy = {77, 78}
    one = entering.enter({"data": Interface(stream=77)})
    other = entering.enter({"data": [InterfaceOn(stream=78)]})
    assert recorded(two) == [77, 78]
    assert two.homes == {500: 100, 501: 101}  # an event of the stream's device
    assert one is not other
    assert entering.enter({"data": Interface(stream=None), "more": Interface()}) is None


def test_a_stream_without_the_number_of_its_device_is_asked_for_its_context(two):
    two.busy, two.streams = {77}, {77: 101}
    two.stack.append(100)  # the thread uses another device
    assert entering.enter({"data": Interface(stream=77)}) is not None
    assert two.homes == {500: 101}
    assert two.stack == [100]


def test_an_array_that_does_not_say_its_device_is_refused_elsewhere(two):
    values = np.zeros((2, 3), np.float32)
    array = Interface(
        **{key: values.__array_interface__[key] for key in ("data", "shape", "typestr")}
    )
    two.memory = {values.ctypes.data: 1}
    assert read_on_device(array, None, 33, 1).pointer == values.ctypes.data
    with pytest.raises(InputError, match="another device") as caught:
        read_on_device(array, None, 33, 0)
    assert (caught.value.expected, caught.value.got) == ("cuda:0", "cuda:1")
    two.memory.clear()  # the driver does not know the address
    assert read_on_device(array, None, 33, 0).ordinal == 0


def test_dlpack_alone_is_exchanged_in_the_thread_that_asks(driver):
    array = Exchanged(2)
    driver.busy = {(100, 2)}
    assert entering.enter({"data": array}) is not None
    assert array.asked == [(2, threading.get_ident())]


def test_an_array_that_raises_is_left_to_who_reads_it(driver):
    class Broken:
        def __dlpack_device__(self):
            raise RuntimeError("gone")

    driver.busy = {77}
    assert entering.enter({"data": Broken(), "good": Interface(stream=77)}) is not None


def test_nothing_is_made_for_an_idle_stream(driver):
    assert entering.enter({"data": Interface(stream=77)}) is None
    assert driver.made == 0
    assert driver.log == []
    assert not Mark.made


def test_a_call_has_one_mark_per_stream_and_asks_once(driver, monkeypatch):
    driver.busy = {77}
    asked, query = [], driver.cuStreamQuery
    monkeypatch.setattr(driver, "cuStreamQuery", lambda s: (asked.append(s), query(s))[1])
    call = {}
    requests = [{"data": Interface(stream=77 + k % 2)} for k in range(40)]
    marks = [entering.enter(one, call=call) for one in requests]
    assert driver.made == 1
    assert len(set(marks[::2])) == 1
    assert set(marks[1::2]) == {None}
    assert asked.count(78) == 1
    # The next call may come behind further work.
    assert entering.enter(requests[0], call={}) != marks[0]
    by_id = dict(zip(map(id, requests), marks, strict=True))
    driver.log.clear()
    driver.stack.append(100)
    entering.wait_for_callers(requests, lambda request: by_id[id(request)], 9)
    assert driver.log == [("wait", 9, 500)]


def test_events_are_used_again_once_nobody_holds_their_mark(driver):
    driver.busy = {77}
    gc.disable()  # nothing but the last reference gives one back
    try:
        for _ in range(100):
            held = [entering.enter({"data": Interface(stream=77)}) for _ in range(3)]
            del held
    finally:
        gc.enable()
    assert driver.made == 3
    assert len(driver.log) == 300


def test_the_default_stream_of_the_arrays_device_is_asked_as_the_batch_begins(two, current):
    """Device 0 is current: stream 0 would be idle there."""
    current.handles = {1: 0}
    two.stack.append(100)
    request = {"data": Tensor(1)}
    marks = entering.enter(request)
    assert recorded(two) == []
    two.busy = {(101, 1)}
    entering.wait_for_callers([request, {**request}], lambda _: marks, 33)
    assert recorded(two) == [(101, 1)]
    assert ("wait", 33, 500) in two.log
    assert two.stack == [100]
    two.busy = {(100, 1)}
    entering.wait_for_callers([request], lambda _: marks, 33)
    assert recorded(two) == [(101, 1)]


def test_a_batch_of_the_host_waits_for_no_default_stream(driver, current):
    """Other threads may keep that stream busy, or capture it."""
    current.handles = {0: 0}
    driver.busy = {(100, 1)}
    on_device, on_host = {"data": Tensor(0)}, {"data": np.zeros(3), "name": "a"}
    assert [entering.enter(one) for one in (on_device, on_host)] == [None, None]
    entering.wait_for_callers([on_host, {**on_host}], lambda _: None, 33)
    assert driver.log == []
    entering.wait_for_callers([on_host, on_device], lambda _: None, 33)
    assert driver.log == [("record", 500, (100, 1)), ("wait", 33, 500)]


@pytest.mark.parametrize(
    ("handle", "stream"), [(0, (100, 1)), (1, (100, 1)), (2, (100, 2)), (9, 9)]
)
def test_a_thread_that_has_used_no_device_asks_in_the_context_of_the_arrays(driver, handle, stream):
    assert (
        in_thread(lambda: mark_of(0, handle)) is None
    )  # idle, although the first answer is an error
    assert driver.made == 0
    driver.busy = {stream}
    assert in_thread(lambda: mark_of(0, handle)) is not None
    assert recorded(driver) == [stream]
    assert (
        in_thread(lambda: mark_of(None, handle)) is not None
    )  # device 0, as CUDA's runtime has it


def test_who_waits_needs_no_context_of_its_own(two):
    two.busy = {77}
    mark = mark_of(1, 77)
    in_thread(lambda: mark.hold_back(9))
    in_thread(lambda: mark.hold_back(0))
    assert [entry for entry in two.log if entry[0] == "wait"] == [
        ("wait", 9, 500),
        ("wait", (101, 1), 500),
    ]


def test_a_thread_has_afterwards_the_device_that_it_had_or_none(two):
    def used():
        before = two.current
        with device_context(1):
            inside = two.current
            with device_context(0):
                pass
        return before, inside, two.current

    assert in_thread(used) == (None, 101, None)
    with device_context(0):
        assert used() == (100, 101, 100)
    with pytest.raises(ZeroDivisionError), device_context(1):
        raise ZeroDivisionError
    assert two.current is None
    with pytest.raises(BackendError, match="cuDeviceGet"), device_context(2):
        pass


def test_without_a_driver_a_thread_has_no_device(monkeypatch):
    monkeypatch.setattr(entering, "load_driver", lambda: None)
    with device_context(1):
        pass


@pytest.mark.parametrize(
    ("pointer", "nbytes", "is_one"),
    [(640, 64, True), (640, 65, False), (700, 4, True), (700, 5, False), (640, 0, True)],
)
def test_memory_up_to_the_end_of_its_allocation_is_one_piece(two, pointer, nbytes, is_one):
    assert not is_one_allocation(pointer, nbytes)  # no device is current in this thread
    with device_context(1):
        assert is_one_allocation(pointer, nbytes) is is_one


def test_an_array_in_a_context_of_its_own_is_asked_there(driver):
    driver.stack.append(999)
    driver.busy, driver.streams = {77, (999, 1)}, {77: 999}
    marks = mark_of(None, 77), mark_of(None, 1)
    assert recorded(driver) == [77, (999, 1)]
    assert set(driver.homes.values()) == {999}
    assert None not in marks


@pytest.mark.parametrize(("handle", "capturing"), [(77, {77}), (0, {77}), (1, {5})])
def test_a_stream_that_is_captured_is_refused_and_goes_on(driver, handle, capturing):
    driver.stack.append(100)
    driver.capturing = capturing
    with pytest.raises(InputError, match="captures a CUDA graph"):
        mark_of(0, handle)
    assert driver.made == 0
    assert driver.stack == [100]
    assert driver.here.mode == 0


@pytest.mark.parametrize(
    ("number", "kind", "text"),
    [
        (400, BackendError, r"cuEventRecord says CUDA_ERROR_INVALID_HANDLE \(400\)"),
        (LOST, InstanceLostError, "CUDA_ERROR_ILLEGAL_ADDRESS"),
        (12345, BackendError, "error"),
    ],
)
def test_a_stream_of_which_the_driver_reports_an_error_is_not_taken_for_idle(
    driver, number, kind, text
):
    driver.states[77] = number
    with pytest.raises(kind, match=text):
        mark_of(0, 77)
    assert driver.stack == []
    assert driver.here.mode == 0
    del driver.states[77]
    driver.busy = {77}
    assert mark_of(0, 77) is not None
    assert driver.log == [("record", 501, 77)]  # the event of the failure is not used again


def test_without_a_driver_nothing_is_marked(monkeypatch):
    monkeypatch.setattr(entering, "load_driver", lambda: None)
    assert entering.enter({"data": Interface(stream=77)}) is None
    order_behind(9, 77, 0)


def test_a_stream_comes_behind_another_one_if_that_one_is_busy(driver):
    driver.stack.append(100)
    order_behind(9, 77, 0)
    order_behind(77, 77, 0)
    assert driver.log == []
    driver.busy = {77}
    order_behind(77, 77, 0)
    assert driver.log == []
    order_behind(9, 77, 0)
    assert driver.log == [("record", 500, 77), ("wait", 9, 500)]


def test_the_interpreter_lock_is_kept_in_calls_of_the_driver(monkeypatch):
    """A library of C stands for the driver: it has all the names, and is loaded as one that keeps the lock."""
    loaded = []

    class Library:
        def __getattr__(self, name):
            return self.__dict__.setdefault(name, SimpleNamespace())

    monkeypatch.setattr(ctypes, "PyDLL", lambda name: (loaded.append(name), Library())[1])
    found = entering.load_driver.__wrapped__()
    (name,) = loaded
    assert "cuda" in name
    assert found.cuStreamQuery.argtypes == (ctypes.c_void_p,)

    def missing(name):
        raise OSError(name)

    monkeypatch.setattr(ctypes, "PyDLL", missing)
    assert entering.load_driver.__wrapped__() is None


class Placed(Tensor):
    """A tensor on a device, with all that is read of it."""

    layout, dtype, shape, requires_grad, apart = "strided", "torch.float32", (2, 3), False, False

    def __init__(self, **about):
        super().__init__(1)
        self.__dict__.update(about)

    def is_contiguous(self):
        return not self.apart

    def numel(self):
        return math.prod(self.shape)

    def data_ptr(self):
        return 4096


def test_a_plain_tensor_of_torch_is_read_by_its_address(two, monkeypatch):
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    assert view_of_torch(Placed(), 1) is None  # torch is not imported, so it is none
    order_behind_torch(9, 1)
    raw = SimpleNamespace(_cuda_getCurrentRawStream=lambda ordinal: 300 + ordinal)
    torch = SimpleNamespace(Tensor=Placed, strided="strided", _C=raw)
    monkeypatch.setitem(sys.modules, "torch", torch)
    assert view_of_torch(Placed(), 1) == (4096, (2, 3), "float32")
    assert view_of_torch(Placed(), 0) is None  # on another device
    refused = {"apart": True, "requires_grad": True, "layout": "sparse"}
    for name, value in refused.items():
        assert view_of_torch(Placed(**{name: value}), 1) is None
    assert view_of_torch(np.zeros(3), 1) is None
    two.busy = {301}
    order_behind_torch(9, 1)
    assert recorded(two) == [301]
