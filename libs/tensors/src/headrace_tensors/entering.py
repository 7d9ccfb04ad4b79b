"""Orders an instance behind what its callers have queued on their streams, by events and without a wait of the host.

`enter` runs in the thread of a caller, as a request comes in, and `wait_for_callers` in the thread of the instance. No
library is imported for it. CUDA's driver is called with the interpreter lock kept: to get the lock back from other threads
would take longer than any of these calls.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import sys
from ctypes import byref
from typing import TYPE_CHECKING, Any, ClassVar, Final, Protocol

from headrace.errors import BackendError, InputError, InstanceLostError
from headrace_tensors.lost import is_lost

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from typing import TypeAlias

    CallerStream = tuple[int | None, int]
    AnyMark: TypeAlias = "Mark | DefaultStream"

__all__ = [
    "LEGACY",
    "PER_THREAD",
    "DefaultStream",
    "DeviceStream",
    "Mark",
    "device_context",
    "enter",
    "mark_of",
    "marks_of",
    "order_behind",
    "torch_stream",
    "wait_for_callers",
]


class DeviceStream(Protocol):
    """The stream of an instance on a device, which backends of several plugins share.

    It is in ``context.store.instance`` under ``("cuda.stream", ordinal)``, where ``ordinal`` is the
    number of the CUDA device. The first backend of the instance that needs it makes it, by
    ``context.store.instance.get_or_create``. The others queue their work on it, so that it runs in
    their order without a wait. The store closes it with the instance. It is recognised by these
    two members, never by its class.

    Attributes:
        handle: The ``cudaStream_t`` as an int. 0 is the default stream.
    """

    @property
    def handle(self) -> int:
        """The ``cudaStream_t`` as an int."""

    def close(self) -> None:
        """Wait for what is queued, and destroy the stream. Called once, after the backends were closed."""


LEGACY: Final = 1
"""The handle of the legacy default stream of CUDA; 0 is the same stream."""
PER_THREAD: Final = 2
"""The handle of the default stream of the calling thread."""

_CUDA: Final = 2  # the number of CUDA in DLPack
_DISABLE_TIMING: Final = 2
_RELAXED: Final = 2
_passed: Final[set[type]] = {type(None), bool, int, float, complex, str, bytes, bytearray}
"""Types of values that are on the host, or finished; those of numpy and of Headrace's plugins are added as they come."""
_free: Final[dict[int, list[int]]] = {}
"""The events that nobody holds, by context."""


def _streams_of(value: Any) -> Iterable[CallerStream]:
    """Return the streams on which work for a value of a request may be queued. To be called in the caller's thread.

    What is read for each kind of array:

    - a tensor of torch: torch's current stream of the tensor's device.
    - ``__cuda_array_interface__`` (CuPy, numba): its ``stream``.
    - DLPack alone: ``__dlpack__(stream=PER_THREAD)`` orders the default stream of the calling thread behind the work of
      the array's maker.

    Arrays of Headrace's own plugins are results of a batch, so they are finished. The elements of lists, tuples and dicts
    are looked at, but not what is inside these.

    Returns:
        The number of the device (None: the one that is current in the thread) and the handle of each stream.
    """
    kind = type(value)
    if kind is list or kind is tuple or kind is dict:
        inside = value.values() if kind is dict else value
        if _passed.issuperset(map(type, inside)):
            return ()
        return {stream for element in inside for stream in _streams_of_array(element)}
    return _streams_of_array(value)


def _streams_of_array(value: Any) -> Iterable[CallerStream]:
    kind = type(value)
    if kind in _passed:
        return ()
    torch: Any = sys.modules.get("torch")
    tensor: Any = getattr(torch, "Tensor", ())
    if isinstance(value, tensor):
        ordinal = value.get_device()
        return ((ordinal, torch_stream(torch, ordinal)),) if value.is_cuda else ()
    if kind.__module__.startswith(("numpy", "headrace_")):
        _passed.add(kind)
        return ()
    try:
        return _streams_told(value)
    except Exception:  # noqa: BLE001 - a foreign array may raise anything. Reading it reports the error
        return ()


def _streams_told(value: Any) -> Iterable[CallerStream]:
    """Ask an array of any other library."""
    place = getattr(value, "__dlpack_device__", None)
    where = None if place is None else place()
    about = getattr(value, "__cuda_array_interface__", None)
    if about is not None:
        handle = about.get("stream")
        return () if handle is None else ((None if where is None else int(where[1]), int(handle)),)
    if where is None or int(where[0]) != _CUDA:
        return ()
    value.__dlpack__(stream=PER_THREAD)
    return ((int(where[1]), PER_THREAD),)


def torch_stream(torch: Any, ordinal: int) -> int:
    """Return the handle of torch's current stream; without a Stream object, if this version of torch allows it."""
    try:
        return int(torch._C._cuda_getCurrentRawStream(ordinal))
    except AttributeError:
        return int(torch.cuda.current_stream(ordinal).cuda_stream)


def enter(
    request: Mapping[str, Any], *, call: dict[Any, Any] | None = None
) -> tuple[AnyMark, ...] | None:
    """Put a mark on each stream on which the calling thread may still be writing arrays of a request.

    Args:
        request: The request.
        call: What is known of the streams since the call began that brings this request, perhaps with others.

    Returns:
        The marks. None if all the streams are idle. The legacy default stream of a device gets none: from its first use on
        `marks_of` has it for every batch with arrays of other libraries, also those of other streams.
    """
    known = {} if call is None else call
    marks: dict[AnyMark, None] = {}
    for value in request.values():
        if type(value) in _passed:
            continue
        for stream in _streams_of(value):
            ordinal, handle = stream
            if handle <= LEGACY and ordinal is not None:
                if ordinal not in _default_streams:
                    _default_streams[ordinal] = DefaultStream(ordinal)
                continue
            if stream not in known:
                known[stream] = mark_of(ordinal, handle)
            if known[stream] is not None:
                marks[known[stream]] = None
    return tuple(marks) or None


def marks_of(
    batch: Iterable[Mapping[str, Any]], entered: Callable[[Any], tuple[AnyMark, ...] | None]
) -> set[AnyMark]:
    """Return the marks of all requests of a batch; ``entered`` returns what `enter` has returned for one.

    The default streams are among them if a value may be an array of another library on a device.
    """
    marks: set[AnyMark] = set()
    if _default_streams and not all(
        _passed.issuperset(map(type, request.values())) for request in batch
    ):
        marks.update(_default_streams.values())
    if Mark.made:
        marks.update(mark for request in batch for mark in entered(request) or ())
    return marks


def wait_for_callers(
    batch: Iterable[Mapping[str, Any]],
    entered: Callable[[Any], tuple[AnyMark, ...] | None],
    stream: int,
) -> None:
    """Make ``stream`` wait once for each mark of the requests of a batch, see `marks_of`."""
    for mark in marks_of(batch, entered):
        mark.hold_back(stream)


def order_behind(stream: int, first: int, ordinal: int | None) -> None:
    """Make later work on ``stream`` wait for the work that is queued on ``first``.

    Both are streams of the device ``ordinal``, which need not be the one that is current in this thread. None: it is.
    """
    mark = None if stream == first else mark_of(ordinal, first)
    if mark is not None:
        mark.hold_back(stream)


def mark_of(ordinal: int | None, handle: int) -> Mark | None:
    """Put a mark behind the work that is queued on a stream now. None if the stream is idle, or there is no driver.

    Args:
        ordinal: The number of the stream's device. None: it is not known, a default stream is one of the device that is
            current in this thread.
        handle: The handle of the stream.

    Raises:
        InputError: The stream is being captured.
        BackendError: The driver refused the stream.
        InstanceLostError: The device can run nothing more in this process.
    """
    driver = load_driver()
    if driver is None:
        return None
    # In another mode, a capture in any thread of the process would be broken off by this thread's question.
    mode = ctypes.c_int(_RELAXED)
    driver.cuThreadExchangeStreamCaptureMode(byref(mode))
    try:
        # A default stream is one of the device that is current in the thread.
        here = handle > PER_THREAD or ordinal is None or _devices(driver) == 1
        if here and _is_idle(driver, handle):
            return None
        context = _context_of(driver, ordinal, handle)
        _check(driver, "cuCtxPushCurrent", driver.cuCtxPushCurrent_v2(context))
        try:
            # The first answer may have been an error, because no context was current.
            return None if _is_idle(driver, handle) else Mark(driver, context, handle)
        finally:
            driver.cuCtxPopCurrent_v2(byref(ctypes.c_void_p()))
    finally:
        driver.cuThreadExchangeStreamCaptureMode(byref(mode))


class Mark:
    """A mark behind the work that is queued on a stream now, for which other streams wait.

    Args:
        driver: The driver.
        context: The context of the stream, which is current in this thread.
        handle: The handle of the stream.

    Attributes:
        made: Whether this process has ever made one. Until then no batch looks for one.
    """

    __slots__ = ("_context", "_driver", "_event", "_home")
    made: ClassVar[bool] = False

    def __init__(self, driver: Any, context: int, handle: int) -> None:
        self._driver, self._context = driver, context
        home = _free.setdefault(context, [])
        try:
            event = home.pop()
        except IndexError:
            created = ctypes.c_void_p()
            _check(driver, "cuEventCreate", driver.cuEventCreate(byref(created), _DISABLE_TIMING))
            event = created.value or 0
        _check(driver, "cuEventRecord", driver.cuEventRecord(event, handle))
        self._event, self._home = event, home
        Mark.made = True

    def hold_back(self, stream: int) -> None:
        """Make later work on ``stream``, which may be one of another device, wait for the work before the mark."""
        driver = self._driver
        # A default stream is one of the current context, and some thread may have none.
        if stream > PER_THREAD and not driver.cuStreamWaitEvent(stream, self._event, 0):
            return
        _check(driver, "cuCtxPushCurrent", driver.cuCtxPushCurrent_v2(self._context))
        try:
            number = driver.cuStreamWaitEvent(stream, self._event, 0)
            _check(driver, "cuStreamWaitEvent", number)
        finally:
            driver.cuCtxPopCurrent_v2(byref(ctypes.c_void_p()))

    def __del__(self) -> None:
        # A stream that waits keeps what was recorded, so the event may be recorded anew at once.
        home = getattr(self, "_home", None)
        if home is not None:
            home.append(self._event)


class DefaultStream:
    """The legacy default stream of a device, which all threads share. It is asked once per batch, and not in each call.

    Args:
        ordinal: The number of the device.
    """

    __slots__ = ("_ordinal",)

    def __init__(self, ordinal: int) -> None:
        self._ordinal = ordinal

    def hold_back(self, stream: int) -> None:
        """Make later work on ``stream`` wait for the work that is queued on the default stream now."""
        mark = mark_of(self._ordinal, LEGACY)
        if mark is not None:
            mark.hold_back(stream)


_default_streams: Final[dict[int, DefaultStream]] = {}
"""Those on which callers have worked, by device."""
_CALLS: Final = {
    "cuCtxGetCurrent": (ctypes.c_void_p,),
    "cuCtxPopCurrent_v2": (ctypes.c_void_p,),
    "cuCtxPushCurrent_v2": (ctypes.c_void_p,),
    "cuDeviceGet": (ctypes.c_void_p, ctypes.c_int),
    "cuDeviceGetCount": (ctypes.c_void_p,),
    "cuDevicePrimaryCtxRetain": (ctypes.c_void_p, ctypes.c_int),
    "cuEventCreate": (ctypes.c_void_p, ctypes.c_uint),
    "cuEventRecord": (ctypes.c_void_p, ctypes.c_void_p),
    "cuGetErrorName": (ctypes.c_int, ctypes.c_void_p),
    "cuMemGetAddressRange_v2": (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint64),
    "cuPointerGetAttribute": (ctypes.c_void_p, ctypes.c_int, ctypes.c_uint64),
    "cuStreamGetCtx": (ctypes.c_void_p, ctypes.c_void_p),
    "cuStreamIsCapturing": (ctypes.c_void_p, ctypes.c_void_p),
    "cuStreamQuery": (ctypes.c_void_p,),
    "cuStreamWaitEvent": (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint),
    "cuThreadExchangeStreamCaptureMode": (ctypes.c_void_p,),
}


@functools.cache
def load_driver() -> Any:
    """Return CUDA's driver; None without one."""
    try:
        driver = ctypes.PyDLL("nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1")
        for name, kinds in _CALLS.items():
            getattr(driver, name).argtypes = kinds
    except (OSError, AttributeError):
        return None
    return driver


def _is_idle(driver: Any, handle: int) -> bool:
    """Return whether all work of a stream is done; False also if the driver reports an error."""
    captures = ctypes.c_int()
    error = driver.cuStreamIsCapturing(handle, byref(captures))
    if captures.value or error == _CAPTURE_IMPLICIT:
        raise InputError(
            "the calling thread captures a CUDA graph on its stream, of which the pipeline cannot be part",
            hint="Call the pipeline before or after the capture.",
        )
    return not error and not driver.cuStreamQuery(handle)


_CAPTURE_IMPLICIT: Final = 906  # of the legacy stream, while a stream that waits for it is captured


@contextlib.contextmanager
def device_context(ordinal: int) -> Iterator[None]:
    """Make a device current in this thread for a block, for calls of CUDA's driver and of its runtime.

    Afterwards the thread has what it had, also if that was nothing. The runtime's ``cudaSetDevice`` could not go back
    without using the device that was current before, which takes some 500 MB of its memory.

    Args:
        ordinal: The number of the device.

    Raises:
        BackendError: The driver has no such device.
        InstanceLostError: The device can run nothing more in this process.
    """
    driver = load_driver()
    if driver is not None:
        context = _primary(driver, ordinal)
        _check(driver, "cuCtxPushCurrent", driver.cuCtxPushCurrent_v2(context))
    try:
        yield
    finally:
        if driver is not None:
            driver.cuCtxPopCurrent_v2(byref(ctypes.c_void_p()))


@functools.cache
def _devices(driver: Any) -> int:
    count = ctypes.c_int()
    _check(driver, "cuDeviceGetCount", driver.cuDeviceGetCount(byref(count)))
    return count.value


def _context_of(driver: Any, ordinal: int | None, handle: int) -> int:
    """Return the context of a device that all users of CUDA's runtime share. None: the one of a stream."""
    if ordinal is None:
        context = ctypes.c_void_p()
        if handle > PER_THREAD:
            _check(driver, "cuStreamGetCtx", driver.cuStreamGetCtx(handle, byref(context)))
        else:
            _check(driver, "cuCtxGetCurrent", driver.cuCtxGetCurrent(byref(context)))
        if context.value:
            return context.value
    return _primary(driver, ordinal or 0)


@functools.cache
def _primary(driver: Any, ordinal: int) -> int:
    device, context = ctypes.c_int(), ctypes.c_void_p()
    _check(driver, "cuDeviceGet", driver.cuDeviceGet(byref(device), ordinal))
    number = driver.cuDevicePrimaryCtxRetain(byref(context), device)
    _check(driver, "cuDevicePrimaryCtxRetain", number)
    return context.value or 0


def _check(driver: Any, call: str, number: int) -> None:
    if not number:
        return
    name = ctypes.c_char_p()
    driver.cuGetErrorName(number, byref(name))
    problem = f"{call} says {(name.value or b'error').decode()} ({number})"
    if is_lost(number=number):
        raise InstanceLostError(
            f"{problem}: the device can run nothing more in this process",
            hint="Start the process again; CUDA_LAUNCH_BLOCKING=1 shows which call it was.",
        )
    raise BackendError(problem)
