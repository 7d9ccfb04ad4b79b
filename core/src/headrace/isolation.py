"""What core gives to a container whose part lives elsewhere: in another process, or on another machine.

A container that says ``builds_elsewhere`` gets a plan of its child (`ChildPlan`), brings it to another place and
builds it there (`BuiltElsewhere`). While a batch runs there, its entries (`Liveness.entries`) let the callers of requests
leave with them, and with `Liveness` the container says whether the instance has its part now, later or no more. Such a
container may set ``needs`` in ``init``: the keys without which what was built there cannot run a request.
``headrace-workers`` has a base of such containers, `headrace_workers.apart.Apart`, which uses these names alone.
"""

from __future__ import annotations

from headrace._build.elsewhere import BuiltElsewhere, ChildPlan
from headrace._contract.checked import Liveness, batch_alone
from headrace._portable import error_text, portable
from headrace._running.batch import running_here
from headrace._running.parts import elsewhere, parts_go_to, read_from
from headrace._running.threads import run_in_pool
from headrace.keys import Request

__all__ = [
    "BuiltElsewhere",
    "ChildPlan",
    "Liveness",
    "batch_alone",
    "error_text",
    "has_emitted",
    "parts_go_to",
    "portable",
    "run_in_pool",
]

_NOW = {  # names that are elsewhere now
    "run_on_helper": "headrace.isolation.run_in_pool",
    "Isolated": "headrace_workers.apart.Apart",
    "Link": "headrace_workers.places.Link",
    "Place": "headrace_workers.places.Place",
    "Restarts": "headrace_workers.places.Restarts",
    "RunningBatch": "headrace_workers.running.RunningBatch",
}


def has_emitted(request: Request) -> bool:
    """Tell whether a part of the answer of a request that runs here was given: then nothing runs it once more."""
    parts = elsewhere.parts.get(id(request)) or read_from(running_here(request))
    return parts is not None and bool(parts.begun)


def __getattr__(name: str) -> object:
    if name in _NOW:
        install = ": pip install headrace-workers" * _NOW[name].startswith("headrace_workers")
        raise ImportError(f"headrace.isolation.{name} is {_NOW[name]} now{install}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
