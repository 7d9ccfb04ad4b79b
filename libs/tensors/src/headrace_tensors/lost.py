"""Which errors of CUDA mean that a process can run nothing more on the device: by name, by number, by text."""

from __future__ import annotations

from typing import Final, NamedTuple

from headrace.errors import InstanceLostError

__all__ = ["LOST_DEVICE", "LostDevice", "is_lost", "lost_device"]


class LostDevice(NamedTuple):
    """An error after which a CUDA context can run nothing any more.

    Attributes:
        name: The name in ``cudaError_t``.
        number: Its number there.
        text: The text of ``cudaGetErrorString``, or the common part of the texts of all libraries, in lower case.
    """

    name: str
    number: int
    text: str


LOST_DEVICE: Final = (
    LostDevice("cudaErrorDevicesUnavailable", 46, "devices are busy or unavailable"),
    LostDevice("cudaErrorECCUncorrectable", 214, "uncorrectable ecc"),
    LostDevice("cudaErrorNvlinkUncorrectable", 220, "uncorrectable nvlink"),
    LostDevice("cudaErrorIllegalAddress", 700, "illegal memory access"),
    LostDevice("cudaErrorLaunchTimeout", 702, "launch timed out"),
    LostDevice("cudaErrorContextIsDestroyed", 709, "context is destroyed"),
    LostDevice("cudaErrorAssert", 710, "device-side assert"),
    LostDevice("cudaErrorHardwareStackError", 714, "hardware stack error"),
    LostDevice("cudaErrorIllegalInstruction", 715, "illegal instruction"),
    LostDevice("cudaErrorMisalignedAddress", 716, "misaligned address"),
    LostDevice("cudaErrorInvalidAddressSpace", 717, "global/shared address space"),
    LostDevice("cudaErrorInvalidPc", 718, "invalid program counter"),
    LostDevice("cudaErrorLaunchFailure", 719, "unspecified launch failure"),
    LostDevice("cudaErrorUnknown", 999, "cuda error: unknown error"),
)
"""The errors, as in NVIDIA's reference of ``cudaError_t``: those of which it says that the process must be started
again, damaged memory, and the unknown one."""

_NAMES: Final = {error.name for error in LOST_DEVICE}
_NUMBERS: Final = {error.number for error in LOST_DEVICE}
_TEXTS: Final = (*(error.text for error in LOST_DEVICE), "illegal address", "gpu is lost")


def is_lost(*, name: str | None = None, number: int | None = None, text: str = "") -> bool:
    """Return whether an error of CUDA means that the device is lost to this process.

    Args:
        name: The name of the error in ``cudaError_t``. None: not known.
        number: Its number. None: not known.
        text: What a library says of the error, in any case.
    """
    if name in _NAMES or number in _NUMBERS:
        return True
    lowered = text.lower()
    return any(part in lowered for part in _TEXTS)


def lost_device(error: BaseException, place: str = "the device") -> InstanceLostError | None:
    """Return an InstanceLostError if the text of an error says that the device is lost, else None.

    Args:
        error: An error of any library that computes on a CUDA device.
        place: The device, for the text.
    """
    if isinstance(error, InstanceLostError) or not is_lost(text=str(error)):
        return None
    return InstanceLostError(
        f"{place} can run nothing more in this process: {' '.join(str(error).split())[:300]}",
        hint="Start the process again; CUDA_LAUNCH_BLOCKING=1 shows which call it was.",
    )
