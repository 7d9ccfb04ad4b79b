"""A device made of host memory, and engines that ONNX Runtime computes: what instances do is real.

Work is queued as on a device: nothing is done before a stream is waited for, so that whoever reads too
early sees it. Addresses, sizes, double frees and what is left over are checked.
"""

import contextlib
import ctypes
import itertools
import threading
from collections import deque
from types import SimpleNamespace

import numpy as np

from headrace_trt.libraries.cuda import Cuda, CudaError

POISON = 0xAB


class FakeCuda:
    """The calls of `headrace_trt.libraries.cuda.Cuda` on memory of the host."""

    def __init__(self, devices=1, most_bytes=1 << 30):
        self.devices = devices
        self.most_bytes = most_bytes
        self.memory = {}
        self.pinned = {}
        self.streams = {}
        self.handles = itertools.count(1000)
        self.copies = deque(
            maxlen=16
        )  # the last ones: what is tested for keeping nothing uses this device
        self.waits = 0
        self.captures = {}
        self.launches = 0
        self.fail_next = None
        self.here = threading.local()
        self.homes = {}

    def device_count(self):
        return self.devices

    @property
    def current(self):
        """The device that is current in this thread."""
        return getattr(self.here, "ordinal", 0)

    def set_device(self, ordinal):
        assert ordinal < self.devices
        self.here.ordinal = ordinal

    @contextlib.contextmanager
    def on_device(self, ordinal):
        before = self.current
        self.set_device(ordinal)
        yield
        self.set_device(before)

    def describe(self, ordinal):
        return {"name": "Fake", "compute_capability": "9.9", "cuda_driver": "99.0"}

    def memory_bytes(self):
        used = sum(len(raw) for raw, _ in self.memory.values())
        return self.most_bytes - used, self.most_bytes

    @staticmethod
    def _aligned(nbytes):
        raw = (ctypes.c_ubyte * (nbytes + 256))()
        address = ctypes.addressof(raw)
        pointer = -(-address // 256) * 256
        ctypes.memset(pointer, POISON, nbytes)
        return pointer, raw

    def malloc(self, nbytes):
        if self.memory_bytes()[0] < nbytes:
            raise CudaError("cudaMalloc", 2, "out of memory")
        pointer, raw = self._aligned(nbytes)
        self.memory[pointer] = (raw, nbytes)
        self.homes[pointer] = self.current
        return pointer

    def at_home(self, thing):
        """Check that this thread is on the device of a thing: else CUDA would begin to use the thread's device too."""
        assert self.homes.pop(thing) == self.current, "a call in a thread on another device"

    def free(self, pointer):
        assert pointer in self.memory, "freed twice, or never taken"
        self.at_home(pointer)
        _, nbytes = self.memory[pointer]
        ctypes.memset(pointer, POISON, nbytes)
        del self.memory[pointer]

    def cuMemGetAddressRange_v2(self, base, size, pointer):  # noqa: N802 - the driver's name
        """Tell the allocation in which an address lies."""
        for at, (_, length) in list(self.memory.items()):
            if at <= pointer < at + length:
                base._obj.value, size._obj.value = at, length
                return 0
        return 500

    def host_malloc(self, nbytes):
        pointer, raw = self._aligned(nbytes)
        self.pinned[pointer] = raw
        self.homes[pointer] = self.current
        return pointer

    def host_free(self, pointer):
        self.at_home(pointer)
        del self.pinned[pointer]

    def stream_create(self):
        handle = next(self.handles)
        self.streams[handle] = []
        self.homes[handle] = self.current
        return handle

    def stream_destroy(self, stream):
        assert not self.streams.pop(stream), "a stream was ended with work on it"
        self.at_home(stream)

    def queue(self, stream, work):
        if stream in self.captures:
            self.captures[stream].append(work)
        else:
            self.streams.setdefault(stream, []).append(work)

    def copy(self, target, source, nbytes, stream):
        if self.fail_next:
            number, self.fail_next = self.fail_next, None
            raise CudaError("cudaMemcpyAsync", number, "made to fail")
        for address in (target, source):
            for at, (_, length) in list(self.memory.items()):
                if at <= address < at + length < address + nbytes:
                    raise CudaError("cudaMemcpyAsync", 1, "invalid argument")
        self.copies.append((target, source, nbytes))
        if target in self.memory and not self._is_known(source):
            held = ctypes.string_at(source, nbytes)  # memory that is not pinned is read at once
            self.queue(stream, lambda: ctypes.memmove(target, held, nbytes))
            return
        self.queue(stream, lambda: ctypes.memmove(target, source, nbytes))

    def _is_known(self, address):
        """Tell whether an address lies in memory of the device, or in pinned memory."""
        blocks = [(at, nbytes) for at, (_, nbytes) in list(self.memory.items())]
        blocks += [(at, len(raw)) for at, raw in list(self.pinned.items())]
        return any(at <= address < at + nbytes for at, nbytes in blocks)

    def queue_copy(self, target, source, nbytes, stream):
        self.copy(target, source, nbytes, stream)

    def queue_gather(self, target, sources, row_bytes, stream):
        for source in sources:
            self.copy(target, source, row_bytes, stream)
            target += row_bytes

    def stream_synchronize(self, stream):
        self.waits += 1
        assert self.homes.get(stream, self.current) == self.current
        work, self.streams[stream] = self.streams.get(stream, []), []
        for step in work:
            step()

    def event_create(self, *, timing=False):
        event = next(self.handles)
        self.homes[event] = self.current
        return event

    def event_destroy(self, event):
        self.at_home(event)

    def event_record(self, event, stream):
        home = self.homes.get(stream, self.current if stream < 10 else 0)
        assert self.homes[event] == home, "an event of another device"
        if stream in self.streams and stream > 10:
            self.stream_synchronize(stream)

    def event_synchronize(self, event):
        pass

    def event_elapsed_ms(self, first, last):
        return 1.0

    read = Cuda.read

    def begin_capture(self, stream):
        assert stream not in self.captures
        self.captures[stream] = []

    def end_capture(self, stream):
        return self.captures.pop(stream)

    def graph_launch(self, graph, stream):
        self.launches += 1
        for step in graph:
            self.queue(stream, step)

    def graph_destroy(self, graph):
        graph.clear()


class _Mode:
    INPUT, OUTPUT = "INPUT", "OUTPUT"


class _Location:
    DEVICE, HOST = "DEVICE", "HOST"


class _Base:
    """What a class of TensorRT is to its subclasses."""


FAKE_TRT = SimpleNamespace(
    TensorIOMode=_Mode,
    TensorLocation=_Location,
    IOutputAllocator=_Base,
    IProfiler=_Base,
    ExecutionContextAllocationStrategy=SimpleNamespace(
        STATIC="STATIC", ON_PROFILE_CHANGE="ON_PROFILE_CHANGE", USER_MANAGED="USER_MANAGED"
    ),
)

_KINDS = {
    "tensor(float)": ("FLOAT", np.float32),
    "tensor(float16)": ("HALF", np.float16),
    "tensor(int64)": ("INT64", np.int64),
    "tensor(int32)": ("INT32", np.int32),
    "tensor(uint8)": ("UINT8", np.uint8),
    "tensor(bool)": ("BOOL", np.bool_),
}


class FakeEngine:
    """An ``ICudaEngine`` over an ONNX Runtime session.

    ``profiles``: per profile ``{input: (min, opt, max)}``. ``data_dependent``: outputs whose shapes
    are told only by the run. ``narrowed``: lengths that the first profile fixes are told as such.
    ``on_host``: inputs whose values decide shapes; the profile holds their values. Outputs there are written on the host.
    """

    def __init__(self, cuda, model, profiles=({},), data_dependent=(), narrowed=False, on_host=()):
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        options.log_severity_level = 4
        self.session = onnxruntime.InferenceSession(str(model), options)
        self.cuda = cuda
        self.takes = {port.name: port for port in self.session.get_inputs()}
        self.gives = {port.name: port for port in self.session.get_outputs()}
        self.profiles = profiles
        self.data_dependent = data_dependent
        self.narrowed = narrowed
        self.on_host = on_host
        self.names = [*self.takes, *self.gives]
        self.num_io_tensors = len(self.names)
        self.num_optimization_profiles = len(profiles)
        self.device_memory_size_v2 = 4096
        self.contexts = []

    def port(self, name):
        return self.takes.get(name) or self.gives[name]

    def get_tensor_name(self, i):
        return self.names[i]

    def get_tensor_mode(self, name):
        return _Mode.INPUT if name in self.takes else _Mode.OUTPUT

    def get_tensor_dtype(self, name):
        return SimpleNamespace(name=_KINDS[self.port(name).type][0])

    def get_tensor_shape(self, name):
        shape = tuple(n if isinstance(n, int) else -1 for n in self.port(name).shape)
        if not self.narrowed:
            return shape
        (low, _, high), *_ = self.profiles[0].values()
        known = [a if a == b else -1 for a, b in zip(low, high, strict=True)]
        if name in self.takes:
            return tuple(known)
        return (known[0] if shape[0] == -1 else shape[0], *shape[1:])

    def get_tensor_location(self, name):
        return _Location.HOST if name in self.on_host else _Location.DEVICE

    def get_tensor_profile_values(self, profile, name):
        return self.profiles[profile][name]

    def get_tensor_profile_shape(self, name, profile):
        fixed = self.get_tensor_shape(name)
        return self.profiles[profile].get(name, (fixed, fixed, fixed))

    def create_execution_context(self, strategy):
        made = FakeContext(self, strategy)
        self.contexts.append(made)
        return made


class FakeContext:
    """An ``IExecutionContext``: shapes and addresses as set, computed when the stream gets there."""

    def __init__(self, engine, strategy):
        self.engine = engine
        self.strategy = strategy
        self.profile = None
        self.shapes = {}
        self.addresses = {}
        self.allocators = {}
        self.memory = None
        self.runs = 0

    def set_optimization_profile_async(self, index, stream):
        self.profile = index
        return True

    def set_device_memory(self, pointer, nbytes):
        assert nbytes >= self.engine.device_memory_size_v2
        self.memory = pointer

    def set_input_shape(self, name, shape):
        ranges = {} if name in self.engine.on_host else self.engine.profiles[self.profile]
        low, _, high = ranges.get(name, (shape,) * 3)
        if not all(a <= n <= b for a, n, b in zip(low, shape, high, strict=True)):
            return False
        self.shapes[name] = tuple(shape)
        return True

    def infer_shapes(self):
        return [name for name in self.engine.takes if name not in self.shapes]

    def _run(self, feeds):
        return dict(zip(self.engine.gives, self.engine.session.run(None, feeds), strict=True))

    def _read(self, name):
        dtype = np.dtype(_KINDS[self.engine.takes[name].type][1])
        shape = self.shapes[name]
        raw = ctypes.string_at(self.addresses[name], int(np.prod(shape)) * dtype.itemsize)
        return np.frombuffer(raw, dtype).reshape(shape)

    def get_tensor_shape(self, name):
        known = {
            key: self._read(key)
            if key in self.engine.on_host
            else np.zeros(shape, _KINDS[self.engine.takes[key].type][1])
            for key, shape in self.shapes.items()
        }
        shape = self._run(known)[name].shape
        return tuple(-1 for _ in shape) if name in self.engine.data_dependent else shape

    def set_tensor_address(self, name, pointer):
        assert pointer % 256 == 0 or name in self.engine.on_host
        self.addresses[name] = pointer
        return True

    def set_output_allocator(self, name, allocator):
        self.allocators[name] = allocator

    def execute_async_v3(self, stream):
        assert self.strategy != "USER_MANAGED" or self.memory is not None
        self.runs += 1
        self.refused = False
        addresses, shapes = dict(self.addresses), dict(self.shapes)
        values = {  # read now, not later
            name: self._read(name) for name in self.engine.on_host if name in self.engine.takes
        }
        assert all(name in addresses for name in self.engine.takes)

        def work():
            feeds = dict(values)
            for name, shape in shapes.items():
                if name in values:
                    continue
                dtype = np.dtype(_KINDS[self.engine.takes[name].type][1])
                nbytes = int(np.prod(shape)) * dtype.itemsize
                raw = ctypes.string_at(addresses[name], nbytes)
                feeds[name] = np.frombuffer(raw, dtype).reshape(shape)
            for name, value in self._run(feeds).items():
                value = np.ascontiguousarray(value)
                pointer = addresses.get(name)
                if name in self.allocators:
                    size = max(value.nbytes, 1)
                    pointer = self.allocators[name].reallocate_output_async(
                        name, 0, size, 256, stream
                    )
                    if not pointer:
                        self.refused = True
                        return
                    self.allocators[name].notify_shape(name, value.shape)
                ctypes.memmove(pointer, value.ctypes.data, value.nbytes)

        self.engine.cuda.queue(stream, work)
        if self.allocators and stream not in self.engine.cuda.captures:
            self.engine.cuda.stream_synchronize(stream)  # the sizes are known when this returns
        return not self.refused


class FakeLibrary:
    """The part of `headrace_trt.libraries.tensorrt.Library` that running needs."""

    trt = FAKE_TRT
    name = text = "fake"
    version = "0"
    is_rtx = False

    def has(self, path):
        return hasattr(FAKE_TRT, path.partition(".")[0])

    def need(self, path, option):
        return getattr(FAKE_TRT, path)

    def choice(self, enum, name, option):
        return getattr(getattr(FAKE_TRT, enum), name.upper())


class OnDevice:
    """An array on the fake device as another library brings it: the CUDA array interface."""

    def __init__(self, cuda, array, strides=None, stream=None):
        self.array = np.ascontiguousarray(array)
        self.pointer = cuda.malloc(max(self.array.nbytes, 1))
        ctypes.memmove(self.pointer, self.array.ctypes.data, self.array.nbytes)
        self.__cuda_array_interface__ = {
            "shape": self.array.shape,
            "typestr": self.array.dtype.str,
            "data": (self.pointer, False),
            "version": 3,
            "strides": strides,
            "stream": stream,
        }


@contextlib.contextmanager
def nothing_left(cuda):
    """Check that all memory taken meanwhile is given back."""
    before = set(cuda.memory)
    yield
    assert set(cuda.memory) <= before
    assert not cuda.pinned
