"""Headrace: run models in production, composed by configuration from plugins.

Nothing is imported until it is used: ``import headrace`` loads neither numpy nor pydantic nor any
plugin.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from headrace._version import __version__
from headrace.lazy import lazy_names

if TYPE_CHECKING:
    from headrace import errors, hookspecs, isolation, keys, lazy, plan, plugins, policies, words
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
    "lazy",
    "parse",
    "pipe",
    "plan",
    "plugins",
    "policies",
    "register",
    "words",
]

_HOME = {
    "": "errors hookspecs isolation keys lazy plan plugins policies words",
    "_build.compose": "pipe",
    "_build.pipeline": "Pipeline",
    "_contract.backend": "Backend InitContext",
    "_contract.checked": "PENDING",
    "_contract.options": "FilePath Options OutputPath",
    "_expression.parser": "parse",
    "_plan.pipeline_config": "PipelineConfig explain",
    "_registry.registry": "register",
}

if not TYPE_CHECKING:  # with these a type checker would accept every name
    __getattr__, __dir__ = lazy_names(__name__, _HOME)

# Records go where the application's handlers put them. Without any handler Python would print warnings.
logging.getLogger("headrace").addHandler(logging.NullHandler())
