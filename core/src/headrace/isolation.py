"""What a container needs whose part lives elsewhere: in another process, or on another machine.

A container that says ``builds_elsewhere`` gets a plan of its child (`ChildPlan`), brings it to another place and
builds it there (`BuiltElsewhere`). `Isolated` is a base for such containers: it knows the batch that runs and whose
requests may be taken back meanwhile (`RunningBatch`), and shows the scheduler whether the instance has its part now,
later or no more (`Liveness`, `Restarts`). `Link` and `Place` are what differs from one place to another: how bytes
move, and how a part is started and ended. ``headrace-process`` is written with these names alone.
"""

from __future__ import annotations

from headrace._build.elsewhere import BuiltElsewhere, ChildPlan
from headrace._checked import Liveness
from headrace._elsewhere.container import Isolated
from headrace._elsewhere.protocols import Link, Place
from headrace._elsewhere.restarts import Restarts
from headrace._elsewhere.running import RunningBatch
from headrace._portable import error_text, portable
from headrace._scheduling.threads import run_on_helper

__all__ = [
    "BuiltElsewhere",
    "ChildPlan",
    "Isolated",
    "Link",
    "Liveness",
    "Place",
    "Restarts",
    "RunningBatch",
    "error_text",
    "portable",
    "run_on_helper",
]
