"""Headrace: run models in production, composed by configuration from plugins.

Nothing is imported until it is used: ``import headrace`` loads neither numpy nor pydantic nor any
plugin.
"""

from __future__ import annotations

import logging
import sys
from typing import TYPE_CHECKING, Any

from headrace._version import __version__

if TYPE_CHECKING:
    from headrace import errors, hookspecs, isolation, keys, plan, plugins, policies, words
    from headrace._build.compose import pipe
    from headrace._build.pipeline import Pipeline
    from headrace._contract.backend import Backend, InitContext
    from headrace._contract.checked import PENDING
    from headrace._contract.options import FilePath, Options, OutputPath
    from headrace._expression.parser import parse
    from headrace._plan.pipeline_config import PipelineConfig, explain
    from headrace._registry.registry import register

__all__ = [
    "PENDING",
    "Backend",
    "FilePath",
    "InitContext",
    "Options",
    "OutputPath",
    "Pipeline",
    "PipelineConfig",
    "__version__",
    "errors",
    "explain",
    "hookspecs",
    "isolation",
    "keys",
    "parse",
    "pipe",
    "plan",
    "plugins",
    "policies",
    "register",
    "words",
]

_HOME = {
    "PENDING": "headrace._contract.checked",
    "Backend": "headrace._contract.backend",
    "FilePath": "headrace._contract.options",
    "InitContext": "headrace._contract.backend",
    "Options": "headrace._contract.options",
    "OutputPath": "headrace._contract.options",
    "Pipeline": "headrace._build.pipeline",
    "PipelineConfig": "headrace._plan.pipeline_config",
    "explain": "headrace._plan.pipeline_config",
    "parse": "headrace._expression.parser",
    "pipe": "headrace._build.compose",
    "register": "headrace._registry.registry",
}
_MODULES = ("errors", "hookspecs", "isolation", "keys", "plan", "plugins", "policies", "words")

# Records go where the application's handlers put them. Without any handler Python would print warnings.
logging.getLogger("headrace").addHandler(logging.NullHandler())


if not TYPE_CHECKING:  # with this function a type checker would accept every name

    def __getattr__(name: str) -> Any:
        import importlib

        if name in _MODULES:
            return importlib.import_module(f"headrace.{name}")
        if name not in _HOME:
            here = sys.modules[__name__]  # Python looks here for the nearest name to suggest
            text = f"module 'headrace' has no attribute {name!r}"
            raise AttributeError(text, name=name, obj=here)
        value = getattr(importlib.import_module(_HOME[name]), name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted(__all__)
