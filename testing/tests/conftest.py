"""Fixtures that the tests of the kit share."""

from __future__ import annotations

import pytest

import headrace


@pytest.fixture(scope="session", autouse=True)
def loaded():
    """Load all of core: pytester forgets the modules that a run of pytest inside a test has loaded."""
    headrace.plugins.build({"backend": "Identity"}).close()
