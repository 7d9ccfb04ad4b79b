"""Which backends, definitions and policies there are, and which distribution brings each."""

from headrace._registry.discovery import PluginRecord, normalised_plugin
from headrace._registry.imports import run_imports
from headrace._registry.registry import BackendSpec, Registry, register, registry

__all__ = [
    "BackendSpec",
    "PluginRecord",
    "Registry",
    "normalised_plugin",
    "register",
    "registry",
    "run_imports",
]
