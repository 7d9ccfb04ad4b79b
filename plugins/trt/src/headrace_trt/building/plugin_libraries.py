"""Loads plugins of TensorRT: shared libraries, and creators written in Python."""

from __future__ import annotations

import importlib
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace.errors import SetupError
from headrace_trt.building.settings import is_python_plugin
from headrace_trt.libraries.logs import logger_for

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headrace_trt.libraries.tensorrt import Library

__all__ = ["import_object", "load_plugins"]

_lock = threading.Lock()
_loaded: set[tuple[str, str]] = set()


def load_plugins(library: Library, plugins: Sequence[str], *, allow_import: bool = True) -> None:
    """Register plugins with TensorRT, each once per process.

    Args:
        library: The installed TensorRT.
        plugins: Paths of shared libraries, and ``package.module:Class`` of plugin creators
            (subclasses of ``IPluginCreatorV3One``).
        allow_import: Whether code may be imported. Both kinds of plugins are code.

    Raises:
        SetupError: Importing is refused, or a plugin cannot be loaded.
    """
    if not plugins:
        return
    if not allow_import:
        raise SetupError(
            f"`plugins` would load code ({', '.join(plugins)}), and imports are refused",
            hint="Leave `plugins` out, or allow imports: both are code, like `import`.",
        )
    with _lock:
        library.trt.init_libnvinfer_plugins(logger_for(library), "")
        registry = library.trt.get_plugin_registry()
        for plugin in plugins:
            key = (library.name, plugin)
            if key in _loaded:
                continue
            if is_python_plugin(plugin):
                _register(registry, plugin, library)
            else:
                _load(registry, plugin, library)
            _loaded.add(key)


def _load(registry: Any, plugin: str, library: Library) -> None:
    path = Path(plugin).expanduser()
    if not path.is_file():
        raise SetupError(
            f"plugin library {plugin!r} is not there",
            hint="Name a shared library, or a creator in Python as package.module:Class.",
        )
    _refuse_without_plugins(library)
    try:
        handle = registry.load_library(str(path.resolve()))
    except Exception as error:  # the binding raises whatever dlopen says
        raise SetupError(f"plugin library {plugin} cannot be loaded: {error}") from error
    if handle is None:
        raise SetupError(
            f"plugin library {plugin} cannot be loaded by {library.text}",
            hint="It must export getCreators or getPluginCreators, and be linked against this"
            " version of TensorRT.",
        )


def _refuse_without_plugins(library: Library) -> None:
    """Refuse plugins if the library's networks cannot hold any. Its parser would end the process.

    Raises:
        SetupError: The library cannot put plugins into networks.
    """
    library.need("INetworkDefinition.add_plugin_v3", "plugins")


def _register(registry: Any, plugin: str, library: Library) -> None:
    creator = import_object(plugin, "plugins")
    _refuse_without_plugins(library)
    try:
        value = creator() if isinstance(creator, type) else creator
        namespace = str(getattr(value, "plugin_namespace", "") or "")
        identity = (str(value.name), str(value.plugin_version), namespace)
        done = identity in _known(registry) or registry.register_creator(value, namespace)
    except Exception as error:
        raise SetupError(
            f"{plugin} is no plugin creator that TensorRT takes: {type(error).__name__}: {error}",
            hint="It is a subclass of IPluginCreatorV3One that can be made without arguments.",
        ) from error
    if not done:
        raise SetupError(f"TensorRT refused to register the plugin {plugin}")
    _creators.append(value)


def _known(registry: Any) -> set[tuple[str, str, str]]:
    """Return name, version and namespace of all creators.

    The whole list is read, because TensorRT logs an error when it is asked for a single creator that does not exist.
    """
    name = "all_creators" if hasattr(registry, "all_creators") else "plugin_creator_list"
    creators = getattr(registry, name)
    keys = ("name", "plugin_version", "plugin_namespace")
    named = [tuple(str(getattr(creator, key, None) or "") for key in keys) for creator in creators]
    return {(name, version, namespace) for name, version, namespace in named}


_creators: list[Any] = []
"""The registered creators. They must be kept alive here, because TensorRT's registry does not keep them alive."""


def import_object(path: str, option: str) -> Any:
    """Import ``package.module:name``.

    Raises:
        SetupError: It cannot be imported.
    """
    module, _, name = path.partition(":")
    try:
        imported = importlib.import_module(module)
        for part in name.split("."):
            imported = getattr(imported, part)
    except Exception as error:
        raise SetupError(
            f"`{option}`: {path!r} cannot be imported: {type(error).__name__}: {error}",
            hint="Write package.module:name of something that Python finds.",
        ) from error
    return imported
