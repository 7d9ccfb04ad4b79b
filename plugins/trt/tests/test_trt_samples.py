"""The common batch, one sample per request: what is copied, and that every request gets its own row."""

import ctypes
import functools
import itertools
import sys
from types import SimpleNamespace

import numpy as np
import pytest
from fake_device import FakeCuda, FakeEngine, FakeLibrary, nothing_left
from onnx import TensorProto as T

import headrace
from headrace.errors import BackendError, SetupError
from headrace_tensors import gather
from headrace_tensors.device_arrays import StreamRef
from headrace_trt import DeviceArray
from headrace_trt.engines.engine import Engine
from headrace_trt.engines.signature import read_signature
from headrace_trt.libraries import cuda as cuda_module
from headrace_trt.libraries.cuda import CudaError
from headrace_trt.running.gathering import Gathering
from headrace_trt.running.memory import DevicePool
from headrace_trt.running.options import InferOptions
from headrace_trt.running.runner import Runner
from headrace_trt.running.spans import SpannedRunner, Spans
from headrace_trt.tools import benching
from headrace_trt.tools.benching import Lane, bench_engine

pytest.importorskip("onnxruntime")
WEIGHTS = np.random.default_rng(0).standard_normal((64, 2)).astype(np.float32)
ROWS = np.random.default_rng(1).standard_normal((8, 64)).astype(np.float32)
EXPECTED = ROWS @ WEIGHTS


@pytest.mark.parametrize("sample", [(), (3,), (3, 100, 300), (1100, 1000)])
@pytest.mark.parametrize("library", [None, "cv2"])
def test_samples_are_gathered_as_numpy_stacks_them(sample, library, monkeypatch):
    monkeypatch.setitem(sys.modules, "cv2", library and pytest.importorskip(library))
    rows = np.random.default_rng(5).integers(0, 255, (3, *sample)).astype(np.uint16)
    values = [np.asarray(row) for row in rows]
    for given in (values, [np.asfortranarray(one) for one in values]):
        wanted = np.stack(given)
        view = np.zeros(wanted.nbytes, np.uint8)
        size, in_order = given[0].nbytes, all(one.flags.c_contiguous for one in given)
        assert gather(given, view, size) == (in_order and (size <= 1 << 16 or library is not None))
        if in_order and (size <= 1 << 16 or library is not None):
            np.testing.assert_array_equal(view.view(np.uint16).reshape(wanted.shape), wanted)


class Machine:
    """A runner on a device of host memory, used as the words use it."""

    def __init__(self, model, reported=None, **settings):
        self.cuda = FakeCuda()
        profile = {"x": ((1, 64), (4, 64), (8, 64))}
        fake = FakeEngine(self.cuda, model, [profile])
        engine = Engine(FakeLibrary(), None, fake, label="it", ordinal=0)
        self.stream = self.cuda.stream_create()
        make = Runner
        if reported is not None:
            spans = Spans(self.cuda, self.stream, lambda *one: reported.append(one), "cuda:0")
            make = functools.partial(SpannedRunner, spans=spans)
        self.runner = make(
            engine, self.cuda, self.stream, profile=0, signature=read_signature(engine),
            keys={"x": "data"}, options=InferOptions(**settings), context=headrace.InitContext(),
        )  # fmt: skip
        self.gathering = Gathering(self.runner)
        self.pool = DevicePool(self.cuda, self.stream, 0)

    def put(self, values):
        """Return an array on the device, in a block of its own."""
        block = self.pool.take(values.nbytes)
        staged = np.ascontiguousarray(values)
        self.cuda.copy(block.pointer, staged.ctypes.data, staged.nbytes, self.stream)
        self.cuda.stream_synchronize(self.stream)
        ref = StreamRef(self.stream)
        return DeviceArray(
            self.cuda, block.pointer, values.shape, "float32", ordinal=0, stream=ref, owner=block
        )

    def run(self, values, *, gathered):
        """Give the results of one batch on the host, and the sizes of the copies to its input."""
        batch = [{"data": value} for value in values]
        self.cuda.copies.clear()
        if not gathered:
            assert self.runner.forward(batch) is None
        else:
            assert self.gathering.gather(batch) is None
            whole = {"data": batch[0]["result"], "request_size": len(batch)}
            assert self.gathering.run(whole)
            split = [dict(request) for request in batch]
            for request, own in zip(batch, split, strict=True):
                request["data"] = whole["result"]
                own.clear()
            self.gathering.split(batch)
            self.gathering.finish()
        sizes = [nbytes for _, _, nbytes in self.cuda.copies]
        self.runner.finish()
        results = [request["result"] for request in batch]
        on_host = [r.get() if isinstance(r, DeviceArray) else r for r in results]
        return on_host, sizes


@pytest.fixture
def model(save):
    return save(
        [("MatMul", ["x", "w"], ["y"], {})],
        [("x", T.FLOAT, ["n", 64])],
        [("y", T.FLOAT, ["n", 2])],
        [("w", WEIGHTS)],
    )


@pytest.mark.parametrize("gathered", [False, True])
@pytest.mark.parametrize(
    ("order", "copied"),
    [
        ([0, 1, 2, 3], []),
        ([0, 1, 2, 3, 4, 5, 6, 7], []),
        ([0, 1, 4, 5, 6, 3], [256] * 6),
        ([2, 2, 1], [256, 256, 256]),
        ([5], []),
    ],
)
def test_rows_that_lie_together_are_one_copy_or_none(model, order, copied, gathered):
    machine = Machine(model, output_device="device")
    whole = machine.put(ROWS)
    found, sizes = machine.run([whole[i] for i in order], gathered=gathered)
    assert sizes == copied
    assert np.allclose(found, EXPECTED[order], atol=1e-5)


@pytest.mark.parametrize("gathered", [False, True])
def test_neighbours_of_different_allocations_are_copied_apart(model, gathered):
    machine = Machine(model, output_device="device")
    whole = machine.put(ROWS[:2])
    second = whole[1]
    second._owner = object()  # what happens to lie behind it
    found, sizes = machine.run([whole[0], second], gathered=gathered)
    assert sizes == [256, 256]
    assert np.allclose(found, EXPECTED[:2], atol=1e-5)


@pytest.mark.parametrize("gathered", [False, True])
@pytest.mark.parametrize("graph", [False, True])
def test_samples_of_the_host_are_one_copy_in_and_one_out(model, gathered, graph):
    machine = Machine(model, cuda_graph=graph)
    strided = np.asfortranarray(ROWS)
    for values in (list(ROWS), list(strided), list(ROWS[:3])):
        found, sizes = machine.run(values, gathered=gathered)
        assert sizes == [256 * len(values), 8 * len(values)]
        assert np.allclose(found, EXPECTED[: len(values)], atol=1e-5)


@pytest.mark.parametrize("gathered", [False, True])
def test_what_is_kept_of_one_batch_is_not_changed_by_the_next(model, gathered):
    machine = Machine(model, output_device="device")
    batch = [{"data": machine.put(row)} for row in ROWS]
    results = [machine.run([r["data"] for r in batch], gathered=gathered)[0] for _ in range(3)]
    for found in results:
        assert np.allclose(found, EXPECTED, atol=1e-5)


@pytest.mark.parametrize("gathered", [False, True])
def test_an_output_that_is_longer_than_the_batch_is_not_cut_into_rows(save, gathered):
    model = save(
        [("Transpose", ["x"], ["y"], {"perm": [1, 0]})],
        [("x", T.FLOAT, ["n", "m"])],
        [("y", T.FLOAT, ["m", "n"])],
    )
    with pytest.raises(BackendError, match=r"'y' is \[64, 2\] for a batch of 2 rows"):
        Machine(model).run(list(ROWS[:2]), gathered=gathered)


def test_a_graph_reads_its_own_buffer(model):
    machine = Machine(model, output_device="device", cuda_graph=True)
    whole = machine.put(ROWS)
    for order in ([0, 1], [2, 3]):
        found, sizes = machine.run([whole[i] for i in order], gathered=False)
        assert sizes[0] == 512
        assert np.allclose(found, EXPECTED[order], atol=1e-5)


class Driver:
    """The driver's functions for kernels, which copy on the host what a launch would copy on a device."""

    def __init__(self, *, load=0, launch=0):
        self.errors = SimpleNamespace(load=load, launch=launch)
        self.launches = []
        pointer, number = ctypes.c_void_p, ctypes.c_uint
        self.names = []
        loads = (pointer, ctypes.c_char_p, pointer, pointer, number, pointer, pointer, number)
        self.cuLibraryLoadData = ctypes.PYFUNCTYPE(ctypes.c_int, *loads)(self.loaded)
        finds = (pointer, pointer, ctypes.c_char_p)
        self.cuLibraryGetKernel = ctypes.PYFUNCTYPE(ctypes.c_int, *finds)(self.found)
        launches = (pointer, *[number] * 7, pointer, pointer, pointer)
        self.cuLaunchKernel = ctypes.PYFUNCTYPE(ctypes.c_int, *launches)(self.launched)

    def loaded(self, library, text, *_):
        self.text = text.decode()
        return self.errors.load

    def found(self, kernel, library, name):
        self.names.append(name.decode())
        ctypes.c_void_p.from_address(kernel).value = len(self.names)
        return 0

    def launched(self, kernel, across, rows, deep, threads, *rest):
        *_, stream, parameters, extra = rest
        at = (ctypes.c_uint64 * 3).from_address(parameters)
        target, units, first = (ctypes.c_uint64.from_address(one).value for one in at)
        sources = (ctypes.c_uint64 * 64).from_address(at[2])
        assert (deep, rest[:3], extra, first) == (1, (1, 1, 0), None, sources[0])
        assert threads % 32 == 0
        assert (across - 1) * threads < units <= across * threads
        unit = int(self.names[kernel - 1].removeprefix("gather_"))
        self.launches.append((unit, rows, stream))
        if not self.errors.launch:
            for row in range(rows):
                ctypes.memmove(target + row * units * unit, sources[row], units * unit)
        return self.errors.launch


@pytest.mark.parametrize("driver", [{}, {"load": 218}, {"launch": 700}], ids=str)
@pytest.mark.parametrize(
    ("step", "row_bytes", "unit"),
    [(64, 48, 16), (64, 20, 4), (20, 16, 4), (64, 7, 1), (13, 4, 1), (8192, 8192, 16)],
)
@pytest.mark.parametrize("count", [1, 2, 64, 150])
def test_rows_of_a_device_are_gathered_by_one_launch(
    monkeypatch, driver, step, row_bytes, unit, count
):
    """A driver that cannot load the kernel, or refuses the launch, copies them one by one."""
    single, refuses = [], bool(driver)
    driver = Driver(**driver)
    monkeypatch.setattr(ctypes, "PyDLL", lambda name: driver)
    made = cuda_module.Cuda.__new__(cuda_module.Cuda)
    made.queue_copy = lambda *what: single.append(what) or ctypes.memmove(*what[:3])
    memory = np.random.default_rng(0).integers(0, 256, step * count + row_bytes + 64, np.uint8)
    room = np.zeros(row_bytes * count + 64, np.uint8)
    source, target = memory.ctypes.data + -memory.ctypes.data % 64, room.ctypes.data
    start, target = source - memory.ctypes.data, target + -target % 64
    order = np.random.default_rng(1).permutation(count).tolist()
    for _ in range(2):
        room[:] = 0
        made.queue_gather(target, [source + step * place for place in order], row_bytes, 77)
        found = room[target - room.ctypes.data :][: row_bytes * count].reshape(count, row_bytes)
        for row, place in zip(found, order, strict=True):
            assert np.array_equal(row, memory[start + step * place :][:row_bytes])
    launches = [(unit, rows, 77) for rows in (*[64] * (count // 64), count % 64) if rows]
    if count == 1:
        assert driver.launches == []
    elif refuses:
        assert driver.launches == ([] if driver.errors.load else launches[:1])
    else:
        assert driver.launches == launches * 2
    assert len(single) == (2 * count if refuses or count == 1 else 0)


@pytest.mark.parametrize("gathered", [False, True])
@pytest.mark.parametrize("settings", [{}, {"output_device": "device"}, {"cuda_graph": True}])
def test_a_run_reports_its_three_parts_once(model, gathered, settings):
    reported = []
    machine = Machine(model, reported, **settings)
    machine.runner.warm_up()
    assert reported == []
    for count in (4, 2):
        found, _ = machine.run(list(ROWS[:count]), gathered=gathered)
        assert np.allclose(found, EXPECTED[:count], atol=1e-5)
        assert [name for name, *_ in reported] == ["copy in", "computation", "copy out"]
        assert {track for *_, track in reported} == {"cuda:0"}
        for (_, _, ended, _), (_, started, _, _) in itertools.pairwise(reported):
            assert started == ended
        reported.clear()


@pytest.mark.parametrize("values", [list(ROWS), [ROWS[:3], ROWS[3:]]], ids=["samples", "rows"])
def test_what_the_host_gathers_is_no_time_of_the_device(model, values, monkeypatch):
    order = []
    machine = Machine(model, reported=[])
    arena, cuda = machine.runner._arena, machine.cuda
    for owner, name in ((arena, "take"), (cuda, "event_record"), (cuda, "queue_copy")):
        real = getattr(owner, name)
        note = lambda *a, real=real, name=name: order.append(name) or real(*a)  # noqa: E731
        monkeypatch.setattr(owner, name, note)
    requests = [{"data": one} for one in values]
    for request, one in zip(requests, values, strict=True):
        if one.ndim > 1:
            request["request_size"] = len(one)
    assert machine.runner.forward(requests) is None
    machine.runner.finish()
    assert order[:3] == ["take", "event_record", "queue_copy"]


def test_tools_run_engines_with_values_that_decide_shapes_and_leave_nothing(save, monkeypatch):
    model = save(
        [("Expand", ["x", "size"], ["y"], {})],
        [("x", T.FLOAT, ["n", 1]), ("size", T.INT64, [2])],
        [("y", T.FLOAT, ["n", "k"])],
    )
    cuda = FakeCuda()
    profile = {"x": ((1, 1), (1, 1), (1, 1)), "size": ((1, 1), (1, 4), (1, 8))}
    fake = FakeEngine(cuda, model, [profile], on_host=["size"])
    engine = Engine(FakeLibrary(), None, fake, label="it", ordinal=0)
    with nothing_left(cuda):
        found = bench_engine(engine, cuda, window_s=0.001, most_s=0.01)
        assert found.shapes == {"x": (1, 1), "size": (2,)}
        with (
            monkeypatch.context() as patched
        ):  # windows of no time, of which three fit into the whole
            asked = []
            patched.setattr(benching, "_window", lambda _, s: asked.append(s) or (1, 1.0, [1.0]))
            bench_engine(engine, cuda, window_s=0.25, most_s=0.3)
            bench_engine(engine, cuda, window_s=0.25, most_s=3)
        assert asked == pytest.approx([0.1] * 3 + [0.25] * 3)
        lane = Lane(engine, cuda, read_signature(engine), found.shapes, profile=0, copies=False)
        assert lane.execution.outputs == {"y": (1, 4)}
        lane.close()
        with pytest.raises(SetupError, match="the values of input 'size' decide shapes"):
            bench_engine(engine, cuda, shapes={"size": (1, 2)})
        with pytest.raises(SetupError, match=r"there is no input 'z'"):
            bench_engine(engine, cuda, shapes={"z": (1, 1)})
        with pytest.raises(SetupError, match=r"input 'x' takes float32 \[1, 1\], not \[9, 1\]"):
            bench_engine(engine, cuda, shapes={"x": (9, 1)})
        with pytest.raises(SetupError, match="it has no optimization profile -1"):
            bench_engine(engine, cuda, profile=-1)
        free = cuda.most_bytes
        cuda.most_bytes = 256  # for one buffer, not for two
        with pytest.raises(CudaError, match="out of memory"):
            bench_engine(engine, cuda)
        cuda.most_bytes = free
    assert cuda.streams == {}
