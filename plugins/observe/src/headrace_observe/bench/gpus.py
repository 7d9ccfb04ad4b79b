"""The list of the GPUs of this machine, `gpus`."""

from __future__ import annotations

import contextlib
import importlib
import shutil
from typing import TYPE_CHECKING, Any

from headrace_observe.extras import library

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["gpus"]

_VALUES = (
    *("name", "uuid", "memory_used_bytes", "memory_total_bytes"),
    *("utilisation_percent", "temperature_c"),
)


def gpus() -> list[dict[str, Any]]:
    """List the GPUs of this machine. An empty list where there is none.

    Returns:
        Per GPU ``{"index", "name", "uuid", "memory_used_bytes", "memory_total_bytes",
        "utilisation_percent", "temperature_c", "processes"}``. Each process is ``{"pid",
        "memory_bytes"}``. A value that the driver does not give is None. ``utilisation_percent`` is the share of
        time in which a kernel ran, over the last sampling period of the driver (up to a second).

    Raises:
        MissingDependencyError: There is a driver, but nvidia-ml-py is not installed: the extra ``[gpu]``.
    """
    try:
        nvml = importlib.import_module("pynvml")
    except ImportError:
        if shutil.which("nvidia-smi") is None:
            return []
        nvml = library("pynvml", "gpu", "listing GPUs")
    try:
        nvml.nvmlInit()
    except nvml.NVMLError:  # no driver, no driver library, or no permission
        return []
    try:
        return [_gpu(nvml, index) for index in range(nvml.nvmlDeviceGetCount())]
    finally:
        with contextlib.suppress(nvml.NVMLError):
            nvml.nvmlShutdown()


def _gpu(nvml: Any, index: int) -> dict[str, Any]:
    def known(ask: Callable[[], Any]) -> Any:
        try:
            return ask()
        except nvml.NVMLError:
            return None

    handle = known(lambda: nvml.nvmlDeviceGetHandleByIndex(index))
    if handle is None:  # the driver has lost it
        return {"index": index, **dict.fromkeys(_VALUES), "processes": []}
    memory = known(lambda: nvml.nvmlDeviceGetMemoryInfo(handle))
    running = known(lambda: nvml.nvmlDeviceGetComputeRunningProcesses(handle)) or []
    return {
        "index": index,
        "name": known(lambda: nvml.nvmlDeviceGetName(handle)),
        "uuid": known(lambda: nvml.nvmlDeviceGetUUID(handle)),
        "memory_used_bytes": None if memory is None else memory.used,
        "memory_total_bytes": None if memory is None else memory.total,
        "utilisation_percent": known(lambda: nvml.nvmlDeviceGetUtilizationRates(handle).gpu),
        "temperature_c": known(
            lambda: nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU)
        ),
        "processes": [{"pid": p.pid, "memory_bytes": p.usedGpuMemory} for p in running],
    }
