"""``headrace observe gpus``: the GPUs of this machine."""

from __future__ import annotations

from typing import Any

from headrace_cli.for_plugins import OK, Json, print_message
from headrace_observe.bench.gpus import gpus as found_gpus
from headrace_observe.commands.printing import print_document, print_table

__all__ = ["gpus"]

_HEADINGS = ("GPU", "name", "memory used", "memory", "use", "temperature", "processes")


def gpus(json: Json = False) -> int:
    """List the NVIDIA GPUs of this machine: name, memory, use, temperature, processes.

    Without one, nothing is listed, and --json prints an empty list. Needs nvidia-ml-py, the extra
    `headrace-observe[gpu]`, where there is a GPU.

    \b
    Examples:
      headrace observe gpus
      headrace observe gpus --json
    """  # noqa: D301 - typer keeps the lines after a backspace character
    devices = found_gpus()
    if json:
        print_document(devices)
    elif not devices:
        print_message("there is no NVIDIA GPU here, or no driver for it")
    else:
        print_table(_HEADINGS, [_cells(device) for device in devices])
    return OK


def _cells(device: dict[str, Any]) -> list[str]:
    def shown(value: Any, unit: str = "") -> str:
        return "-" if value is None else f"{value}{unit}"

    def mib(value: int | None) -> str:
        return "-" if value is None else f"{value / 2**20:.0f} MiB"

    processes = [f"{p['pid']} ({mib(p['memory_bytes'])})" for p in device["processes"]]
    return [
        str(device["index"]),
        shown(device["name"]),
        mib(device["memory_used_bytes"]),
        mib(device["memory_total_bytes"]),
        shown(device["utilisation_percent"], " %"),
        shown(device["temperature_c"], " °C"),
        ", ".join(processes) or "-",
    ]
