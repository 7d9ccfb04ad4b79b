"""The timing cache: times of kernels that builds have measured, kept in a file for later builds."""

from __future__ import annotations

import contextlib
import logging
from typing import TYPE_CHECKING, Any

from headrace.errors import SetupError
from headrace_formats import write_whole

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from headrace_trt.libraries.tensorrt import Library

__all__ = ["keep_apart", "refuse_without_timings", "using_timing_cache", "write_atomically"]

_log = logging.getLogger("headrace.trt")


def refuse_without_timings(library: Library) -> None:
    """Refuse a timing cache if the library has none.

    Raises:
        SetupError: The library is TensorRT for RTX, which measures no kernels while it builds.
    """
    if library.is_rtx or not library.has("ITimingCache"):
        raise SetupError(
            f"`timing_cache` is set, and {library.text} has no timing cache",
            hint="It builds ahead of time and measures no kernels; leave `timing_cache` out.",
        )


@contextlib.contextmanager
def using_timing_cache(library: Library, config: Any, path: Path | None) -> Iterator[None]:
    """Return the builder the timing cache of a file, and save the new measurements if the build succeeds.

    If two builds end at the same time, both keep their measurements: under a lock across processes the file is read
    again, combined with this build's cache, and replaced.

    Args:
        library: The installed TensorRT.
        config: The builder's configuration.
        path: The file. None: the builder uses a cache of its own, which is not saved.

    Raises:
        SetupError: The library has no timing cache.
    """
    if path is None:
        yield
        return
    refuse_without_timings(library)
    cache = _read(config, path)
    if not config.set_timing_cache(cache, False):
        _log.warning("%s was measured on another device or version: a new one is begun", path)
        cache = config.create_timing_cache(b"")
        config.set_timing_cache(cache, False)
    yield
    from filelock import FileLock

    path.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(f"{path}.lock"):
        timing = config.get_timing_cache() or cache
        other = _read(config, path)
        if not timing.combine(other, False):
            _log.debug("the new measurements could not be added to %s", path)
        write_atomically(path, memoryview(timing.serialize()))


def _read(config: Any, path: Path) -> Any:
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        content = b""
    cache = config.create_timing_cache(content)
    if cache is None:
        _log.warning("%s is no timing cache that can be read: a new one is begun", path)
        cache = config.create_timing_cache(b"")
    return cache


def keep_apart(target: Path, read: Mapping[str, Path | None]) -> None:
    """Refuse to write over a file that is read, also through a link.

    Args:
        target: The file that will be written.
        read: The files that are read, by a text that says what each is. None for a file that is not given.

    Raises:
        SetupError: ``target`` is one of the files that are read.
    """
    for role, path in read.items():
        if path is None:
            continue
        both = target.exists() and path.exists()
        if target.samefile(path) if both else target.resolve() == path.resolve():
            raise SetupError(
                f"this would overwrite {target}, which is {role}", hint="Name another file."
            )


def write_atomically(path: Path, content: bytes | memoryview) -> None:
    """Write a file so that readers see the old content or the new, never a part.

    Raises:
        OSError: The file cannot be written, or is a device or a pipe, whose place no file may take. No temporary file
            is left behind.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, content, sync=True)
