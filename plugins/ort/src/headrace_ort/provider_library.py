"""Plugin execution providers: separate libraries that add a provider to ONNX Runtime."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import onnxruntime as ort

from headrace.errors import SetupError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

__all__ = ["add_plugin_provider", "register_libraries"]

_lock = threading.Lock()
_registered: dict[str, tuple[str, tuple[str, ...]]] = {}


def register_libraries(libraries: Mapping[str, Path]) -> dict[str, list[Any]]:
    """Register libraries, each once per process, and give their devices.

    Args:
        libraries: The path of each library, by a name that the user has chosen and `providers` may use.

    Returns:
        For each name the ``OrtEpDevice`` objects of the library.

    Raises:
        SetupError: ONNX Runtime is too old or cannot load a library, a library has no device on this machine, or
            another library was registered under its name.
    """
    found: dict[str, list[Any]] = {}
    with _lock:
        for name, path in libraries.items():
            names = _provider_names(name, str(path.resolve()))
            found[name] = [one for one in ort.get_ep_devices() if one.ep_name in names]
            if not found[name]:
                raise SetupError(
                    f"the provider library {name!r} ({path}) finds no device on this machine"
                )
    return found


def _provider_names(name: str, path: str) -> tuple[str, ...]:
    """Register a library, unless it is registered already; give the names of its providers."""
    if name in _registered:
        before, names = _registered[name]
        if before != path:
            raise SetupError(
                f"another provider library is registered as {name!r} in this process: {before}",
                hint="Give one of the two another name in `provider_libraries`.",
            )
        return names
    register = getattr(ort, "register_execution_provider_library", None)
    if register is None:
        raise SetupError(
            f"ONNX Runtime {ort.__version__} takes no provider libraries",
            hint="They came with version 1.22: `pip install --upgrade onnxruntime`.",
        )
    known = {one.ep_name for one in ort.get_ep_devices()}
    try:
        register(name, path)
    except Exception as error:
        raise SetupError(
            f"ONNX Runtime {ort.__version__} cannot load the provider library {path!r}: "
            f"{' '.join(str(error).split())[:300]}"
        ) from error
    names = tuple(sorted({one.ep_name for one in ort.get_ep_devices()} - known))
    _registered[name] = path, names
    return names


def add_plugin_provider(
    options: Any, devices: list[Any], values: Mapping[str, str], device_id: str | None = None
) -> None:
    """Let a session run on a plugin provider.

    Args:
        options: The ``SessionOptions``.
        devices: The devices of the library.
        values: The provider's options.
        device_id: The index of the device. None: the first.

    Raises:
        SetupError: The provider has no device of that index.
    """
    index = int(device_id or 0)
    if index >= len(devices):
        raise SetupError(
            f"there is no device {index} of this provider",
            hint=f"It has {len(devices)}, counted from 0.",
        )
    options.add_provider_for_devices([devices[index]], dict(values))
