"""The NVIDIA GPUs of this machine, as reported by NVML, and those that this process uses."""

from __future__ import annotations

import contextlib
import importlib
import shutil
import sys
from typing import TYPE_CHECKING, Any

from headrace_observe.extras import library

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["devices", "gpus"]


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
        "name": known(lambda: _text(nvml.nvmlDeviceGetName(handle))),
        "uuid": known(lambda: _text(nvml.nvmlDeviceGetUUID(handle))),
        "memory_used_bytes": None if memory is None else memory.used,
        "memory_total_bytes": None if memory is None else memory.total,
        "utilisation_percent": known(lambda: nvml.nvmlDeviceGetUtilizationRates(handle).gpu),
        "temperature_c": known(
            lambda: nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU)
        ),
        "processes": [{"pid": one.pid, "memory_bytes": one.usedGpuMemory} for one in running],
    }


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


def devices(*, in_use: bool) -> dict[str, Any] | None:
    """Return what decides how this process computes on GPUs. Where nothing tells of a GPU, nothing is imported.

    Args:
        in_use: Whether only the devices count on which this process has computed.

    Returns:
        ``{"driver", "cuda", "devices"}``: the version of the driver, None without nvidia-ml-py; that of CUDA; and ``name``
        and ``compute_capability`` of each device, told by cuda-bindings, else by torch. None without a device.
    """
    torch: Any = sys.modules.get("torch")
    has_torch = torch is not None and torch.cuda.is_available()
    known = has_torch or "cuda.bindings.driver" in sys.modules
    if not known and shutil.which("nvidia-smi") is None:
        return None
    try:
        driver = importlib.import_module("cuda.bindings.driver")
    except ImportError:
        if not has_torch or (in_use and not torch.cuda.is_initialized()):
            return None
        found = [torch.cuda.get_device_properties(k) for k in range(torch.cuda.device_count())]
        listed = [_device(one.name, one.major, one.minor) for one in found]
        return {"driver": _version_of_driver(), "cuda": torch.version.cuda, "devices": listed}
    with contextlib.suppress(RuntimeError):  # there is no driver
        return _devices(driver, in_use=in_use)
    return None


def _devices(driver: Any, *, in_use: bool) -> dict[str, Any] | None:
    """Return the devices as the API of CUDA's driver tells them.

    Raises:
        RuntimeError: It cannot be asked.
    """

    def ask(function: Callable[..., Any], *args: Any) -> Any:
        error, *values = function(*args)
        if error != driver.CUresult.CUDA_SUCCESS:
            raise RuntimeError(f"{function.__name__}: {error}")
        return values[-1] if values else None

    ask(driver.cuInit, 0)
    of, found = driver.CUdevice_attribute, []
    for device in (ask(driver.cuDeviceGet, k) for k in range(ask(driver.cuDeviceGetCount))):
        # All libraries compute in the primary context of a device.
        if not in_use or ask(driver.cuDevicePrimaryCtxGetState, device):
            name = _text(ask(driver.cuDeviceGetName, 256, device)).partition("\0")[0]
            parts = (
                of.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR,
                of.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR,
            )
            found.append(
                _device(name, *(ask(driver.cuDeviceGetAttribute, p, device) for p in parts))
            )
    version = ask(driver.cuDriverGetVersion)
    cuda = f"{version // 1000}.{version % 1000 // 10}"
    return {"driver": _version_of_driver(), "cuda": cuda, "devices": found} if found else None


def _device(name: str, major: int, minor: int) -> dict[str, Any]:
    return {"name": name, "compute_capability": f"{major}.{minor}"}


def _version_of_driver() -> str | None:
    """Return the version of the driver; None without nvidia-ml-py."""
    try:
        nvml = importlib.import_module("pynvml")
        nvml.nvmlInit()
    except Exception:  # noqa: BLE001 - it is not installed, or has an error of its own that says why not
        return None
    try:
        return _text(nvml.nvmlSystemGetDriverVersion())
    finally:
        nvml.nvmlShutdown()
