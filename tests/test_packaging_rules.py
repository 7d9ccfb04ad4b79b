"""The rules of packaging: each rejects a distribution that breaks it alone, and those of this repository keep all."""

from __future__ import annotations

import shutil
from pathlib import Path

import packaging_rules
import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[1]

PROJECT = """
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"
[project]
name = "headrace-sound"
version = "1.0"
description = "Sound."
readme = "README.md"
requires-python = ">=3.10"
license = "Apache-2.0"
license-files = ["LICENSE"]
classifiers = [
  "Programming Language :: Python :: 3.10", "Programming Language :: Python :: 3.11",
  "Programming Language :: Python :: 3.12", "Programming Language :: Python :: 3.13",
  "Programming Language :: Python :: 3.14",
]
[project.urls]
Source = "https://headrace.example/source"
[tool.hatch.build.targets.wheel]
packages = ["src/headrace_sound"]
"""
HOOK = """
from hatchling.builders.hooks.plugin.interface import BuildHookInterface
class Hook(BuildHookInterface):
    def initialize(self, version, build_data):
        import pathlib, time
        path = pathlib.Path(self.root, "src/headrace_sound/built.py")
        path.write_text(f"AT = {time.perf_counter_ns()}")
"""


@pytest.fixture
def source(tmp_path) -> Path:
    """A small distribution that keeps every rule."""
    top = tmp_path / "sound"
    package = top / "src" / "headrace_sound"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text('"""Sound."""\n')
    (package / "py.typed").touch()
    (top / "pyproject.toml").write_text(PROJECT)
    (top / "README.md").write_text(
        "# Sound\n\nIt is sound: [source](https://headrace.example/source).\n"
    )
    shutil.copy(ROOT / "LICENSE", top)
    return top


def broken_rules(source: Path, out: Path) -> dict[str, list[str]]:
    built = packaging_rules.build(source, out)
    found = {rule.__name__: rule(built) for rule in packaging_rules.RULES}
    return {name: problems for name, problems in found.items() if problems}


def change(source: Path, name: str, before: str, after: str) -> None:
    text = (source / name).read_text()
    assert before in text
    (source / name).write_text(text.replace(before, after))


def another_license(source):
    (source / "LICENSE").write_text("All rights reserved.\n")


def no_address(source):
    change(
        source, "pyproject.toml", '[project.urls]\nSource = "https://headrace.example/source"\n', ""
    )


def an_older_python(source):
    change(source, "pyproject.toml", ">=3.10", ">=3.8")


def no_types(source):
    (source / "src" / "headrace_sound" / "py.typed").unlink()


def a_test_inside(source):
    (source / "src" / "headrace_sound" / "test_sound.py").touch()


def two_packages(source):
    (source / "src" / "other").mkdir()
    (source / "src" / "other" / "__init__.py").touch()
    change(
        source, "pyproject.toml", '["src/headrace_sound"]', '["src/headrace_sound", "src/other"]'
    )


def a_link_by_a_path(source):
    change(source, "README.md", "https://headrace.example/source", "../docs/start.md")


def no_readme(source):
    change(source, "pyproject.toml", 'readme = "README.md"\n', "")


def the_time_inside(source):
    (source / "hatch_build.py").write_text(HOOK)
    change(
        source,
        "pyproject.toml",
        "[tool.hatch.build.targets.wheel]",
        "[tool.hatch.build.hooks.custom]\n[tool.hatch.build.targets.wheel]",
    )


def a_file_that_the_sdist_lacks(source):
    (source / "src" / "headrace_sound" / "words.txt").write_text("words")
    with (source / "pyproject.toml").open("a") as written:
        written.write('[tool.hatch.build.targets.sdist]\nexclude = ["words.txt"]\n')


def a_library_that_it_does_not_require(source):
    (source / "src" / "headrace_sound" / "__init__.py").write_text("import numpy\n")


def a_program_that_needs_more_than_the_install_line(source):
    with (source / "README.md").open("a") as written:
        written.write(
            "\n```console\n$ pip install headrace-sound\n```\n\n```python\nimport numpy\n```\n"
        )


BROKEN = {
    another_license: "has_license",
    no_address: "has_metadata",
    an_older_python: "has_metadata",
    no_types: "holds_its_package_alone",
    a_test_inside: "holds_its_package_alone",
    two_packages: "holds_its_package_alone",
    a_link_by_a_path: "links_outside",
    no_readme: "is_rendered",
    the_time_inside: "is_the_same_twice",
    a_file_that_the_sdist_lacks: "is_whole_in_its_sdist",
    a_library_that_it_does_not_require: "runs_alone",
    a_program_that_needs_more_than_the_install_line: "runs_alone",
}


def test_every_rule_has_a_distribution_that_it_rejects():
    assert {*BROKEN.values()} == {rule.__name__ for rule in packaging_rules.RULES}


def test_a_sound_distribution_keeps_every_rule(source, tmp_path):
    assert broken_rules(source, tmp_path / "out") == {}


@pytest.mark.parametrize("breaks", BROKEN, ids=lambda one: one.__name__)
def test_a_broken_distribution_is_rejected_by_the_rule_it_breaks(breaks, source, tmp_path):
    breaks(source)
    found = broken_rules(source, tmp_path / "out")
    assert BROKEN[breaks] in found
    # What the time inside changes is another in the wheel of the sdist, too.
    assert {*found} <= {
        BROKEN[breaks],
        *(["is_whole_in_its_sdist"] if breaks is the_time_inside else []),
    }


@pytest.mark.parametrize("folder", packaging_rules.folders(), ids=lambda one: one.name)
def test_each_distribution_keeps_every_rule(folder, tmp_path):
    assert broken_rules(folder, tmp_path / "out") == {}
