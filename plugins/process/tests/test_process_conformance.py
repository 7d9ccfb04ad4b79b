"""Process and Host keep every rule of the contract; pytest collects a test per rule and class."""

from headrace_process.conformance import HostConformance, ProcessConformance

__all__ = ["HostConformance", "ProcessConformance"]
