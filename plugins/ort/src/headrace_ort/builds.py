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
    found = {}
    for name in BUILDS:
        try:
            one = metadata.distribution(name)
        except metadata.PackageNotFoundError:
            continue
        found[f"{name} {one.version}"] = str(one.locate_file(""))
    return found


def import_runtime() -> Any:
    """Import ONNX Runtime.

    Raises:
        MissingDependencyError: ONNX Runtime is not installed, or cannot be imported.
    """
    try:
        import onnxruntime
    except ImportError as error:
        found = installed_builds()
        what = f"({next(iter(found))}) cannot be imported: {error}" if found else "is not installed"
        raise MissingDependencyError(
            f"ONNX Runtime {what}",
            distribution="headrace-ort",
            hint=f"Type `{INSTALL_CPU}`, or `{INSTALL_GPU}` for a GPU.",
        ) from error
    return onnxruntime


def two_builds() -> SetupError | None:
    """Give an error if several builds are installed in one folder, one written over the other, else None.

    A build in another folder of ``sys.path`` is only hidden by the first, and does no harm.
    """
    folders = installed_builds()
    found = [one for one in folders if list(folders.values()).count(folders[one]) > 1]
    if not found:
        return None
    names = " ".join(one.split()[0] for one in found)
    return SetupError(
        f"{' and '.join(found)} are installed in one folder, one written over the other",
        hint=f"Type `pip uninstall -y {names}`, then `{INSTALL_GPU}` for a GPU, or `{INSTALL_CPU}`.",
    )
