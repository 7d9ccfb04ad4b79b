"""Remote keeps every rule of the contract; pytest collects a test per rule and class."""

from headrace_remote.conformance import RemoteConformance

__all__ = ["RemoteConformance"]
