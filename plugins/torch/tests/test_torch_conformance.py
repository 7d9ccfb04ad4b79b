"""Every backend of this plugin keeps every rule of the contract; pytest collects a test per rule."""

from importlib.metadata import distribution

import pytest

from headrace_torch import conformance
from headrace_torch.conformance import *  # noqa: F403 - a conformance class per backend

if conformance.DEVICE != "cpu":  # as `scripts/check gpu` runs them
    pytestmark = pytest.mark.gpu


def test_every_backend_has_a_conformance_class():
    entries = distribution("headrace-torch").entry_points
    backends = {e.name for e in entries if e.group == "headrace.backends"}
    classes = {e.name: e for e in entries if e.group == "headrace.conformance"}
    assert set(classes) == backends
    assert {e.load().__name__ for e in classes.values()} == set(conformance.__all__)
    for name, entry in classes.items():
        assert entry.load().expression.partition("(")[0] == name


def test_no_rule_is_excepted():
    for name in conformance.__all__:
        assert dict(getattr(conformance, name).expected_failures) == {}
