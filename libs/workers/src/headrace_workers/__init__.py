"""Shared by containers that run their part in another process, on this machine or another: `Process`, `RayActor`.

Core's side is `headrace.isolation`. Here is the rest: what is built there (`parts`), one batch there and back (`exchange`,
`far`, `packing`), requests taken back by their callers meanwhile (`running`), and the start and the death of the other
side (`supervisor`, `spawning`). A container for another kind of place is an `apart.Apart` with its own options, place and link (`places`).
"""

from __future__ import annotations

__version__ = "0.1.0"

__all__ = ["__version__"]
