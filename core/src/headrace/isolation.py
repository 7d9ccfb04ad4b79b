"""For containers whose part lives elsewhere: in another process, or on another machine.

A container that says ``builds_elsewhere`` gets the configuration of its child (`ChildConfig`).
Another place builds it by `headrace.plugins.build`. While a batch runs there, its entries
(`Liveness.entries`) let the callers of requests leave with them, and with `Liveness` the container
says whether the instance has its part now, later or no more. Such a container may set ``needs`` in
``init``: the keys without which what was built there cannot run a request.

``headrace-process`` has the base of such containers, `headrace_process.apart.Apart`, which uses
these names alone.
"""

from __future__ import annotations

from typing import Any

from headrace._language.building.elsewhere import ChildConfig
from headrace._pickling import portable
from headrace._run.contract.checked import Liveness, batch_alone
from headrace._run.requests.current import running_here
from headrace._run.requests.parts import elsewhere as _elsewhere
from headrace._run.requests.parts import parts_go_to, read_from
from headrace._run.steps.threads import run_in_pool
from headrace._texts import error_text
from headrace.keys import Request

__all__ = [
    "ChildConfig",
    "Liveness",
    "batch_alone",
    "elsewhere",
    "error_text",
    "has_emitted",
    "parts_go_to",
    "portable",
    "run_in_pool",
]

elsewhere: dict[int, Any] = _elsewhere
"""By the identity of a request that this process runs for another one: where its parts go.

The value has ``add(part, waits)``, which gives whether somebody reads, and ``begun`` and
``closed``: whether a part has come, and whether nobody reads any more.
"""


def has_emitted(request: Request) -> bool:
    """Tell whether a request that runs here has given a part: then nothing runs it once more."""
    parts = elsewhere.get(id(request)) or read_from(running_here(request))
    return parts is not None and bool(parts.begun)
