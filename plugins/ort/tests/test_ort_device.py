"""Runs on a device: the whole of it over a device that is memory of this process, and on a real one
where `scripts/check gpu` finds one."""

import contextlib
import ctypes
import gc
import sys
import threading
import weakref
from types import SimpleNamespace
from unittest.mock import MagicMock

import numpy as np
import onnxruntime
import pytest
from device_stand_ins import Queued, torch
from onnx import TensorProto

import headrace
from headrace.errors import (
    BackendError,
    InputError,
    InstanceLostError,
    SetupError,
)
from headrace_ort import cuda, on_device, opening, options, row_sizes, session
from headrace_ort.binding import Binding
from headrace_ort.device_runner import DeviceRunner
from headrace_tensors import (
    DeviceArray,
    device_arrays,
    device_copies,
    entering,
)
from headrace_testing import FakeClock

STREAM_OPTIONS = on_device.stream_options


REAL = {
    name: getattr(cuda, name)
    for name in (
        "copy_to_device",
        "copy_to_host",
        "make_event",
        "wait_for",
        "Current",
        "PinnedBuffer",
    )
}


class Stream:
    """A stream of the device that is memory of this process; copies are done at once."""

    waits = 0

    def __init__(self, ordinal):
        self.handle = 77

    def close(self):
        pass


@pytest.fixture
def device(monkeypatch):
    """Let the calls of CUDA's runtime move memory of this process; give what was called."""
    calls = []

    def copy(target, source, nbytes, stream):
        assert stream == 77
        ctypes.memmove(target, source, nbytes)

    def to_device(target, source, stream):
        calls.append("to device")
        copy(target, source.ctypes.data, source.nbytes, stream)

    def to_host(target, source, stream):
        calls.append("to host")
        copy(target.ctypes.data, source, target.nbytes, stream)

    def within(target, source, nbytes, stream):
        calls.append("within")
        copy(target, source, nbytes, stream)

    def gather(target, sources, row_bytes, stream):
        for place, source in enumerate(sources):
            within(target + place * row_bytes, source, row_bytes, stream)

    class Pinned(cuda.PinnedBuffer):
        def view(self, shape, dtype):
            self.wait()
            self.array = np.empty(shape, dtype)
            return self.array

        def close(self):
            pass

    monkeypatch.setattr(cuda, "copy_to_device", to_device)
    monkeypatch.setattr(cuda, "copy_to_host", to_host)
    monkeypatch.setattr(cuda, "copy_within_device", within)
    monkeypatch.setattr(cuda, "gather_within_device", gather)

    def read(target, source, stream, ordinal):
        calls.append(("read", stream, ordinal))
        ctypes.memmove(target.ctypes.data, source, target.nbytes)

    monkeypatch.setattr(cuda, "read", read)
    monkeypatch.setattr(
        device_arrays, "order_behind", lambda *streams: calls.append(("behind", *streams))
    )
    monkeypatch.setattr(cuda, "make_event", lambda ordinal: None)
    monkeypatch.setattr(cuda, "wait_for", lambda stream, event: calls.append("wait"))
    monkeypatch.setattr(cuda, "check_ordinal", lambda ordinal: None)
    monkeypatch.setattr(cuda, "Current", lambda ordinal: contextlib.nullcontext())
    monkeypatch.setattr(cuda, "PinnedBuffer", Pinned)
    monkeypatch.setattr(cuda, "CudaStream", Stream)
    for module in (opening, on_device, options):
        monkeypatch.setattr(module, "ON_CUDA", ("CPUExecutionProvider",))
    monkeypatch.setattr(on_device, "stream_options", lambda name, handle: {})

    def runner(place, session, signature, **how):
        return DeviceRunner(session, signature, 0, 77, **how, kind="cpu")

    monkeypatch.setattr(on_device.Place, "runner", runner)
    return calls


class OnDevice:
    """An array on the device, as another library has it."""

    def __init__(self, values, ordinal=0, **about):
        self.values = values
        self.asked = []
        self.ordinal = ordinal
        self.__cuda_array_interface__ = {**values.__array_interface__, "version": 3, **about}

    def __dlpack_device__(self):
        return 2, self.ordinal

    def __dlpack__(self, *, stream=None):
        self.asked.append(stream)
        return self.values.__dlpack__()


def back(result):
    """Read a result that lies on the device that is memory of this process."""
    assert type(result) is DeviceArray
    about = result.__cuda_array_interface__
    size = result.nbytes
    memory = (ctypes.c_uint8 * size).from_address(about["data"][0])
    return np.frombuffer(bytes(memory), about["typestr"]).reshape(about["shape"])


ROWS = np.arange(24, dtype=np.float32).reshape(4, 2, 3)


@pytest.mark.parametrize("where", ["cpu", "device"])
def test_rows_from_the_cpu_and_the_device_share_a_batch(device, start, one_to_one, where):
    backend = start(one_to_one(["n", 2, 3], op="Neg"), output_device=where)
    device.clear()
    batch = [
        {"data": ROWS[0]},
        {"data": OnDevice(ROWS[1])},
        {"data": ROWS[2:], "request_size": 2},
    ]
    assert backend(batch) is None
    results = [request["result"] for request in batch]
    if where == "device":
        backend._runner.end()
        results = [back(result) for result in results]
    assert [r.shape for r in results] == [(2, 3), (2, 3), (2, 2, 3)]
    assert np.array_equal(results[0], -ROWS[0])
    assert np.array_equal(results[1], -ROWS[1])
    assert np.array_equal(results[2], -ROWS[2:])
    assert batch[1]["data"].asked == [77]  # it was ordered before the stream that reads it


def test_neighbours_are_read_in_place_where_they_are_one_allocation(
    device, start, one_to_one, monkeypatch
):
    backend = start(one_to_one(["n", 2, 3], op="Neg"))
    border = ROWS[2].ctypes.data

    def range_of(base, size, pointer):
        base._obj.value, size._obj.value = (border, 1 << 20) if pointer >= border else (0, border)
        return 0

    driver = SimpleNamespace(cuMemGetAddressRange_v2=range_of)
    monkeypatch.setattr(device_copies, "load_driver", lambda: driver)
    for places, copies in (((0, 1), 0), ((1, 2), 2), ((2, 3), 0)):
        device.clear()
        batch = [{"data": OnDevice(ROWS[k])} for k in places]
        assert backend(batch) is None
        assert device.count("within") == copies
        for k, request in zip(places, batch, strict=True):
            assert np.array_equal(request["result"], -ROWS[k])


@pytest.mark.parametrize(("length", "last"), [(3, (4, 2, 3)), ("m", None)])
def test_the_warm_up_ends_with_the_largest_of_row_sizes(
    device, start, one_to_one, monkeypatch, length, last
):
    """A provider plans for the shape of the last run, which the first request should find. Free axes have no shape yet."""
    backend = start(one_to_one(["n", 2, length], op="Neg"), row_sizes=[1, 4])
    shapes, bind = [None], Binding._bind_input

    def noted(self, port, pointer, shape):
        shapes.append(shape)
        bind(self, port, pointer, shape)

    monkeypatch.setattr(Binding, "_bind_input", noted)
    backend.warm_up()
    assert shapes[-1] == last
    request = {"data": ROWS[:3], "request_size": 3}
    assert backend([request]) is None
    assert shapes[-1] == (4, 2, 3)
    assert np.array_equal(request["result"], -ROWS[:3])


class Planning:
    """Sessions that keep a plan for the shape of the last run alone, as those on CUDA do, by a clock that stands still.

    Attributes:
        plan_s: How long another number of rows takes, beside the 1 ms of each row.
        most: The most rows for which there is memory.
        rows: The number of rows of each run.
    """

    def __init__(self):
        self.plan_s, self.most, self.rows, self.clock = 0.1, 100, [], FakeClock()

    def run(self, session, binding, options=None):
        RUN(session, binding, options)
        (rows, *_) = binding.get_outputs()[0].shape()
        if rows > self.most:
            raise RuntimeError("out of memory")
        self.clock.advance(0.001 * rows + (self.plan_s if self.rows[-1:] != [rows] else 0))
        self.rows.append(rows)


RUN = onnxruntime.InferenceSession.run_with_iobinding


@pytest.fixture
def planning(device, monkeypatch):
    sessions = Planning()
    monkeypatch.setattr(
        onnxruntime.InferenceSession,
        "run_with_iobinding",
        lambda session, *given: sessions.run(session, *given),
    )
    monkeypatch.setattr(row_sizes, "perf_counter", sessions.clock)
    return sessions


@pytest.fixture
def convolution(save):
    """Write a model that turns the sign of rows of 2 x 3 by a convolution."""

    def write(rows="n", length=3, flat=()):
        return save(
            [
                ("Conv", ["x", "w"], ["y"], {}),
                *[("ReduceSum", ["y"], [name], {}) for name in flat],
            ],
            [("x", TensorProto.FLOAT, [rows, 2, length])],
            [
                ("y", TensorProto.FLOAT, [rows, 2, length]),
                *[(name, TensorProto.FLOAT, [1, 1, 1]) for name in flat],
            ],
            [("w", -np.eye(2, dtype=np.float32)[..., None])],
        )

    return write


@pytest.mark.parametrize(
    ("batch", "given", "model", "sizes", "told"),
    [
        ({"max": 8}, {}, {}, [1, 2, 4, 8], False),
        ({"max": 6}, {"output_device": "device"}, {}, [1, 2, 4, 6], False),
        ({"max": 8}, {"row_sizes": []}, {}, [], False),
        ({"max": 8}, {"row_sizes": [3]}, {}, [3], False),
        ({"max": 8}, {"cuda_graph": True}, {}, [], False),
        ({"max": 8, "sizes": (8,)}, {}, {}, [8], False),
        ({"max": 1}, {}, {}, [], False),
        ({}, {}, {}, [], False),
        ({"max": 8}, {}, {"rows": 4}, [], False),
        ({"max": 8}, {}, {"flat": ["sum"]}, [], False),
        ({"max": 8}, {}, {"length": "m"}, [], True),
        ({"max": 8}, {"warm_up_input": "real.npy"}, {"length": "m"}, [1, 2, 4, 8], False),
    ],
)
def test_a_network_of_convolutions_runs_with_few_numbers_of_rows(
    planning, start, convolution, tmp_path, caplog, batch, given, model, sizes, told
):
    if "warm_up_input" in given:
        np.save(tmp_path / "real.npy", ROWS)
        given = {"warm_up_input": tmp_path / "real.npy"}
    backend = start(convolution(**model), {"batch": batch}, **given)
    assert backend.describe()["row_sizes"] == sizes
    assert ("row_sizes = [8] keeps" in caplog.text) is told


def test_a_network_without_convolutions_or_on_the_cpu_runs_any_number_of_rows(
    start, one_to_one, convolution, request
):
    assert start(convolution(), {"batch": {"max": 8}}).describe()["row_sizes"] == []
    request.getfixturevalue("planning")
    neg = start(one_to_one(["n", 2, 3], op="Neg"), {"batch": {"max": 8}})
    assert neg.describe()["row_sizes"] == []


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, [8, 8, 8, 2, 4, 9, 4, 8, 8, 8, 1]),
        ({"row_sizes": [1, 2, 4, 8]}, [1, 2, 1, 1, 4, 9, 1, 8, 1, 1, 1]),
    ],
)
def test_runs_by_default_take_fewer_rows_once_it_pays(
    planning, start, convolution, given, expected
):
    """There and back takes 20.2 ms. A row in a run of eight loses 7 ms, two rows lose 6 ms."""
    planning.plan_s = 0.0101
    backend = start(convolution(), {"batch": {"max": 8}}, **given)
    assert set(planning.rows) >= {1, 2, 4, 8}
    planning.rows.clear()
    for count in (1, 2, 1, 1, 3, 9, 1, 8, 1, 1, 1):
        rows = np.resize(ROWS, (count, 2, 3)) + count
        request = {"data": rows, "request_size": count}
        assert backend([request]) is None
        assert np.array_equal(request["result"], -rows)
    assert planning.rows == expected


@pytest.mark.parametrize(("about", "most"), [({"plan_s": 0.001}, 8), ({"most": 8}, 16)])
def test_a_default_that_does_not_pay_or_cannot_run_is_not_taken(
    planning, start, convolution, about, most
):
    vars(planning).update(about)
    backend = start(convolution(), {"batch": {"max": most}})
    assert backend.describe()["row_sizes"] == []
    request = {"data": ROWS[:3], "request_size": 3}
    assert backend([request]) is None
    assert planning.rows[-1] == 3
    assert np.array_equal(request["result"], -ROWS[:3])


@pytest.mark.parametrize("version", [onnxruntime.__version__, "1.23.2"])
def test_results_last_whether_or_not_their_binding_owns_them(
    device, start, one_to_one, version, monkeypatch
):
    monkeypatch.setattr(onnxruntime, "__version__", version)
    backend = start(one_to_one(["n", 2, 3], op="Neg"), output_device="device")
    batches = [[{"data": ROWS + k, "request_size": 4}] for k in range(3)]
    for batch in batches:
        assert backend(batch) is None
        backend._runner.end()
    gc.collect()
    for k, (request,) in enumerate(batches):
        assert np.array_equal(back(request["result"]), -(ROWS + k))


def test_a_closed_instance_holds_no_session(device, start, one_to_one):
    backend = start(one_to_one(["n", 2, 3], op="Neg"), output_device="device")
    batch = [{"data": OnDevice(ROWS), "request_size": 4}, {"data": ROWS[0]}]
    assert backend(batch) is None
    backend._runner.end()
    end, session = backend._runner.end, weakref.ref(backend._session)
    gc.disable()  # nothing but the last reference frees it
    try:
        backend._stop()
        assert session() is None
    finally:
        gc.enable()
    end()  # the end of the batch may be called once more


def test_tensors_of_torch_are_read_without_a_capsule(device, start, one_to_one, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", torch)

    def mark_of(ordinal, handle):
        return SimpleNamespace(hold_back=lambda to: device.append(("behind", to, handle, ordinal)))

    monkeypatch.setattr("headrace_tensors.entering.mark_of", mark_of)
    backend = start(one_to_one(["n", 2, 3], op="Neg"), output_device="device")
    device.clear()
    for shift in (0.0, 1.0):  # the second time the input is bound there already
        values = ROWS + shift
        batch = [{"data": torch.Tensor(row)} for row in values]
        assert backend(batch) is None
        backend._runner.end()
        for row, request in zip(values, batch, strict=True):
            assert np.array_equal(back(request["result"]), -row)
    assert (
        device.count(("behind", 77, 5, 0)) == 2
    )  # torch's current stream comes first, in each batch
    assert "to device" not in device
    for wrong in ({"requires_grad": True}, {"dense": False}, {"dtype": "torch.bfloat16"}):
        (error,) = backend([{"data": torch.Tensor(ROWS[0], **wrong)}])
        assert isinstance(error, InputError)
        read = "this array cannot be read (BufferError: not as it is)"
        assert error.what == ("wrong dtype" if "dtype" in wrong else read)


def test_one_binding_serves_batches_of_any_size(device, start, one_to_one):
    backend = start(one_to_one(["n", 2, 3], op="Neg"), output_device="device")
    kept = []
    for rows in (4, 2, 4, 4, 1):
        whole = {"data": OnDevice(ROWS[:rows]), "request_size": rows}
        mixed = [{"data": ROWS[0]}, {"data": OnDevice(ROWS[2])}]
        assert backend([whole]) is None
        assert backend(mixed) is None
        backend._runner.end()
        kept += [(whole["result"], ROWS[:rows])]
        kept += [(one["result"], ROWS[k]) for one, k in zip(mixed, (0, 2), strict=True)]
    for result, rows in kept:  # all have memory of their own
        assert np.array_equal(back(result), -rows)


def test_what_lies_on_the_device_is_bound_where_it_is(device, start, one_to_one):
    backend = start(one_to_one(["n", 2, 3], op="Neg"), output_device="device")
    device.clear()
    alone = {"data": OnDevice(ROWS), "request_size": 4}
    behind = [{"data": OnDevice(row)} for row in ROWS]  # one behind the other in memory
    assert backend([alone]) is None
    assert "within" not in device
    assert "to device" not in device
    assert np.array_equal(back(alone["result"]), -ROWS)
    assert backend(behind) is None
    assert "to device" not in device
    assert "within" not in device  # results are rows of one output
    assert [np.array_equal(back(r["result"]), -row) for r, row in zip(behind, ROWS, strict=True)]
    backwards = behind[::-1]
    device.clear()
    assert backend(backwards) is None
    assert device.count("within") == 4
    assert all(
        np.array_equal(back(r["result"]), -row)
        for r, row in zip(backwards, ROWS[::-1], strict=True)
    )


def test_the_rows_of_an_engine_are_the_batch_of_the_next_one(device, start, one_to_one):
    ends = []
    first, second = (
        start(
            one_to_one(["n", 2, 3], op="Neg"),
            context={"batch": {"at_end": ends.append}},
            output_device="device",
        )
        for _ in range(2)
    )
    batch = [{"data": row} for row in ROWS]
    assert first(batch) is None
    for request in batch:
        request["data"] = request.pop("result")
    assert len({id(request["data"]._owner) for request in batch}) == 1
    kept = weakref.ref(batch[0]["data"]._owner)
    device.clear()
    assert second(batch) is None
    assert device == []  # no copy, and on one stream nothing to wait for
    for request in batch:
        del request["data"]
    gc.collect()
    assert kept() is not None  # the stream may not have read it yet
    assert np.array_equal([request["result"].get() for request in batch], ROWS)
    for end in ends:
        end()
    gc.collect()
    assert kept() is None


def test_inputs_on_the_cpu_are_copied_once(device, start, one_to_one):
    backend = start(one_to_one(["n", 2, 3]))
    device.clear()
    backend([{"data": row} for row in ROWS])
    assert device.count("to device") == 1


def test_a_batch_is_waited_for_once_and_results_say_when_they_are_finished(
    device, start, one_to_one
):
    ends = []
    backend = start(
        one_to_one(["n", 2, 3]), context={"batch": {"at_end": ends.append}}, output_device="device"
    )
    device.clear()
    request = {"data": OnDevice(ROWS[0])}
    backend([request])
    result = request["result"]
    assert result.__cuda_array_interface__["stream"] == 77
    assert result.__dlpack_device__() == (2, 0)
    result.__dlpack__(stream=5)
    assert ("behind", 5, 77, 0) in device
    for end in ends:
        end()
    assert device.count("wait") == 1
    assert result.__cuda_array_interface__["stream"] is None


@pytest.mark.parametrize("where", ["cpu", "device"])
def test_graphs_run_the_next_size_and_give_new_memory(
    device, start, one_to_one, where, monkeypatch
):
    runs = []
    real = onnxruntime.InferenceSession.run_with_iobinding

    def noted(session, binding, options=None):
        runs.append(binding)
        return real(session, binding, options)

    monkeypatch.setattr(onnxruntime.InferenceSession, "run_with_iobinding", noted)
    model = one_to_one(["n", 2, 3], op="Neg")
    backend = start(model, context={"batch": {"max": 4}}, cuda_graph=True, output_device=where)
    assert backend.describe()["cuda_graphs"] == [1, 2, 4]
    graphs = backend._runner._graphs
    kept = []
    for rows in (1, 2, 3, 4):
        request = {"data": ROWS[:rows] + rows, "request_size": rows}
        assert backend([request]) is None
        assert runs[-1] is graphs[{1: 1, 2: 2, 3: 4, 4: 4}[rows]].binding
        kept.append(request["result"])
    for rows, result in enumerate(kept, 1):
        values = back(result) if where == "device" else result
        assert np.array_equal(values, -(ROWS[:rows] + rows))
    only = start(model, context={"batch": {"max": 4, "sizes": (3,)}}, cuda_graph=True)
    assert only.describe()["cuda_graphs"] == [3]
    with pytest.raises(SetupError, match="one shape"):
        start(one_to_one(["n", None]), cuda_graph=True)


def test_a_fixed_batch_is_filled_up_on_the_device(device, start, one_to_one):
    backend = start(one_to_one([4, 2, 3], op="Neg"), output_device="device")
    batch = [{"data": OnDevice(ROWS[0])}, {"data": ROWS[1]}, {"data": ROWS[2]}, {"data": ROWS[3]}]
    assert backend(batch) is None
    assert all(np.array_equal(back(r["result"]), -row) for r, row in zip(batch, ROWS, strict=True))


@pytest.mark.parametrize("where", ["cpu", "device"])
def test_rows_are_filled_up_to_the_sizes_of_the_node(device, start, save, where):
    """Whatever fails or is missing, the session sees no other shape."""
    model = save(
        [("Neg", ["x"], ["y"], {}), ("Shape", ["x"], ["s"], {}), ("Gather", ["s", "i"], ["n"], {}),
         ("Expand", ["n", "n"], ["rows"], {})],
        [("x", TensorProto.FLOAT, ["n", 2, 3])],
        [("y", TensorProto.FLOAT, ["n", 2, 3]), ("rows", TensorProto.INT64, ["n"])],
        [("i", np.int64([0]))],
    )  # fmt: skip
    backend = start(model, {"batch": {"max": 8, "sizes": (8, 2)}}, output_device=where)

    def given(rows):
        batch = [{"data": OnDevice(ROWS[0])}, {"data": np.zeros(1)}, {"data": ROWS[1]}]
        batch += [{"data": ROWS[:rows], "request_size": rows}] if rows else []
        outcomes = backend(batch)
        assert [isinstance(error, InputError) for error in outcomes[:3]] == [False, True, False]
        results = [request["result"] for request in (batch[0], *batch[2:])]
        if where == "device":
            results = [{key: back(value) for key, value in one.items()} for one in results]
        backend._runner.end()
        for result, values in zip(results, (ROWS[0], ROWS[1], ROWS[:rows]), strict=False):
            assert np.array_equal(result["y"], -values)
        return {int(seen) for result in results for seen in np.atleast_1d(result["rows"])}

    assert given(0) == {2}
    assert given(1) == {8}
    assert given(4) == {8}
    assert given(4) == {8}


def test_ragged_rows_on_the_device_run_apart_and_are_not_padded(device, start, one_to_one):
    model = one_to_one(["n", "length"], op="Neg")
    rows = [ROWS[0, 0], ROWS[0, 1, :2].copy(), ROWS[1, 0]]
    grouped = start(model, ragged="group")
    batch = [{"data": OnDevice(row)} for row in rows]
    assert grouped(batch) is None
    assert all(np.array_equal(r["result"], -row) for r, row in zip(batch, rows, strict=True))
    whole = start(model, ragged="pad", crop={})
    batch = [{"data": row} for row in rows]
    assert whole(batch) is None
    assert [r["result"].tolist() for r in batch] == [[0, -1, -2], [-3, -4, 0], [-6, -7, -8]]
    padded = start(model, ragged="pad")
    batch = [{"data": row} for row in rows]
    assert padded(batch) is None
    assert [r["result"].tolist() for r in batch] == [[0, -1, -2], [-3, -4], [-6, -7, -8]]
    batch = [{"data": OnDevice(row)} for row in rows[:2]]
    with pytest.raises(BackendError, match="group"):
        padded.forward(batch)
    padded(batch)  # so each is run alone
    assert all(np.array_equal(r["result"], -row) for r, row in zip(batch, rows, strict=False))


def test_arrays_on_the_device_are_checked_as_others_are(device, start, one_to_one):
    backend = start(one_to_one(["n", 2, 3]))
    good = {"data": OnDevice(ROWS[0])}
    for wrong, word in (
        (OnDevice(ROWS[0].astype(np.float64)), "dtype"),
        (OnDevice(ROWS[0, :, :2].copy()), "shape"),
        (OnDevice(ROWS), "request_size"),
        (OnDevice(ROWS[0].T), "contiguous"),
        (OnDevice(ROWS[0], ordinal=1), "cuda:1"),
    ):
        bad, fine = backend([{"data": wrong}, dict(good)])
        assert fine is None
        assert isinstance(bad, InputError)
        assert bad.key == "data"
        assert word in str(bad)


def test_an_input_without_batch_axis_is_read_on_the_cpu_and_refused_elsewhere(device, start, save):
    path = save(
        [("Mul", ["x", "k"], ["y"], {})],
        [("x", TensorProto.FLOAT, ["n", 3]), ("k", TensorProto.FLOAT, [])],
        [("y", TensorProto.FLOAT, ["n", 3])],
    )
    backend = start(path)
    there = OnDevice(np.array(2, np.float32))
    for count in (1, 3):
        batch = [{"x": ROWS[0, 0], "k": 2.0 if i else there} for i in range(count)]
        first, *others = backend(batch)
        assert isinstance(first, InputError)
        assert (first.key, first.got) == ("k", "float32 [] on the device")
        assert others == [None] * (count - 1)
        assert all(np.array_equal(one["result"], ROWS[0, 0] * 2) for one in batch[1:])


@pytest.mark.parametrize(
    ("shape", "options"),
    [(["n", 2, 3], {}), ([2, "n", 3], {"batch_axis": {"x": 1, "y": 1}})],
    ids=["bound", "by way of numpy"],
)
def test_the_device_that_is_current_in_the_callers_thread_stays(
    device, start, one_to_one, monkeypatch, shape, options
):
    """ONNX Runtime makes the device of a session current in every thread that calls it."""
    current, make_session = [0], session.make_session

    class Current:
        def __init__(self, ordinal):
            assert ordinal == 0

        def __enter__(self):
            self.before = current[0]

        def __exit__(self, *error):
            current[0] = self.before

    class Session:
        def __init__(self, real):
            self.real = real

        def __getattr__(self, name):
            found = getattr(self.real, name)
            if not name.startswith("run"):
                return found

            def run(*args):
                current[0] = 1
                return found(*args)

            return run

        def __del__(self):
            current[0] = 1

    def make(*args, **options):
        current[0] = 1
        return Session(make_session(*args, **options))

    monkeypatch.setattr(cuda, "Current", Current)
    monkeypatch.setattr(session, "make_session", make)
    backend = start(one_to_one(shape), **options)
    assert current == [0]
    request = {"data": ROWS[0]}
    assert backend([request]) is None
    assert current == [0]
    backend.close()
    assert current == [0]


def test_a_device_that_is_lost_takes_the_instance_out(device, start, one_to_one, monkeypatch):
    backend = start(one_to_one(["n", 2, 3]))

    def fails(*args):
        raise RuntimeError("CUDA failure 700: an illegal memory access was encountered")

    monkeypatch.setattr(onnxruntime.InferenceSession, "run_with_iobinding", fails)
    (error,) = backend([{"data": ROWS[0]}])
    assert isinstance(error, InstanceLostError)
    timed_out = "CUDA failure 702: the launch timed out and was terminated"
    assert isinstance(cuda.lost_device(RuntimeError(timed_out)), InstanceLostError)
    assert cuda.lost_device(RuntimeError("CUDA failure 2: out of memory")) is None


def test_a_run_that_fails_late_leaves_nothing_that_the_next_one_finds(
    device, start, one_to_one, monkeypatch
):
    run = onnxruntime.InferenceSession.run_with_iobinding
    backend = start(one_to_one(["n", 2, 3], op="Neg"))

    def fails(session, binding, options=None):
        run(session, binding, options)
        raise RuntimeError("CUDA failure 2: out of memory")

    with monkeypatch.context() as patch:
        patch.setattr(onnxruntime.InferenceSession, "run_with_iobinding", fails)
        assert all(backend([{"data": row} for row in ROWS]))
    requests = [{"data": row} for row in ROWS[:2]]
    assert backend(requests) is None
    assert np.array_equal([one["result"] for one in requests], -ROWS[:2])


def test_where_a_session_computes(device, monkeypatch):
    monkeypatch.setattr(on_device, "stream_options", STREAM_OPTIONS)
    monkeypatch.setattr(
        on_device, "ON_CUDA", ("CUDAExecutionProvider", "TensorrtExecutionProvider")
    )
    context = headrace.InitContext()
    chosen = [
        ("TensorrtExecutionProvider", {"device_id": "1"}),
        ("CUDAExecutionProvider", {"device_id": "1", "user_compute_stream": "3"}),
        ("CPUExecutionProvider", {}),
    ]
    place = on_device.place_of(context, chosen, shared=False, cuda_graph=True)
    assert (place.ordinal, place.stream) == (1, 77)
    assert isinstance(context.store.instance.get(("cuda.stream", 1)), Stream)
    tensorrt, own, cpu = (options for _, options in place.providers)
    assert (tensorrt["user_compute_stream"], tensorrt["has_user_compute_stream"]) == ("77", "1")
    assert (own["user_compute_stream"], own["enable_cuda_graph"]) == ("3", "1")  # what is said wins
    assert own["cudnn_conv_algo_search"] == "HEURISTIC"
    assert "cudnn_conv_algo_search" not in tensorrt
    said = [("CUDAExecutionProvider", {"cudnn_conv_algo_search": "EXHAUSTIVE"})]
    place = on_device.place_of(context, said, shared=True, cuda_graph=False)
    assert place.providers == said
    assert cpu == {}
    shared = on_device.place_of(context, chosen[:1], shared=True, cuda_graph=False)
    assert shared.providers == chosen[:1]
    assert on_device.place_of(context, chosen[2:], shared=False, cuda_graph=False) is None


class Driver:
    """CUDA's driver, whose streams are memory of this process. It can load no kernel."""

    def __init__(self):
        self.calls = []

    def __getattr__(self, name):
        if not name.startswith("cu"):
            raise AttributeError(name)

        def function(*args):
            self.calls.append(name)
            if name == "cuMemcpyAsync":
                target, source, nbytes, stream = args
                assert stream == 77
                ctypes.memmove(target, source, nbytes)
            return 218 if name == "cuLibraryLoadData" else 0

        setattr(self, name, function)
        return function


@pytest.fixture
def lock_kept(device, monkeypatch):
    """Let cuda.py run as it is: give the driver, and the calls of the runtime, which release the interpreter lock."""
    driver, released = Driver(), []
    answers = {"cudaStreamCreateWithFlags": lambda flags: 77, "cudaGetDevice": lambda: 0}
    events, blocks = iter(range(1, 1000)), []
    answers["cudaEventCreateWithFlags"] = lambda flags: next(events)

    def pinned(nbytes):
        blocks.append(ctypes.create_string_buffer(nbytes))
        return ctypes.addressof(blocks[-1])

    def call(function, *args):
        released.append(function)
        return answers.get(function, lambda *args: None)(*args)

    answers["cudaMallocHost"] = pinned
    monkeypatch.setattr(ctypes, "PyDLL", lambda name: driver)
    for name, real in REAL.items():
        monkeypatch.setattr(cuda, name, real)
    monkeypatch.setattr(cuda, "call", call)
    monkeypatch.setattr(cuda, "runtime", MagicMock)
    caches = entering.load_driver, device_copies._driver_copy
    for cache in caches:
        cache.cache_clear()
    monkeypatch.setattr(cuda, "_copies", cuda._Copies())
    monkeypatch.setattr(cuda, "copy_within_device", cuda._copies.queue_copy)
    monkeypatch.setattr(cuda, "gather_within_device", cuda._copies.queue_gather)
    yield driver.calls, released
    for cache in caches:
        cache.cache_clear()


@pytest.mark.parametrize("output_device", ["cpu", "device"])
@pytest.mark.parametrize("where", ["host", "device", "both"])
def test_a_batch_lets_go_of_the_interpreter_lock_to_run_and_to_wait_alone(
    lock_kept, start, one_to_one, output_device, where
):
    called, released = lock_kept
    ends = []
    backend = start(
        one_to_one(["n", 2, 3], op="Neg"),
        {"batch": {"at_end": ends.append, "sizes": (3, 8), "max": 8}},
        output_device=output_device,
    )
    order = [2, 0, 3, 1, 2]  # not one behind the other
    for known in (False, True):
        called.clear()
        released.clear()
        places = [where == "device" or (where == "both" and k % 2) for k in range(5)]
        rows = [OnDevice(ROWS[k]) if on else ROWS[k] for k, on in zip(order, places, strict=True)]
        batch = [{"data": row} for row in rows]
        assert backend(batch) is None
        for end in ends:
            end()
        found = [request["result"] for request in batch]
        if known:  # events and pinned memory are there
            assert released == (["cudaEventSynchronize"] if output_device == "device" else [])
            copies = 1 if where == "host" else 5
            assert called.count("cuMemcpyAsync") == copies + 3  # three rows fill the batch up
            assert called.count("cuEventRecord") == len(released)
        found = found if output_device == "cpu" else list(map(back, found))
        assert np.array_equal(found, -ROWS[order])


@pytest.mark.parametrize("cuda_graph", [False, True])
@pytest.mark.parametrize("share", [False, True])
def test_a_session_runs_in_one_thread_of_each_instance_on_a_device(
    device, one_to_one, monkeypatch, cuda_graph, share
):
    """ONNX Runtime keeps handles and graphs per thread."""
    threads = []
    run = onnxruntime.InferenceSession.run_with_iobinding

    def noted(session, binding, options=None):
        threads.append(threading.current_thread())
        run(session, binding, options)

    monkeypatch.setattr(onnxruntime.InferenceSession, "run_with_iobinding", noted)
    config = {
        "backend": "OnnxTensor",
        "model": str(one_to_one(["n", 2, 3], op="Neg")),
        "providers": ["cpu"],
        "max": 2,
        "instance_num": 2,
        "share_weights": share,
        "cuda_graph": cuda_graph,
    }
    with headrace.pipe(config) as pipe:
        warm = set(threads)
        callers, results = [], []
        for row in (*ROWS, *ROWS):
            caller = threading.Thread(target=lambda r=row: results.append(pipe({"data": r})))
            callers.append(caller)
            caller.start()
        for caller in callers:
            caller.join()
        assert sorted(one["result"].sum() for one in results) == sorted(-ROWS.sum((1, 2)).repeat(2))
        assert set(threads) == warm
        assert len(warm) == 2
        assert warm.isdisjoint({threading.main_thread(), *callers})


@pytest.mark.parametrize(
    ("keys", "owned"),
    [
        ({}, False),
        ({"device": "cpu"}, False),
        ({"device": "cuda:1"}, True),
        ({"device": ["cpu", "cuda"]}, True),
        ({"device": "cuda", "providers": ["cpu"]}, False),
        ({"providers": ["CUDAExecutionProvider", "cpu"]}, True),
        ({"providers": ["TensorRT"]}, True),
        ({"providers": ["cpu", "cuda"]}, False),
        ({"providers": ["openvino"]}, False),
    ],
)
def test_only_on_cuda_an_instance_has_a_thread_of_its_own(one_to_one, keys, owned):
    config = {"backend": "OnnxTensor", "model": str(one_to_one(["n", 3])), **keys}
    node = headrace.explain(config)["nodes"]["main"]
    assert (node["owns_thread"], node["run_by"] == "own thread") == (owned, owned)


@pytest.mark.parametrize(
    ("sizes", "most", "expected"),
    [(None, 6, [1, 2, 4, 6]), (None, None, [1]), ((8, 2), 8, [2, 8]), (None, 8, [1, 2, 4, 8])],
)
def test_sizes_of_graphs(sizes, most, expected):
    assert on_device.sizes_to_capture(sizes, most) == expected


def test_on_the_cpu_the_options_for_a_device_change_nothing(start, one_to_one):
    backend = start(one_to_one(["n", 2, 3]), output_device="device", cuda_graph=True)
    request = {"data": ROWS[0]}
    assert backend([request]) is None
    assert isinstance(request["result"], np.ndarray)
    assert backend.describe()["cuda_graphs"] == []


def has_cuda():
    return "CUDAExecutionProvider" in onnxruntime.get_available_providers()


@pytest.mark.gpu
@pytest.mark.skipif(not has_cuda(), reason="this build of ONNX Runtime has no CUDA provider")
def test_it_computes_on_the_stream_of_its_instance_on_a_gpu(one_to_one):
    torch = pytest.importorskip("torch")
    streams = []

    @headrace.register("OrtStreamSpy", replace=True)
    class Spy(headrace.Backend):
        owns_thread = True

        def init(self, options, context):
            self.instance = context.store.instance

        def forward(self, batch):
            streams.append(self.instance.get(("cuda.stream", 0)).handle)
            for request in batch:
                request["result"] = request["data"]

    config = {
        "backend": "S[OnnxTensor,OrtStreamSpy]",
        "model": str(one_to_one(["n", 2, 3], op="Neg")),
        "device": "cuda:0",
        "output_device": "device",
    }
    with headrace.pipe(config) as pipe:
        result = torch.from_dlpack(pipe({"data": torch.from_numpy(ROWS[0]).cuda()})["result"])
    assert streams[0] != 0
    assert np.array_equal(result.cpu().numpy(), -ROWS[0])


def test_an_array_on_a_device_is_refused_by_a_session_on_the_cpu_with_both_places(
    start, one_to_one
):
    class OnDevice:
        def __dlpack_device__(self):
            return (2, 1)

        def __array__(self, *_args, **_kwargs):
            raise TypeError("can't convert to numpy")

    (error,) = start(one_to_one(["n", 4]))([{"data": OnDevice()}])
    assert error.got == "OnDevice on cuda:1"
    assert str(error.expected).endswith("on the CPU")


def test_a_thread_waits_awake_where_the_last_wait_was_short(monkeypatch):
    flags, waits, now = [], [], [0.0]
    takes = [1.0, cuda.SHORT_S / 2, cuda.SHORT_S / 2, 1.0, 1.0]

    def call(function, *args):
        if function == "cudaEventCreateWithFlags":
            flags.append(args[0])
            return args[0]
        if function == "cudaEventSynchronize":
            waits.append(args[0])
            now[0] += takes.pop(0)
        return 0

    monkeypatch.setattr(cuda, "call", call)
    monkeypatch.setattr(cuda, "load_driver", lambda: None)
    destroyed = []
    about = {"cudaEventDisableTiming": 2, "cudaEventBlockingSync": 1}
    fake = SimpleNamespace(**about, cudaEventDestroy=destroyed.append)
    monkeypatch.setattr(cuda, "runtime", lambda: fake)
    event = cuda.make_event(0)
    for _ in range(5):
        cuda.wait_for(7, event, lambda: now[0])
    assert waits == [3, 3, 2, 2, 3]
    cuda.close_event(event)
    assert sorted(destroyed) == sorted(flags) == [2, 3]


@pytest.fixture
def marks(monkeypatch):
    """Marks on streams that are none: give the thread, device and stream of each, and what waits for them."""
    found = SimpleNamespace(made=[], held_back=[], arrays={})

    class Mark:
        def __init__(self, ordinal, stream):
            found.made.append((threading.get_ident(), ordinal, stream))
            self.stream = stream

        def hold_back(self, stream):
            found.held_back.append((threading.get_ident(), stream))
            memory, values = found.arrays[self.stream]
            memory[...] = values

    monkeypatch.setattr("headrace_tensors.entering.mark_of", Mark)
    monkeypatch.setattr("headrace_tensors.entering.Mark.made", True)
    return found


def test_what_a_callers_stream_has_queued_is_waited_for(device, marks, one_to_one):
    config = {"backend": "OnnxTensor", "model": str(one_to_one(["n", 2, 3], op="Neg")), "max": 4}
    memory = np.full_like(ROWS, np.nan)
    marks.arrays = {100 + k: (memory[k], ROWS[k]) for k in range(3)}
    batch = [{"data": Queued(memory[k].__array_interface__, 100 + k)} for k in range(3)]
    with headrace.pipe(config) as pipe:
        results = [answer["result"] for answer in pipe(batch)]
    assert np.array_equal(np.stack(results), -ROWS[:3])
    me = threading.get_ident()
    assert sorted(marks.made) == [(me, 0, 100), (me, 0, 101), (me, 0, 102)]
    assert {stream for _, stream in marks.held_back} == {77}
    assert me not in {thread for thread, _ in marks.held_back}
