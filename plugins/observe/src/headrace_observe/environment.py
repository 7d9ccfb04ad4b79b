"""Versions and machine, which are reported beside figures so that others can compare them."""

from __future__ import annotations

import os
import platform
from importlib import metadata
from typing import Any

import headrace

__all__ = ["environment"]


def environment() -> dict[str, Any]:
    """Return the versions of Headrace, its plugins, heavy libraries and Python, the system, and the number of CPUs."""
    versions = {"headrace": headrace.__version__}
    for plugin in headrace.plugins.installed():
        versions[plugin.distribution] = plugin.version
    for name in ("numpy", "onnxruntime", "torch", "tensorrt"):
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return {
        "versions": versions,
        "python": platform.python_version(),
        "system": platform.platform(),
        "machine": platform.machine(),
        "cpus": os.cpu_count(),
    }
