"""What `./dev test lowest` installs: of each requirement the lower bound counts, and once there is an index, of core as well."""

from __future__ import annotations

import distributions
import lowest
import pytest
from packaging.requirements import Requirement

PROJECTS = {
    distributions.project(folder)["name"]: distributions.project(folder)
    for folder in distributions.folders()
}


def of_others(name):
    """Return what a distribution requires of others, on any system."""
    found = [Requirement(text) for text in PROJECTS[name].get("dependencies", ())]
    return {one.name for one in found if one.name not in PROJECTS and one.marker is None}


@pytest.mark.parametrize("name", PROJECTS)
def test_what_a_distribution_requires_is_installed_and_those_of_this_repository_from_here(name):
    requirements, own = lowest.plan(name, on_index=False)
    asked = {Requirement(text).name for text in requirements}
    assert of_others(name) <= asked
    assert not asked & {*PROJECTS}
    assert {name, "headrace", "headrace-testing"} <= {*own}
    # Those that it needs need others in turn.
    assert all(of_others(one) <= asked for one in own)


def test_on_an_index_a_plugin_gets_the_oldest_core_of_its_range():
    requirements, own = lowest.plan("headrace-ort", on_index=True)
    assert own == ["headrace-ort"]
    ranges = {Requirement(one).name: str(Requirement(one).specifier) for one in requirements}
    assert ranges["headrace"] == "<0.2,>=0.1"
    assert ranges["headrace-tensors"] == "<0.2,>=0.1"
    assert "headrace-testing" in ranges


def test_no_upper_bound_hides_the_lower_one():
    """Each requirement of others has a lower bound: without one the lowest version would be the first ever."""
    without = [
        (name, text)
        for name, project in PROJECTS.items()
        for text in project.get("dependencies", ())
        if Requirement(text).name not in PROJECTS
        and not any(one.operator in {">=", "==", "~="} for one in Requirement(text).specifier)
    ]
    assert without == []


def test_what_the_tables_name_exists():
    for table in (lowest.LEFT_OUT, lowest.EXTRAS, lowest.TESTS, lowest.BESIDE, lowest.LIGHT):
        assert {*table} <= {*PROJECTS}
    assert {one for names in lowest.BESIDE.values() for one in names} <= {*PROJECTS}
    for name, extras in lowest.EXTRAS.items():
        assert {*extras} <= {*PROJECTS[name]["optional-dependencies"]}
