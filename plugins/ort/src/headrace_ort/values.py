"""Reads the arrays that requests bring for a session, on the CPU or in place on its device."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from headrace.errors import InputError
from headrace_tensors import host_array, text_of
from headrace_tensors.dlpack import CUDA

if TYPE_CHECKING:
    from headrace_tensors import DeviceArray, Port

__all__ = ["check_on_device", "read_on_cpu"]


def check_on_device(value: DeviceArray, port: Port, key: str) -> None:
    """Refuse an array on the device that the session does not take there.

    Raises:
        InputError: It has another dtype, or the input has no batch axis.
    """
    if not port.batched:
        raise InputError(
            "an input without batch axis is read on the CPU",
            key=key,
            expected=f"{port.accepts()} on the CPU",
            got=f"{text_of(value)} on the device",
            hint="CpuTensor before it moves it.",
        )
    if value.dtype != port.dtype:
        raise InputError("wrong dtype", key=key, expected=port.accepts(), got=text_of(value))


def read_on_cpu(value: Any, port: Port, key: str = "data") -> Any:
    """Return ``value`` as an array of the port's dtype, see `headrace_tensors.host_array`.

    Raises:
        InputError: ``value`` is no array, is on a device that the session does not use, has another dtype, or its
            numbers do not fit the port's dtype.
    """
    try:
        return host_array(value, port, key)
    except InputError as error:
        device = _device_of(value)
        if device is None:
            raise
        raise InputError(
            "the array lies on another device than the session",
            key=key,
            expected=f"{port.accepts()} on the CPU",
            got=f"{type(value).__name__} on {device}",
            hint="CpuTensor before it moves it, or `device` lets the session compute there.",
        ) from error.__cause__


def _device_of(value: Any) -> str | None:
    """Return the CUDA device on which an array of any library lies; None if it lies on none."""
    try:
        where = getattr(value, "__dlpack_device__", None)
        if where is not None:
            kind, number = where()
            return f"cuda:{number}" if int(kind) == CUDA else None
        return "a CUDA device" if hasattr(value, "__cuda_array_interface__") else None
    except Exception:  # noqa: BLE001 - a foreign array may raise anything
        return None
