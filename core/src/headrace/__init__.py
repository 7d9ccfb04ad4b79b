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
    from headrace import (
        blueprint,
        errors,
        futures,
        hookspecs,
        isolation,
        keys,
        lazy,
        plan,
        plugins,
        policies,
        words,
    )
    from headrace._language.building.compose import pipe
    from headrace._language.contract.backend import Backend, InitContext
    from headrace._language.contract.options import FilePath, Options, OutputPath
    from headrace._language.expression.parser import parse
    from headrace._language.plan.pipeline_config import PipelineConfig, explain
    from headrace._language.registry.registry import register
    from headrace._run.contract.checked import PENDING
    from headrace._run.pipeline import Pipeline

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
    "blueprint",
    "errors",
    "explain",
    "futures",
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
    "": "blueprint errors futures hookspecs isolation keys lazy plan plugins policies words",
    "_language.building.compose": "pipe",
    "_run.pipeline": "Pipeline",
    "_language.contract.backend": "Backend InitContext",
    "_run.contract.checked": "PENDING",
    "_language.contract.options": "FilePath Options OutputPath",
    "_language.expression.parser": "parse",
    "_language.plan.pipeline_config": "PipelineConfig explain",
    "_language.registry.registry": "register",
}

if not TYPE_CHECKING:  # with these a type checker would accept every name
    __getattr__, __dir__ = lazy_names(__name__, _HOME)

# Records go where the application's handlers put them. Without a handler Python prints warnings.
logging.getLogger("headrace").addHandler(logging.NullHandler())
