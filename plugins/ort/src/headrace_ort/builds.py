"""Finds the installed builds of ONNX Runtime; all builds use the same folder, so only one may be installed."""

from __future__ import annotations

from importlib import metadata
from typing import Any, Final

from headrace.errors import MissingDependencyError, SetupError

__all__ = [
    "BUILDS",
    "INSTALL_CPU",
    "INSTALL_GPU",
    "TO_GPU",
    "import_runtime",
    "installed_builds",
    "two_builds",
]

BUILDS: Final = (
    "onnxruntime",
    "onnxruntime-gpu",
    "onnxruntime-directml",
    "onnxruntime-openvino",
    "onnxruntime-qnn",
    "onnxruntime-training",
    "onnxruntime-rocm",
    "onnxruntime-migraphx",
)
"""Distributions that contain the package ``onnxruntime``."""

INSTALL_CPU: Final = "pip install onnxruntime"
INSTALL_GPU: Final = "pip install onnxruntime-gpu cuda-bindings"
"""The commands to type if no build is installed."""
TO_GPU: Final = f"pip uninstall -y onnxruntime && {INSTALL_GPU}"
"""The command to type if the CPU build is installed."""


def installed_builds() -> dict[str, str]:
    """Return the folder of each installed build, by its name and version."""
    folders = {}
    for name in BUILDS:
        try:
            distribution = metadata.distribution(name)
        except metadata.PackageNotFoundError:
            continue
        folders[f"{name} {distribution.version}"] = str(distribution.locate_file(""))
    return folders


def import_runtime() -> Any:
    """Import ONNX Runtime.

    Raises:
        MissingDependencyError: ONNX Runtime is not there, or cannot be imported.
    """
    try:
        import onnxruntime
    except ImportError as error:
        there = installed_builds()
        why = f"({next(iter(there))}) cannot be imported: {error}" if there else "is not there"
        raise MissingDependencyError(
            f"ONNX Runtime {why}",
            distribution="headrace-ort",
            hint=f"Type `{INSTALL_CPU}`, or `{INSTALL_GPU}` for a GPU.",
        ) from error
    return onnxruntime


def two_builds() -> SetupError | None:
    """Give an error if several builds are installed in one folder, one written over the other, else None.

    A build in another folder of ``sys.path`` is only hidden by the first, and does no harm.
    """
    folders = installed_builds()
    twice = [build for build in folders if list(folders.values()).count(folders[build]) > 1]
    if not twice:
        return None
    names = " ".join(build.split()[0] for build in twice)
    return SetupError(
        f"{' and '.join(twice)} are installed in one folder, one written over the other",
        hint=f"Type `pip uninstall -y {names}`, then `{INSTALL_GPU}` for a GPU, or `{INSTALL_CPU}`.",
    )
