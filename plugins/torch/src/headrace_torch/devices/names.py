"""Finds the torch device that a node's `device` names, or refuses it and lists the available devices."""

from __future__ import annotations

import re

import torch

from headrace.errors import SetupError

__all__ = ["check_device", "device_name", "listed_devices", "wait_for_device"]

_WRITTEN = re.compile(r"(cpu|cuda|mps)(?::(\d{1,3}))?", re.IGNORECASE)


def check_device(text: str) -> torch.device:
    """Return the device that ``text`` names, if this machine has it.

    Args:
        text: ``"cpu"``, ``"cuda"`` (the first one), ``"cuda:1"`` or ``"mps"``.

    Returns:
        The device. A CUDA device always has its index.

    Raises:
        SetupError: ``text`` is not of that form, or this machine does not have the device.
    """
    match = _WRITTEN.fullmatch(text.strip())
    if match is None:
        raise SetupError(
            f"torch cannot compute on a device {text!r} here",
            hint=f"Write 'cpu', 'cuda', 'cuda:N' or 'mps'; there are: {listed_devices()}.",
        )
    kind, index = match[1].lower(), int(match[2] or 0)
    if kind == "cpu" and index == 0:
        return torch.device("cpu")
    if kind == "mps" and index == 0 and _has_mps():
        return torch.device("mps")
    if kind == "cuda" and torch.cuda.is_available() and index < torch.cuda.device_count():
        return torch.device("cuda", index)
    raise SetupError(
        f"there is no device {text!r} for torch {torch.__version__}",
        hint=f"There are: {listed_devices()}.{_why_no_cuda(kind)}",
    )


def listed_devices() -> str:
    """Return a text with the devices of this machine: ``cpu, cuda:0 (NVIDIA H200)``."""
    devices = ["cpu"]
    if torch.cuda.is_available():
        devices += [
            f"cuda:{index} ({torch.cuda.get_device_name(index)})"
            for index in range(torch.cuda.device_count())
        ]
    if _has_mps():
        devices.append("mps")
    return ", ".join(devices)


def device_name(device: torch.device) -> str:
    """Return the name of a CUDA device, as ``"NVIDIA H200"``; the kind of any other device."""
    return str(torch.cuda.get_device_name(device) if device.type == "cuda" else device.type)


def wait_for_device(device: torch.device) -> None:
    """Wait for all work on a device without streams (MPS); on other devices do nothing."""
    if device.type == "mps":
        torch.mps.synchronize()


def _has_mps() -> bool:
    return bool(torch.backends.mps.is_available())


def _why_no_cuda(kind: str) -> str:
    if kind != "cuda" or torch.cuda.is_available():
        return ""
    if torch.version.cuda is None:
        return " This build of torch is without CUDA."
    return " torch finds no CUDA device: look at `nvidia-smi` and CUDA_VISIBLE_DEVICES."
