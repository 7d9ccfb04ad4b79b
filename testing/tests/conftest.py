"""Fixtures that the tests of the kit share."""

from __future__ import annotations

import pytest

import headrace
from headrace._registry.registry import registry


@pytest.fixture(scope="session", autouse=True)
def loaded():
    """Load all of core: pytester forgets the modules that a run of pytest inside a test has loaded."""
    headrace.plugins.build({"backend": "Identity"}).close()


@pytest.fixture(autouse=True)
def registered():
    """Forget after a test what it has registered, so that the order of tests does not matter."""
    local, before = registry.local, dict(registry.local)
    yield
    local.clear()
    local.update(before)
