"""What users rely on: the public surface is the one in the file, deprecations say what they must, one address stands everywhere."""

from __future__ import annotations

import json

import address
import deprecations
import public_names
import pytest

import headrace_process
import headrace_remote


@pytest.mark.parametrize("package", [headrace_process, headrace_remote])
def test_all_names_of_a_package_resolve_and_are_listed(package):
    assert sorted(package.__all__) == package.__all__ == dir(package)
    for name in package.__all__:
        assert getattr(package, name) is not None
    assert not hasattr(package, "nonsense")


BEFORE = {
    "modules": {
        "m": {
            "f": {"a": "positional or keyword", "b": "positional or keyword, optional"},
            "C": {
                "code": "c",
                "parameters": {},
                "members": {"run": {"x": "positional or keyword"}},
            },
        }
    },
    "backends": {"Word": {"size": 3}},
    "stats": {"nodes": {"main": None}},
    "commands": ["check", "run"],
}


def changed(**changes: object) -> dict:
    """Return the surface with some values at paths like ``modules/m/f`` replaced, or taken away for None."""
    made = json.loads(json.dumps(BEFORE))
    for path, value in changes.items():
        *above, last = path.split("/")
        inside = made
        for name in above:
            inside = inside[name]
        if value is None:
            del inside[last]
        else:
            inside[last] = value
    return made


def test_the_surface_is_the_one_in_the_file():
    before = json.loads(public_names.FILE.read_text(encoding="utf-8"))
    now = json.loads(json.dumps(public_names.surface()))
    assert public_names.breaking(before, now) == []
    assert now == before, "run: python scripts/public_names.py"


def test_what_is_added_breaks_nobody():
    more = {
        "modules/m/g": {},
        "modules/m/f/c": "keyword-only, optional",
        "modules/m/C/members/stop": {},
        "backends/Word/depth": 1,
        "backends/Other": {},
        "commands": ["check", "run", "new"],
    }
    assert public_names.breaking(BEFORE, changed(**more)) == []


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"modules/m/f": None}, "modules > m > f is gone"),
        ({"modules/m/f/b": None}, "modules > m > f > b is gone"),
        ({"modules/m/f/b": "positional or keyword"}, "has become 'positional or keyword'"),
        ({"modules/m/f/c": "positional or keyword"}, "f > c must be given"),
        ({"modules/m/C/members/run": None}, "members > run is gone"),
        ({"modules/m/C/code": "d"}, "code: 'c' has become 'd'"),
        ({"backends/Word/size": 4}, "size: 3 has become 4"),
        ({"backends/Word/depth": "required"}, "Word > depth must be given"),
        ({"stats/nodes/main": None}, "stats > nodes > main is gone"),
        ({"commands": ["run"]}, "commands > check is gone"),
    ],
)
def test_what_is_taken_away_is_told(changes, said):
    (one,) = public_names.breaking(BEFORE, changed(**changes))
    assert said in one


WARNS = (
    "import warnings\ndef f(name):\n    warnings.warn({text}, DeprecationWarning, stacklevel=2)\n"
)
GOOD = 'f"{name} is deprecated since 0.2 and goes in 0.4: use g"'


@pytest.mark.parametrize(
    ("text", "version", "problem"),
    [
        (GOOD, "0.2.0", ""),
        (GOOD, "0.3.7", ""),
        (GOOD, "0.4.0", "removal is due"),
        (GOOD, "1.0", "removal is due"),
        ('"f is deprecated since 0.2.0 and goes in 0.2.5: use g"', "0.2.0", "second number"),
        ('"f is old"', "0.2.0", "does not say"),
        ("name", "0.2.0", "does not say"),
    ],
)
def test_a_deprecation_says_since_until_and_instead_and_is_not_due(text, version, problem):
    (found,) = deprecations.found_in(WARNS.format(text=text), "f.py", version)
    assert found.place == "f.py:3"
    assert problem in found.problem
    assert bool(found.problem) == bool(problem)


ENTRY = "## 0.2.0 (2027-01-01)\n\n### Deprecated\n- `x` of `stats()`\n  {rest}\n- `y` goes in 0.5: use `z`.\n\n## 0.1.0\n"


@pytest.mark.parametrize(
    ("rest", "version", "problem"),
    [
        ("goes in 0.4: use `z`.", "0.3.7", ""),
        ("goes in 0.4: use `z`.", "0.4.0", "removal is due"),
        ("goes in 0.2.5: use `z`.", "0.2.0", "second number"),
        ("is old.", "0.2.0", "does not say"),
    ],
)
def test_an_entry_of_a_changelog_is_a_deprecation_as_well(rest, version, problem):
    first, second = deprecations.found_in_changelog(
        ENTRY.format(rest=rest), "CHANGELOG.md", version
    )
    assert (first.place, second.place) == ("CHANGELOG.md:4", "CHANGELOG.md:6")
    assert problem in first.problem
    assert bool(first.problem) == bool(problem)
    assert second.problem == ""


def test_other_warnings_are_no_deprecations():
    assert deprecations.found_in("import warnings\nwarnings.warn('slow')", "f.py", "0.1") == []


def test_no_removal_is_due_and_each_deprecation_says_what_it_must():
    assert [one for one in deprecations.all_found() if one.problem] == []


@pytest.mark.parametrize("folder", address.folders(), ids=lambda one: one.name)
def test_the_metadata_have_the_one_address(folder):
    text = (folder / "pyproject.toml").read_text(encoding="utf-8")
    assert address.project(folder) == text, "run: python scripts/address.py"


@pytest.mark.parametrize("page", address.documents(), ids=lambda one: one.as_posix()[-60:])
def test_what_pages_say_of_the_package_index_goes_by_one_switch(page):
    text = page.read_text(encoding="utf-8")
    if address.ON_INDEX:
        assert address.on_index(text) == text, "run: python scripts/address.py"
    else:
        address.on_index(text)  # raises where a sentence would stay


def test_the_switch_leaves_the_sentences_around_and_the_commands_that_stay():
    before = (
        '# Word\n\n```console\n$ ./dev wheels\n$ export PIP_FIND_LINKS="$PWD/dist"\n$ pip install word\n```\n\n'
        "It is not on a package index yet: in a clone of the repository,\n"
        "`./dev install` makes an environment in which `pip` finds it.\n\n"
        "In a clone, run `./dev install` first: then `pip` finds it.\n\n"
        "```console\n$ ./dev install serve vision\n$ . .venv/bin/activate\n```\n\n"
        "You need Python. It is not on a package index yet: [Install](../README.md#install)\nsays how.\n\nMore.\n"
    )
    after = (
        "# Word\n\n```console\n$ pip install word\n```\n\n"
        "```console\n$ python3 -m venv .venv\n$ . .venv/bin/activate\n"
        '$ pip install "headrace[serve,vision]"\n```\n\nYou need Python.\n\nMore.\n'
    )
    assert address.on_index(before) == after
    with pytest.raises(ValueError, match="not a sentence of its own: It needs a shell with PIP_"):
        address.on_index("# Word\n\nIt needs a shell with PIP_FIND_LINKS.\n")
