"""Each word keeps every rule of the contract; pytest collects a test per rule and class."""

from headrace_flow.conformance import (
    ObserverConformance,
    QueueConformance,
    RecvConformance,
    ScriptConformance,
    SendConformance,
    StateFulConformance,
)

__all__ = [
    "ObserverConformance",
    "QueueConformance",
    "RecvConformance",
    "ScriptConformance",
    "SendConformance",
    "StateFulConformance",
]
