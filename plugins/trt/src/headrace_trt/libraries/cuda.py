"""The few calls of the CUDA runtime that an instance needs, with errors as exceptions.

No call waits for a whole device. The first call that needs a CUDA context makes it. Importing this module does not.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from headrace.errors import BackendError, InstanceLostError, NoMemoryError, SetupError
from headrace.plugins import library
from headrace_tensors import is_lost
from headrace_tensors.device_copies import DeviceCopies
from headrace_tensors.entering import device_context

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from numpy.typing import NDArray

__all__ = ["Cuda", "CudaError", "device_of", "load_cuda", "request_error"]

OUT_OF_MEMORY: Final = 2


class CudaError(RuntimeError):
    """A call of the CUDA runtime failed.

    Attributes:
        number: The number of the ``cudaError_t``.
    """

    def __init__(self, call: str, number: int, text: str) -> None:
        self.number = number
        super().__init__(f"{call} failed: {text} (error {number})")

    @property
    def lost(self) -> bool:
        """Whether the CUDA context cannot be used any more."""
        return is_lost(number=self.number)

    @property
    def out_of_memory(self) -> bool:
        """Whether the device has too little free memory."""
        return self.number == OUT_OF_MEMORY


def request_error(error: CudaError) -> BackendError:
    """Return the error with which requests fail: InstanceLostError if the context is lost, else one for this batch."""
    if error.lost:
        return InstanceLostError(
            f"the device failed: {error}",
            hint="The CUDA context of this process is gone: start the process anew.",
        )
    if error.out_of_memory:
        return NoMemoryError(str(error), hint="Lower `max` or the number of instances.")
    return BackendError(str(error))


class Cuda(DeviceCopies):
    """The CUDA runtime, called through cuda-bindings. Sizes are in bytes, addresses are ints."""

    def __init__(self, runtime: Any) -> None:
        self._rt = runtime
        self._any = runtime.cudaMemcpyKind.cudaMemcpyDefault
        self._copy = runtime.cudaMemcpyAsync
        self._flags = runtime.cudaEventDisableTiming

    def _check(self, answer: Any, call: str) -> Any:
        error, *values = answer
        number = int(error)
        if number:
            text = self._rt.cudaGetErrorString(error)[1]
            text = text.decode() if isinstance(text, bytes) else str(text)
            # An error that is not sticky is cleared here; otherwise the next call would report it again.
            self._rt.cudaGetLastError()
            raise CudaError(call, number, text)
        return values[0] if len(values) == 1 else values

    def device_count(self) -> int:
        """Return the number of devices; 0 without a driver."""
        try:
            return int(self._check(self._rt.cudaGetDeviceCount(), "cudaGetDeviceCount"))
        except (CudaError, RuntimeError):
            return 0

    def set_device(self, ordinal: int) -> None:
        """Let the calling thread use a device."""
        self._check(self._rt.cudaSetDevice(ordinal), "cudaSetDevice")

    def on_device(self, ordinal: int) -> AbstractContextManager[None]:
        """Let the calling thread use a device for a block, and then the one that it used before."""
        return device_context(ordinal)

    def describe(self, ordinal: int) -> dict[str, Any]:
        """Return name, compute capability, memory and driver of a device."""
        about = self._check(self._rt.cudaGetDeviceProperties(ordinal), "cudaGetDeviceProperties")
        name = about.name.decode() if isinstance(about.name, bytes) else str(about.name)
        driver = self._check(self._rt.cudaDriverGetVersion(), "cudaDriverGetVersion")
        return {
            "name": name.rstrip("\0"),
            "compute_capability": f"{about.major}.{about.minor}",
            "cuda_driver": f"{driver // 1000}.{driver % 1000 // 10}",
        }

    def memory_bytes(self) -> tuple[int, int]:
        """Return free and total memory of the current device."""
        free, total = self._check(self._rt.cudaMemGetInfo(), "cudaMemGetInfo")
        return int(free), int(total)

    def malloc(self, nbytes: int) -> int:
        """Take memory of the current device."""
        return int(self._check(self._rt.cudaMalloc(nbytes), "cudaMalloc"))

    def free(self, pointer: int) -> None:
        """Give memory of a device back."""
        self._check(self._rt.cudaFree(pointer), "cudaFree")

    def host_malloc(self, nbytes: int) -> int:
        """Take pinned memory of the host, from and to which copies run beside computation."""
        return int(self._check(self._rt.cudaHostAlloc(nbytes, 0), "cudaHostAlloc"))

    def host_free(self, pointer: int) -> None:
        """Give pinned memory back."""
        self._check(self._rt.cudaFreeHost(pointer), "cudaFreeHost")

    def copy(self, target: int, source: int, nbytes: int, stream: int) -> None:
        """Copy between host or device memory, in order on ``stream``."""
        (error,) = self._copy(target, source, nbytes, self._any, stream)
        if int(error):
            self._check((error,), "cudaMemcpyAsync")

    def stream_create(self) -> int:
        """Make a stream that does not wait for the default one."""
        flags = self._rt.cudaStreamNonBlocking
        return int(self._check(self._rt.cudaStreamCreateWithFlags(flags), "cudaStreamCreate"))

    def stream_destroy(self, stream: int) -> None:
        """End a stream."""
        self._check(self._rt.cudaStreamDestroy(stream), "cudaStreamDestroy")

    def stream_synchronize(self, stream: int) -> None:
        """Wait until the work queued on a stream is done; the interpreter lock is released meanwhile."""
        self._check(self._rt.cudaStreamSynchronize(stream), "cudaStreamSynchronize")

    def event_create(self, *, timing: bool = False) -> int:
        """Make an event."""
        flags = 0 if timing else self._flags
        return int(self._check(self._rt.cudaEventCreateWithFlags(flags), "cudaEventCreate"))

    def event_destroy(self, event: int) -> None:
        """End an event."""
        self._check(self._rt.cudaEventDestroy(event), "cudaEventDestroy")

    def event_record(self, event: int, stream: int) -> None:
        """Mark a place on a stream."""
        self._check(self._rt.cudaEventRecord(event, stream), "cudaEventRecord")

    def event_synchronize(self, event: int) -> None:
        """Wait until an event has happened."""
        self._check(self._rt.cudaEventSynchronize(event), "cudaEventSynchronize")

    def event_elapsed_ms(self, first: int, last: int) -> float:
        """Return the time between two events that were made with ``timing``."""
        return float(
            self._check(self._rt.cudaEventElapsedTime(first, last), "cudaEventElapsedTime")
        )

    def read(self, target: NDArray[Any], source: int, stream: int, ordinal: int) -> None:
        """Copy device memory to the host, in order on ``stream``, and wait for it."""
        with self.on_device(ordinal):
            self.copy(target.ctypes.data, source, target.nbytes, stream)
            self.stream_synchronize(stream)

    def begin_capture(self, stream: int) -> None:
        """Record the work that this thread queues on ``stream`` from now on, instead of running it."""
        mode = self._rt.cudaStreamCaptureMode.cudaStreamCaptureModeThreadLocal
        self._check(self._rt.cudaStreamBeginCapture(stream, mode), "cudaStreamBeginCapture")

    def end_capture(self, stream: int) -> Any:
        """End recording and give a graph that `graph_launch` runs."""
        graph = self._check(self._rt.cudaStreamEndCapture(stream), "cudaStreamEndCapture")
        try:
            return self._check(self._rt.cudaGraphInstantiate(graph, 0), "cudaGraphInstantiate")
        finally:
            self._rt.cudaGraphDestroy(graph)

    def graph_launch(self, graph: Any, stream: int) -> None:
        """Queue a recorded graph."""
        (error,) = self._rt.cudaGraphLaunch(graph, stream)
        if int(error):
            self._check((error,), "cudaGraphLaunch")

    def graph_destroy(self, graph: Any) -> None:
        """End a graph."""
        self._check(self._rt.cudaGraphExecDestroy(graph), "cudaGraphExecDestroy")


_loaded: dict[str, Cuda] = {}


def load_cuda() -> Cuda:
    """Return the CUDA runtime of this process.

    Raises:
        MissingDependencyError: cuda-bindings is not installed.
    """
    if "cuda" not in _loaded:
        _loaded["cuda"] = Cuda(library("cuda.bindings.runtime", "headrace-trt"))
    return _loaded["cuda"]


def device_of(device: str | None, cuda: Cuda) -> int:
    """Return the ordinal that a node's ``device`` names. Unset means ``cuda:0``.

    Raises:
        SetupError: ``device`` is no CUDA device, or this machine has no device of that number.
    """
    text = (device or "cuda:0").strip().lower()
    kind, _, number = text.partition(":")
    if kind != "cuda" or not (number.isdigit() or not number):
        raise SetupError(
            f"TensorRT cannot run on the device {device!r}",
            hint="Write device = 'cuda:0', or leave it out: that is the default.",
        )
    ordinal, count = int(number or 0), cuda.device_count()
    if ordinal >= count:
        listed = ", ".join(f"cuda:{number}" for number in range(count))
        devices = f"there are: {listed}" if count else "there is no CUDA device"
        raise SetupError(
            f"there is no device 'cuda:{ordinal}': {devices}",
            hint="Is the driver installed, and the device visible (CUDA_VISIBLE_DEVICES)?",
        )
    return ordinal
