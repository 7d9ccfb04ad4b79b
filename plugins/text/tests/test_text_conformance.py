"""The backends keep every rule of the contract; pytest collects a test per rule and class."""

import pytest

from headrace_text.conformance import NormalizeConformance, PoolConformance, TokenizeConformance

pytestmark = pytest.mark.slow

__all__ = ["NormalizeConformance", "PoolConformance", "TokenizeConformance"]
