"""The devices of CUDA on this machine, and the bytes that processes have on them."""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace.errors import SetupError

if TYPE_CHECKING:
    from collections.abc import Collection

__all__ = ["check_devices", "device_bytes", "used_bytes"]

_BUS_ID_BYTES = 32


def check_devices(devices: Collection[str]) -> None:
    """Check that devices are on this machine.

    Args:
        devices: Their names, ``"host"`` or ``"cuda:0"``.

    Raises:
        SetupError: One is not. The error names those that are.
    """
    if others := {*devices} - {"host"}:
        here = [f"cuda:{number}" for number, _ in enumerate(_bus_ids())]
        if missing := sorted(others - {*here}):
            text = f"the memory of models names {', '.join(missing)}, which this machine lacks"
            raise SetupError(text, hint=f"There are: {', '.join(['host', *here])}.")


def device_bytes(device: str, pids: Collection[int]) -> int | None:
    """Return the bytes that processes have on a device.

    Args:
        device: The device, ``"cuda:0"``.
        pids: The processes. None of them counts that computes nowhere on it.

    Returns:
        The bytes. None if none of the processes computes there, if NVML does not tell, or without nvidia-ml-py.

    Source:
        ``nvmlDeviceGetComputeRunningProcesses`` and ``nvmlProcessInfo_t`` of the NVML API.
    """
    try:
        nvml = importlib.import_module("pynvml")
        nvml.nvmlInit()
    except Exception:  # noqa: BLE001 - it is not installed, or has an error of its own that says why not
        return None
    try:
        handle = nvml.nvmlDeviceGetHandleByPciBusId(_bus_ids()[int(device.partition(":")[2])])
        told = nvml.nvmlDeviceGetComputeRunningProcesses(handle)
    except (nvml.NVMLError, IndexError):
        return None
    finally:
        with contextlib.suppress(nvml.NVMLError):
            nvml.nvmlShutdown()
    sizes = [process.usedGpuMemory for process in told if process.pid in pids]
    return sum(sizes) if sizes and None not in sizes else None


def _bus_ids() -> list[str]:
    """Return where the devices are, in the order of CUDA, which an environment variable may change.

    Source:
        ``cuDeviceGetCount`` and ``cuDeviceGetPCIBusId`` of the CUDA driver API.
    """
    try:
        driver: Any = ctypes.CDLL("nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1")
    except OSError:
        return []
    count, device = ctypes.c_int(), ctypes.c_int()
    bus_id = ctypes.create_string_buffer(_BUS_ID_BYTES)
    ids = []
    if not driver.cuInit(0) and not driver.cuDeviceGetCount(ctypes.byref(count)):
        for number in range(count.value):
            driver.cuDeviceGet(ctypes.byref(device), number)
            driver.cuDeviceGetPCIBusId(bus_id, _BUS_ID_BYTES, device)
            ids.append(bus_id.value.decode())
    return ids


def used_bytes(device: str) -> int | None:
    """Return the bytes that this process and all its children have on a device. None if nothing tells.

    On the host they are the resident bytes, which Linux tells.

    Source:
        ``/proc/[pid]/stat`` in proc(5).
    """
    pages: dict[int, int] = {}
    parents: dict[int, int] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # it has ended meanwhile
            fields = stat.read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
            pid = int(stat.parent.name)
            parents[pid], pages[pid] = int(fields[1]), int(fields[21])
    ours, before = {os.getpid()} & {*pages}, 0
    while len(ours) > before:
        before = len(ours)
        ours |= {pid for pid, parent in parents.items() if parent in ours}
    if device != "host":
        return device_bytes(device, ours or {os.getpid()})
    return sum(pages[pid] for pid in ours) * os.sysconf("SC_PAGE_SIZE") if ours else None
