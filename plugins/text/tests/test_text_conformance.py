"""The backends keep every rule of the contract; pytest collects a test per rule and class."""

import pytest

from headrace_text.conformance import NormalizeConformance, PoolConformance, TokenizeConformance

__all__ = ["NormalizeConformance", "PoolConformance", "TokenizeConformance"]

pytest.mark.first("the backend keeps every rule")(NormalizeConformance)
pytest.mark.slow(PoolConformance)
pytest.mark.slow(TokenizeConformance)
