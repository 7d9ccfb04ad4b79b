"""Backends for branches, queues, loops, sessions, caches and limits, and policies that pick the requests of a batch.

The backends are `HasKey`, `NotHasKey`, `Random`, `Queue`, `Send`, `Recv`, `Observer`, `Repost`, `StateFul`, `Iterate`,
`Loop`, `Restart`, and around any expression `Cache`, `Once` and `Concurrency`. `KVStorage` keeps values. The
policies are `Alike` and `Budget`. `ConditionPolicy` is the base of policies made of conditions, such as `Count` and `Waited`.

Nothing is imported until it is used: ``import headrace_flow`` loads no pydantic.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.lazy import lazy_names

if TYPE_CHECKING:
    from headrace_flow.branching import HasKey, NotHasKey, Random
    from headrace_flow.caching.cache import Cache
    from headrace_flow.caching.once import Once
    from headrace_flow.concurrency import Concurrency
    from headrace_flow.conditions import (
        Condition,
        ConditionPolicy,
        Count,
        Enough,
        FreeInstances,
        Idle,
        Verdict,
        Waited,
        Weight,
        When,
    )
    from headrace_flow.iterate import Iterate
    from headrace_flow.loop import Loop
    from headrace_flow.policies.alike import Alike
    from headrace_flow.policies.budget import Budget
    from headrace_flow.queues import Observer, Queue, Recv, Send
    from headrace_flow.repost import Repost, Restart
    from headrace_flow.script import Script, call, part
    from headrace_flow.stateful import StateFul
    from headrace_flow.storage import KVStorage, RequestNotFoundError

__version__ = "0.1.0"

__all__ = [
    "Alike",
    "Budget",
    "Cache",
    "Concurrency",
    "Condition",
    "ConditionPolicy",
    "Count",
    "Enough",
    "FreeInstances",
    "HasKey",
    "Idle",
    "Iterate",
    "KVStorage",
    "Loop",
    "NotHasKey",
    "Observer",
    "Once",
    "Queue",
    "Random",
    "Recv",
    "Repost",
    "RequestNotFoundError",
    "Restart",
    "Script",
    "Send",
    "StateFul",
    "Verdict",
    "Waited",
    "Weight",
    "When",
    "__version__",
    "call",
    "part",
]

_HOME = {
    "branching": "HasKey NotHasKey Random",
    "caching.cache": "Cache",
    "caching.once": "Once",
    "concurrency": "Concurrency",
    "conditions": "Condition ConditionPolicy Count Enough FreeInstances Idle Verdict Waited "
    "Weight When",
    "iterate": "Iterate",
    "loop": "Loop",
    "policies.alike": "Alike",
    "policies.budget": "Budget",
    "queues": "Observer Queue Recv Send",
    "repost": "Repost Restart",
    "script": "Script call part",
    "stateful": "StateFul",
    "storage": "KVStorage RequestNotFoundError",
}

if not TYPE_CHECKING:  # with these a type checker would accept every name
    __getattr__, __dir__ = lazy_names(__name__, _HOME)
