"""Fixtures that the tests of the command line share."""

from __future__ import annotations

import importlib.metadata
import sys

import pytest

AT_START = list(sys.path)


@pytest.fixture(scope="session", autouse=True)
def environment_read_once():
    """Which package is whose is read once of the environment; anew of folders that tests put before it."""
    read = importlib.metadata.packages_distributions
    known = read()

    def with_folders_of_tests():
        added = [folder for folder in sys.path if folder not in AT_START]
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(sys, "path", added)
            found = read()
        return {name: [*found.get(name, ()), *known.get(name, ())] for name in {**found, **known}}

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(importlib.metadata, "packages_distributions", with_folders_of_tests)
        yield
