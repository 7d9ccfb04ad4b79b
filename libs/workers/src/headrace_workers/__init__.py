"""What containers share whose part lives in another process, on this machine or another: `Process`, `RayActor`.

`headrace.isolation` is what core gives to such a container. Here is the rest: one batch there and back (`exchange`, `far`,
`packing`), whose requests were taken back meanwhile (`running`), and who starts the other side and sees it die (`supervisor`,
`spawning`). A container of another kind of place is an `apart.Apart` with its own options, place and link (`places`).
"""

from __future__ import annotations

__version__ = "0.1.0"

__all__ = ["__version__"]
