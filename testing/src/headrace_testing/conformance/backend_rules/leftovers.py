"""Rules that a closed backend leaves nothing behind: threads, files, warnings, device memory."""

from __future__ import annotations

import contextlib
import gc
import importlib
import io
import os
import sys
import tempfile
import threading
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace_testing.conformance.host import cuda_runtime
from headrace_testing.conformance.outcome import Broken
from headrace_testing.conformance.rule import Rule, rule

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from headrace_testing.conformance.subject import Subject

_CYCLES = 3
_PATIENCE = 30
_LAST_PATIENCE = 10 * _PATIENCE
"""How often to check, every 20 ms, whether threads and files are gone, after the last life, which decides."""

_DEVICE = "bytes on devices"
_MEMORY_BYTES = 1 << 20
"""Changes of device memory up to this size may come from other processes on the same device."""


def _life(subject: Subject) -> None:
    """Build the backend, run a valid batch and an invalid request, and close the backend."""
    live = subject.build()
    live.results(live.take(subject.item))
    live.alone({})
    subject.done(live)


def _measured(subject: Subject) -> dict[str, list[int]]:
    """Return the counts after each of several lives, by the name of what is counted."""
    if _measured not in subject.measured:
        subject.measured[_measured] = _lives(subject)
    counts: dict[str, list[int]] = subject.measured[_measured]
    return counts


def _lives(subject: Subject) -> dict[str, list[int]]:
    """Count after each of several lives: what a library starts once and keeps is in the first count."""
    with _temporary_folder() as temporary:
        return _counted(subject, temporary)


def _counted(subject: Subject, temporary: Path) -> dict[str, list[int]]:
    _life(subject)
    counters = dict(_counters(temporary))
    counts = {name: [count()] for name, count in counters.items()}
    for left in reversed(range(_CYCLES)):
        _life(subject)
        before = {name: numbers[-1] for name, numbers in counts.items()}
        for name, count in _quiet(counters, before, _PATIENCE if left else _LAST_PATIENCE).items():
            counts[name].append(count())
    return counts


@contextlib.contextmanager
def _temporary_folder() -> Iterator[Path]:
    """Make the process put its temporary files into a folder of their own."""
    names = ("TMPDIR", "TEMP", "TMP")
    before, environ = tempfile.tempdir, {name: os.environ.get(name) for name in names}
    with tempfile.TemporaryDirectory(prefix="headrace-conformance-") as folder:
        try:
            tempfile.tempdir = folder
            os.environ.update(dict.fromkeys(names, folder))
            yield Path(folder)
        finally:
            tempfile.tempdir = before
            for name, value in environ.items():
                if value is None:
                    del os.environ[name]
                else:
                    os.environ[name] = value


def _quiet(
    counters: dict[str, Callable[[], int]], before: dict[str, int], turns: int
) -> dict[str, Callable[[], int]]:
    """Wait a moment for threads and files that go away by themselves; then give the counters."""
    pause = threading.Event()
    for turn in range(turns):
        if all(counters[name]() <= limit for name, limit in before.items()):
            break
        if turn % 10 == 0:
            gc.collect()
        pause.wait(0.02)
    return counters


def _counters(temporary: Path) -> Iterator[tuple[str, Callable[[], int]]]:
    """Return the functions that count, as far as this platform allows."""
    yield "temporary files", lambda: sum(1 for _ in temporary.rglob("*"))
    # Only new threads are counted: a thread that was there before may end meanwhile.
    known = set(threading.enumerate())
    yield "threads", lambda: len(set(threading.enumerate()) - known)
    tasks = Path("/proc/self/task")
    if tasks.is_dir():
        native = {task.name for task in tasks.iterdir()}
        yield "native threads", lambda: len({task.name for task in tasks.iterdir()} - native)
    if next(tasks.glob("*/children"), None) is not None:
        yield "processes", lambda: sum(_children(task) for task in tasks.glob("*/children"))
    folder = next((p for p in (Path("/proc/self/fd"), Path("/dev/fd")) if p.is_dir()), None)
    if folder is None:
        yield "files", _open_files
    else:
        yield "file descriptors", lambda: sum(1 for _ in folder.iterdir())
    yield from _device_counters()


def _children(task: Path) -> int:
    with contextlib.suppress(OSError):  # the folder of a thread that has just ended is gone
        return len(task.read_text().split())
    return 0


def _grown(subject: Subject, name: str, least: int = 1) -> list[int] | None:
    """Return the counts when they grew with every life, by at least ``least`` in all."""
    counts = _measured(subject).get(name)
    if counts is None or counts[-1] - counts[0] < least:
        return None
    return counts if all(counts[i] < counts[i + 1] for i in range(_CYCLES)) else None


@rule("threads-left", "closes-unused")
def threads_left(subject: Subject) -> str:
    """A thread that outlives its backend holds memory, and may keep the process from ending.

    The backend is built, used and closed several times. The number of threads (of Python, and on Linux of the
    whole process) and on Linux the number of started processes does not grow each time. Threads that a
    library starts once and keeps are allowed.
    """
    before = set(threading.enumerate())
    if _grown(subject, "threads"):
        new = sorted({t.name for t in threading.enumerate() if t not in before})
        raise Broken(f"close leaves a thread running: {', '.join(new)}".removesuffix(": "))
    counts = _grown(subject, "native threads")
    if counts:
        raise Broken(f"close leaves native threads running: {counts} after each life")
    counts = _grown(subject, "processes")
    if counts:
        raise Broken(f"close leaves processes running: {counts} after each life")
    return _looked(subject, "threads", "native threads", "processes")


def _looked(subject: Subject, *names: str) -> str:
    counted = [name for name in names if name in _measured(subject)]
    return f"counted {' and '.join(counted)}"


@rule("files-left", "closes-unused")
def files_left(subject: Subject) -> str:
    """Each file that stays open takes a file descriptor, until the process has none left.

    Over several lives the number of file descriptors of the process (where the platform does not tell it, of
    Python's open file objects) does not grow each time, nor does the number of temporary files and folders.
    """
    for name, how in (
        ("files", "open"),
        ("file descriptors", "open"),
        ("temporary files", "behind"),
    ):
        counts = _grown(subject, name)
        if counts:
            raise Broken(f"close leaves {name} {how}: {counts} after each life")
    return _looked(subject, "files", "file descriptors", "temporary files")


def _open_files() -> int:
    return sum(1 for thing in gc.get_objects() if _is_open_file(thing))


def _is_open_file(thing: object) -> bool:
    if type(thing).__module__ not in ("_io", "socket", "mmap"):
        return False
    with contextlib.suppress(Exception):
        return isinstance(thing, (io.FileIO, io.BufferedIOBase)) and not thing.closed
    return False


@rule("warnings-left", "closes-unused")
def warnings_left(subject: Subject) -> None:
    """A warning in production is noise or a defect, with `-W error` it is an exception.

    A whole life, and the garbage collection after it, emits no warning (a ResourceWarning tells of
    something that was not closed), raises no error where none can be caught (as in a destructor), and
    ends no thread with an error.
    """
    _life(subject)
    gc.collect()
    with _listening() as heard:
        _life(subject)
        gc.collect()
    if heard:
        raise Broken(f"a life of it emits {heard[0]}")


@contextlib.contextmanager
def _listening() -> Iterator[list[str]]:
    """Record warnings, and errors in destructors and threads, which no caller can catch."""
    heard: list[str] = []
    hooks = sys.unraisablehook, threading.excepthook
    sys.unraisablehook = lambda lost: heard.append(f"{lost.err_msg}: {lost.exc_value!r}")
    threading.excepthook = lambda lost: heard.append(f"in a thread {lost.exc_value!r}")
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            yield heard
            heard += [f"{warning.category.__name__}: {warning.message}" for warning in caught]
    finally:
        sys.unraisablehook, threading.excepthook = hooks


@rule("device-memory-left", "closes-unused")
def device_memory_left(subject: Subject) -> str:
    """Device memory is scarce: a program that builds one pipeline after another must not lose some of it each time.

    Where the backend has loaded torch or cuda-python and a device is in use, the memory of this process there
    is read after each of several lives, and does not grow each time. Without nvidia-ml-py it is the memory of
    all processes: then let no other one use the device.
    """
    looked = [name for name in _measured(subject) if name.startswith(_DEVICE)]
    for name in looked:
        counts = _grown(subject, name, _MEMORY_BYTES)
        if counts:
            raise Broken(f"close leaves memory on a device ({name}): {counts} after each life")
    return _looked(subject, *looked) if looked else "it uses no device"


def _device_counters() -> Iterator[tuple[str, Callable[[], int]]]:
    """Return functions of the loaded libraries that return the bytes in use on a device."""
    torch: Any = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available() and torch.cuda.is_initialized():

        def allocated() -> int:
            return sum(torch.cuda.memory_allocated(i) for i in range(torch.cuda.device_count()))

        yield f"{_DEVICE} of torch", allocated
    runtime = cuda_runtime()
    if runtime is not None:
        error, _, total = runtime.cudaMemGetInfo()
        if _own_bytes():
            yield f"{_DEVICE} of CUDA", _own_bytes
        elif int(error) == 0:
            yield f"{_DEVICE} of CUDA", lambda: total - runtime.cudaMemGetInfo()[1]


def _own_bytes() -> int:
    """Return the bytes of this process on all devices; 0 where NVML does not tell.

    Source:
        ``nvmlDeviceGetComputeRunningProcesses`` and ``nvmlProcessInfo_t`` of the NVML API.
    """
    try:
        nvml: Any = importlib.import_module("pynvml")
        nvml.nvmlInit()
    except Exception:  # noqa: BLE001 - it is not installed, or has an error of its own that says why not
        return 0
    try:
        handles = map(nvml.nvmlDeviceGetHandleByIndex, range(nvml.nvmlDeviceGetCount()))
        lists = map(nvml.nvmlDeviceGetComputeRunningProcesses, handles)
        own = [
            process for processes in lists for process in processes if process.pid == os.getpid()
        ]
        return sum(process.usedGpuMemory or 0 for process in own)
    except nvml.NVMLError:
        return 0
    finally:
        nvml.nvmlShutdown()


RULES: tuple[Rule, ...] = (threads_left, files_left, warnings_left, device_memory_left)
