"""Which backends, definitions and policies there are, and which distribution brings each."""

from headrace._registry.backends import BackendSpec
from headrace._registry.discovery import PluginRecord, normalised_plugin
from headrace._registry.imports import refused, run_imports
from headrace._registry.registry import register, registry

__all__ = [
    "BackendSpec",
    "PluginRecord",
    "normalised_plugin",
    "refused",
    "register",
    "registry",
    "run_imports",
]
