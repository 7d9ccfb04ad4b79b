"""Remote keeps every rule of the contract; pytest collects a test per rule and class."""

import pytest

from headrace_remote.conformance import RemoteConformance

__all__ = ["RemoteConformance"]

pytest.mark.first("use other processes and machines: the backend keeps every rule")(
    RemoteConformance
)
