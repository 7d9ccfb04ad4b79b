"""Finds and loads the lean runtime, which TensorRT puts into version-compatible plans, before a build."""

from __future__ import annotations

import ctypes
import importlib.util
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

    from headrace_trt.library import Library

__all__ = ["install_lean_runtime", "lean_runtime_name", "load_lean_runtime"]

_PACKAGES: Final = ("tensorrt_libs", "tensorrt_lean_libs", "tensorrt", "tensorrt_lean")
"""Packages of NVIDIA's wheels whose folders may hold the library; the dynamic loader does not search them."""


def lean_runtime_name(library: Library) -> str:
    """Return the file name of the lean runtime of a version: ``"libnvinfer_lean.so.10"``."""
    major = library.version.partition(".")[0]
    if sys.platform == "win32":
        return f"nvinfer_lean_{major}.dll"
    return f"libnvinfer_lean.so.{major}"


def load_lean_runtime(library: Library) -> str | None:
    """Load the lean runtime of a version, so that the builder finds it by name.

    Returns:
        The name or path that was loaded. None if neither the loader nor a package has it.
    """
    name = lean_runtime_name(library)
    for candidate in (name, *_beside(name)):
        try:
            ctypes.CDLL(candidate)
        except OSError:
            continue
        return candidate
    return None


def _beside(name: str) -> Iterator[str]:
    for package in _PACKAGES:
        spec = importlib.util.find_spec(package)
        for folder in (spec.submodule_search_locations if spec is not None else None) or ():
            path = Path(folder, name)
            if path.is_file():
                yield str(path)


def install_lean_runtime(library: Library) -> str:
    """Return a hint that says what to install if the lean runtime is missing."""
    version = library.version.partition(".post")[0]
    return (
        f"A version-compatible plan carries TensorRT's lean runtime, {lean_runtime_name(library)}, which"
        f' is not here: `pip install "tensorrt_lean=={version}"` brings it (the package'
        f" libnvinfer-lean{version.partition('.')[0]} on Debian and Ubuntu)."
    )
