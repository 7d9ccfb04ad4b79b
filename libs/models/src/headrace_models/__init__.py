"""Named models with versions over Headrace: updates without a lost request."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.lazy import lazy_names
from headrace_models.calling import call_model, models_here
from headrace_models.changes import Change
from headrace_models.errors import OutOfMemoryError, UnknownModelError, UnloadedError
from headrace_models.fetching.cache import Cached
from headrace_models.memory.budget import Memory
from headrace_models.models import Models
from headrace_models.prepared import Prepared
from headrace_models.requests import NamedModel
from headrace_models.sources import folder_models, is_shares

if TYPE_CHECKING:
    from headrace_models.exchange.options import Exchange

__version__ = "0.1.0"

__all__ = [
    "Cached",
    "Change",
    "Exchange",
    "Memory",
    "Models",
    "NamedModel",
    "OutOfMemoryError",
    "Prepared",
    "UnknownModelError",
    "UnloadedError",
    "__version__",
    "call_model",
    "folder_models",
    "is_shares",
    "models_here",
]

if not TYPE_CHECKING:  # with these a type checker would accept every name
    __getattr__, __dir__ = lazy_names(__name__, {"exchange.options": "Exchange"})
