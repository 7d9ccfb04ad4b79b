"""Fixes the choice of tactics in a file: the first build records it, later builds replay it."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

from headrace.errors import SetupError
from headrace_trt.timing import write_atomically

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from headrace_trt.library import Library

__all__ = ["using_tactics"]


@contextlib.contextmanager
def using_tactics(
    library: Library,
    config: Any,
    path: Path | None,
    *,
    timed: bool = False,
    optimization_level: int | None = None,
) -> Iterator[None]:
    """Record the choice of tactics in the file ``path``, or replay the choice that is there.

    The file is an editable timing cache, and a layer that is not in it is an error.

    Args:
        library: The installed TensorRT.
        config: The builder's configuration.
        path: The file. None: the choice is free.
        timed: Whether the configuration has a timing cache of its own.
        optimization_level: The optimization level of the build, which must not be 0. At level 0 TensorRT takes the
            first kernel that runs, without comparing kernels or using a timing cache, so there is no choice to fix.

    Raises:
        SetupError: The library has no editable timing caches, the level is 0, ``timed`` is true, or the file is of
            another version or device.
    """
    if path is None:
        yield
        return
    if library.is_rtx or not library.has("BuilderFlag.EDITABLE_TIMING_CACHE"):
        raise SetupError(
            f"`tactics` is set, and {library.text} does not let them be chosen: it has no editable"
            " timing cache that it uses",
            hint="Leave `tactics` out, or use TensorRT 10.8 or newer. With an older one"
            " `polygraphy convert --save-tactics` records tactics, and `LoadTensorrtEngine` takes its plan.",
        )
    if optimization_level == 0:
        raise SetupError(
            "`tactics` is set with optimization_level = 0, at which TensorRT takes the first kernel"
            " that runs instead of choosing one",
            hint="Set optimization_level to 1 or more, or leave `tactics` out.",
        )
    if timed:
        raise SetupError(
            "`tactics` and `timing_cache` are set, and both are a timing cache: a build has one",
            hint="Leave `timing_cache` out.",
        )
    trt = library.trt
    config.set_flag(trt.BuilderFlag.EDITABLE_TIMING_CACHE)
    replay = path.is_file()
    cache = config.create_timing_cache(path.read_bytes() if replay else b"")
    if cache is None or not config.set_timing_cache(cache, False):
        raise SetupError(
            f"{path} is no timing cache of {library.text} and this device",
            hint="Tactics of one version mean nothing to another: name another file.",
        )
    if replay:
        config.set_flag(trt.BuilderFlag.ERROR_ON_TIMING_CACHE_MISS)
    yield
    if not replay:
        made = config.get_timing_cache() or cache
        write_atomically(path, memoryview(made.serialize()))
