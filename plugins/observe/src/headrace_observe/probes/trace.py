"""The probe Trace, and the function `trace`, which attaches it to a pipeline for a while."""

from __future__ import annotations

from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pydantic

import headrace
from headrace.hookspecs import attached
from headrace_observe.extras import library
from headrace_observe.probes.recording import Recording

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterator

__all__ = ["Trace", "UnhurriedTrace", "trace"]

_MAX_BYTES = 256_000_000


def _leave_to_others(*_: object) -> None:
    """Record nothing of an element or span: `trace` does."""


class Trace:
    """The probe that writes batches, requests, elements and device work of a pipeline as a timeline.

    The file is in the Trace Event Format. Without ``path`` the probe writes nothing, but lets `trace` record elements
    and device work.
    """

    """The methods that the pipeline calls take no lock: they change dicts and deques, each in one atomic step."""

    element_done: Callable[..., None] = staticmethod(_leave_to_others)
    span_done: Callable[..., None] = staticmethod(_leave_to_others)

    class Options(headrace.Options):
        """What is recorded, and the file.

        Attributes:
            path: The file (JSON); without one only `trace` records.
            sample: The share of requests, each with its batch.
            max_bytes: The largest size of the file; beyond it the oldest events are dropped.
            nvtx: Whether elements become NVTX ranges too, for Nsight Systems.
        """

        positional = ("path",)

        path: headrace.OutputPath | None = None
        sample: float = pydantic.Field(1.0, gt=0, le=1)
        max_bytes: int = pydantic.Field(_MAX_BYTES, ge=100_000)
        nvtx: bool = False

    def __init__(self, options: Trace.Options) -> None:
        """Begin to record, if there is a path.

        Raises:
            MissingDependencyError: ``nvtx`` is asked for and not installed.
            SetupError: The file cannot be written.
        """
        self._recording: Recording | None = None
        self._nvtx: Any = library("nvtx", "gpu", "nvtx = true") if options.nvtx else None
        # The pipeline measures only for methods that a probe has, and calls them for every request. So they are set
        # here only if they are needed, and are the recording's own methods, which saves a call. Elements and spans
        # are measured for other probes too once one that is configured has the methods.
        if options.path is not None:
            recording = Recording(Path(options.path), options.sample, options.max_bytes)
            self._recording = recording
            self.batch_ran, self.request_done = recording.batch, recording.request
            self.element_done, self.span_done = recording.element, recording.span
        if self._nvtx is not None:
            self._note_element = self.element_done
            self.element_began, self.element_done = self._began, self._ended

    def _began(self, node: str, instance: int, element: str, size: int) -> None:
        self._nvtx.push_range(f"{node}.{instance} {element}", domain="headrace")

    def _ended(self, *about: Any) -> None:
        self._nvtx.pop_range(domain="headrace")
        self._note_element(*about)

    def close(self) -> None:
        """Write the file, if there is a path. The file is whole when this returns, in whichever thread.

        Raises:
            OSError: The file could not be written. A file at the path is unchanged.
        """
        if self._recording is not None:
            self._recording.finish()


class UnhurriedTrace(Trace):
    """A Trace whose file `write` writes, and not the end of the pipeline, whose timeout a long trace may exceed."""

    def close(self) -> None:
        """Do nothing: the recording goes on until `write`."""

    write = Trace.close


@contextmanager
def trace(
    pipeline: headrace.Pipeline,
    path: str | os.PathLike[str],
    *,
    sample: float = 1.0,
    max_bytes: int = _MAX_BYTES,
    nvtx: bool = False,
) -> Iterator[None]:
    """Trace a pipeline within the block. At the end of the block, also after an error, the file is complete.

    Any running pipeline can be traced, and nothing of it is built again. The trace has the elements and the work on
    devices only if the pipeline was built with ``probes = ["Trace"]`` in its configuration.

    Args:
        pipeline: The pipeline.
        path: The file.
        sample: The share of requests, from above 0 to 1.
        max_bytes: The largest size of the file, at least 100,000. Beyond it the oldest events are dropped.
        nvtx: Whether elements become NVTX ranges too, for Nsight Systems.

    Raises:
        ClosedError: The pipeline is closed.
        MissingDependencyError: ``nvtx`` is asked for and not installed.
        SetupError: The file cannot be written.
        OSError: The file could not be written at the end.
        TypeError: ``pipeline`` is none.
        ValueError: ``sample`` or ``max_bytes`` is out of range.
    """
    if not isinstance(pipeline, headrace.Pipeline):
        raise TypeError(
            f"expected a pipeline, as headrace.pipe returns it, got {type(pipeline).__name__}"
        )
    file = Path(path).absolute()
    probe = Trace(Trace.Options(path=file, sample=sample, max_bytes=max_bytes, nvtx=nvtx))
    try:
        with attached(pipeline, probe):
            yield
    finally:
        probe.close()
