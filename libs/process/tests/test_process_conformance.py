"""Process keeps every rule of the contract; pytest collects a test per rule and class."""

import pytest

from headrace_process.conformance import ProcessConformance

pytestmark = pytest.mark.slow

__all__ = ["ProcessConformance"]
