"""Parts of a pipeline in other processes: `Process` on this machine, and the base of containers for other places.

Core's side is `headrace.isolation`. Here is the rest: what is built there (`parts`), one batch there and back (`exchange`,
`far`, `packing`), requests taken back by their callers meanwhile (`running`), and the start and the death of the other
side (`supervisor`, `spawning`). A container for another kind of place, as `RayActor`, is an `apart.Apart` with its own
options, place and link (`places`). Nothing is imported until it is used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.lazy import lazy_names

if TYPE_CHECKING:
    from headrace_process.process import Process

__version__ = "0.1.0"

__all__ = ["Process", "__version__"]

if not TYPE_CHECKING:  # with these a type checker would accept every name
    __getattr__, __dir__ = lazy_names(__name__, {"process": "Process"})
