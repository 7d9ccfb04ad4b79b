"""Each word keeps every rule of the contract; pytest collects a test per rule and class."""

import pytest

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

pytest.mark.first("loop, cache, limit, keep state: the backend keeps every rule")(OnceConformance)
