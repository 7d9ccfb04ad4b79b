"""The GPUs on which this process computes, as CUDA tells of them."""

from __future__ import annotations

import contextlib
import importlib
import shutil
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["devices"]


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
        properties = [torch.cuda.get_device_properties(k) for k in range(torch.cuda.device_count())]
        listed = [_device(device.name, device.major, device.minor) for device in properties]
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
    of, listed = driver.CUdevice_attribute, []
    for device in (ask(driver.cuDeviceGet, k) for k in range(ask(driver.cuDeviceGetCount))):
        # All libraries compute in the primary context of a device.
        if not in_use or ask(driver.cuDevicePrimaryCtxGetState, device):
            name = ask(driver.cuDeviceGetName, 256, device).decode().partition("\0")[0]
            parts = (
                of.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR,
                of.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR,
            )
            listed.append(
                _device(name, *(ask(driver.cuDeviceGetAttribute, p, device) for p in parts))
            )
    version = ask(driver.cuDriverGetVersion)
    cuda = f"{version // 1000}.{version % 1000 // 10}"
    return {"driver": _version_of_driver(), "cuda": cuda, "devices": listed} if listed else None


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
        return str(nvml.nvmlSystemGetDriverVersion())
    finally:
        nvml.nvmlShutdown()
