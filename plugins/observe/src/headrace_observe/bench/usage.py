"""Measures the use of processors, by this process and its children, and of GPUs, over a span of time."""

from __future__ import annotations

import importlib
import time
from typing import TYPE_CHECKING, Any

import headrace_observe
from headrace.errors import MissingDependencyError
from headrace.plugins import usable_cpus

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["meter"]


def meter() -> Callable[[], dict[str, Any]]:
    """Begin to measure. Return the function that ends the measurement.

    Returns:
        A function that gives ``{"cpu": {"cores", "source", "usable"}, "gpu": [...]}``. ``cores`` is the
        processor time per second, in seconds, of this process and, if psutil is installed (the extra
        ``[gpu]``), of its children. ``source`` says which. ``usable`` is the number of CPUs that this process
        may use. ``gpu`` has ``index``, ``name``, ``utilisation_percent`` and ``memory_used_bytes`` of each GPU
        at the end.
    """
    seconds, source = _clock_of_processors()
    began, used = time.perf_counter(), seconds()

    def ended() -> dict[str, Any]:
        span = time.perf_counter() - began
        cores = (seconds() - used) / span if span > 0 else 0.0
        cpu = {"cores": round(max(0.0, cores), 3), "source": source, "usable": usable_cpus()}
        return {"cpu": cpu, "gpu": _gpus()}

    return ended


def _clock_of_processors() -> tuple[Callable[[], float], str]:
    try:
        psutil = importlib.import_module("psutil")
    except ImportError:
        return time.process_time, "this process"
    here = psutil.Process()

    def seconds() -> float:
        total = 0.0
        for process in [here, *here.children(recursive=True)]:
            try:
                times = process.cpu_times()
            except psutil.Error:  # the child process has ended meanwhile
                continue
            total += times.user + times.system
        return total

    return seconds, "this process and its children"


def _gpus() -> list[dict[str, Any]]:
    keys = ("index", "name", "utilisation_percent", "memory_used_bytes")
    try:
        return [{key: gpu[key] for key in keys} for gpu in headrace_observe.gpus()]
    except MissingDependencyError:
        return []
