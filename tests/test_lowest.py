"""What `./dev test lowest` installs: of each requirement the lower bound counts, and once there is an index, of core as well."""

from __future__ import annotations

import subprocess
import sys

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


@pytest.mark.parametrize(
    ("line", "is_right"),
    [
        ("import there_is_no_such_library", True),  # which an extra would bring
        ("import package_here.no_such_module", False),
        ("from json import no_such_name", False),
        ("raise TypeError('a version that does not know this')", False),
    ],
)
def test_a_module_that_the_lowest_versions_cannot_import_is_told(tmp_path, line, is_right):
    for name, text in {
        "__init__": "",
        "works": "",
        "__main__": "raise SystemExit(3)",
        "odd": line,
    }.items():
        (tmp_path / "package_here").mkdir(exist_ok=True)
        (tmp_path / "package_here" / f"{name}.py").write_text(text)
    program = [sys.executable, "-c", lowest.IMPORTS, "package_here"]
    ran = subprocess.run(program, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (ran.returncode == 0) is is_right, ran.stderr
    assert ("odd is left out" in ran.stdout) is is_right


def test_what_is_only_imported_gets_no_tool_of_its_tests():
    requirements, own = lowest.plan("headrace-vision", tests=False, on_index=False)
    assert "headrace-cv" not in own
    assert "pydantic<3,>=2.7" in requirements
    assert "onnx" not in {Requirement(text).name for text in requirements}


@pytest.mark.parametrize(
    ("arguments", "ran"),
    [
        (["core", "-kx"], {"headrace": (False, ["-kx"])}),
        (["core", "--imports"], {"headrace": (False, []), "headrace-vision": (True, [])}),
        (["--imports"], {"headrace": (True, []), "headrace-vision": (True, [])}),
        ([], {"headrace": (False, []), "headrace-vision": (False, [])}),
    ],
)
def test_the_distributions_that_are_not_named_are_imported(monkeypatch, arguments, ran):
    calls = {}

    def note(name, environment, options, *, imports):
        calls[name] = (imports, options)
        return True

    monkeypatch.setattr(lowest, "run", note)
    assert lowest.main(arguments) == 0
    others = {name for name in calls if name not in ran}
    assert {name: calls[name] for name in ran} == ran
    assert others <= {*PROJECTS} - {*lowest.LEFT_OUT}
    assert (len(calls) > 10) is (len(ran) > 1)
