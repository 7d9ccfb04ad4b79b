"""Every backend of this plugin keeps every rule of the contract; pytest collects a test per rule."""

from importlib.metadata import entry_points

import pytest

from headrace_cv import conformance
from headrace_cv.conformance import *  # noqa: F403 - a conformance class per backend

pytestmark = pytest.mark.first("decode, resize and crop pictures: each backend keeps every rule")


def test_every_backend_has_a_conformance_class():
    backends = {e.name for e in entry_points(group="headrace.backends") if "headrace_cv" in e.value}
    classes = {
        e.name: e for e in entry_points(group="headrace.conformance") if "headrace_cv" in e.value
    }
    assert set(classes) == backends
    assert {e.load().__name__ for e in classes.values()} == set(conformance.__all__)
    for name, entry in classes.items():
        assert entry.load().expression.partition("(")[0] == name


def test_no_rule_is_excepted():
    for name in conformance.__all__:
        assert dict(getattr(conformance, name).expected_failures) == {}
