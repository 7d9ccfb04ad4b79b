"""A container for Headrace whose part lives in another process of this machine: `Process`.

Nothing is imported until it is used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.lazy import lazy_names

if TYPE_CHECKING:
    from headrace_process.process import Process

__version__ = "0.1.0"

__all__ = ["Process", "__version__"]

__getattr__, __dir__ = lazy_names(__name__, {"process": "Process"})
