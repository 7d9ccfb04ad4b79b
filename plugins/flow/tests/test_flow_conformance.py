"""Each word keeps every rule of the contract; pytest collects a test per rule and class."""

from headrace_flow.conformance import (
    CacheConformance,
    ConcurrencyConformance,
    FallbackConformance,
    HasKeyConformance,
    NotHasKeyConformance,
    ObserverConformance,
    OnceConformance,
    QueueConformance,
    RandomConformance,
    RecvConformance,
    RepostConformance,
    ScriptConformance,
    SendConformance,
    StateFulConformance,
)

__all__ = [
    "CacheConformance",
    "ConcurrencyConformance",
    "FallbackConformance",
    "HasKeyConformance",
    "NotHasKeyConformance",
    "ObserverConformance",
    "OnceConformance",
    "QueueConformance",
    "RandomConformance",
    "RecvConformance",
    "RepostConformance",
    "ScriptConformance",
    "SendConformance",
    "StateFulConformance",
]
