"""Every backend of this plugin keeps every rule of the contract; pytest collects a test per rule."""

from importlib.metadata import entry_points

import pytest

from headrace_vision import conformance
from headrace_vision.conformance import *  # noqa: F403 - a conformance class per backend


def test_every_backend_has_a_conformance_class():
    def names(group):
        return {e.name: e for e in entry_points(group=group) if "headrace_vision" in e.value}

    classes = names("headrace.conformance")
    assert set(classes) == set(names("headrace.backends"))
    assert {e.load().__name__ for e in classes.values()} == set(conformance.__all__)


pytest.mark.first("read videos and cameras: the backend keeps every rule")(
    conformance.KeysConformance
)
