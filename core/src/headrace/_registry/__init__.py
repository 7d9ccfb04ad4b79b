"""Which backends, definitions and policies there are, and which distribution brings each."""

from headrace._registry.backends import BackendSpec
from headrace._registry.discovery import (
    PluginRecord,
    conformance_classes,
    normalised_plugin,
    unknown_plugins,
)
from headrace._registry.imports import is_file, refused, run_imports
from headrace._registry.registry import Registry, register, registry

__all__ = [
    "BackendSpec",
    "PluginRecord",
    "Registry",
    "conformance_classes",
    "is_file",
    "normalised_plugin",
    "refused",
    "register",
    "registry",
    "run_imports",
    "unknown_plugins",
]
