"""What users rely on: the public surface is the one in the file, deprecations say what they must, one address stands everywhere."""

from __future__ import annotations

import importlib
import inspect
import json
import sys
from importlib.metadata import entry_points

import address
import deprecations
import public_names
import pytest
from distributions import folders
from processes import run_process

FOLDERS = {
    package.name: folder
    for folder in folders()
    for package in (folder / "src").iterdir()
    if package.name.isidentifier()
}
HEAVY = {
    *("PIL", "asyncio", "av", "cuda", "cv2", "filelock", "google.protobuf", "grpc", "numpy"),
    *("onnx", "onnxruntime", "ray", "starlette", "supervision", "tensorrt", "tensorrt_rtx"),
    *("tokenizers", "torch", "uvicorn"),
}
ALLOWED = {"headrace_models": {"asyncio", "headrace.errors"}}
"""What a package loads that the others do not: it comes last."""
LIGHT = {
    "headrace_tensors": "Port read_item is_lost find_crops warm_up_rows joined read_capsule",
    "headrace_cv": "check_image_file",
}
"""Names beside the backends that load no library."""
OPTIONS = {
    "LetterBoxMat": {"resize_h": 4, "resize_w": 4, "fill_value": [1, 2, 3]},
    "ResizeMat": {"resize_h": 4},
    "Mat2Tensor": {"mean": [1, 2, 3]},
}
"""Options that are checked without a library."""
BACKENDS = [
    entry
    for entry in entry_points(group="headrace.backends")
    if entry.value.partition(".")[0].partition(":")[0] in FOLDERS
]


@pytest.mark.parametrize("name", FOLDERS)
def test_all_names_of_a_package_resolve_and_are_listed(name):
    package = importlib.import_module(name)
    assert {*package.__all__} <= {*dir(package)}
    assert len({*package.__all__}) == len(package.__all__)
    for one in package.__all__:
        try:
            found = getattr(package, one)
        except (
            ModuleNotFoundError
        ) as error:  # a library that is not installed, and no module of ours
            found = None if error.name.startswith("headrace") else error
        assert found is not None, one
    with pytest.raises(AttributeError, match="nonsense"):
        package.nonsense  # noqa: B018


def test_packages_and_their_backends_load_no_heavy_library():
    program = f"""
import importlib, sys
from importlib.metadata import EntryPoint

def loaded(who, heavy):
    found = heavy & {{*sys.modules}} - seen
    seen.update(found)
    if found:
        print(who, sorted(found))

seen = set()
for name in {sorted(FOLDERS, key=ALLOWED.__contains__)}:
    importlib.import_module(name)
    seen |= {ALLOWED}.get(name, set())
    loaded(name, {HEAVY | {"pydantic", "headrace.errors"}})
for name, value in {[(entry.name, entry.value) for entry in BACKENDS]}:
    options = EntryPoint(name, value, "").load().Options
    options(**{OPTIONS}[name]) if name in {[*OPTIONS]} else None
    loaded(value, {HEAVY})
for name, light in {LIGHT}.items():
    [getattr(importlib.import_module(name), one) for one in light.split()]
    loaded(light, {HEAVY})
"""
    command = [sys.executable, "-W", "error", "-c", program]
    done = run_process(command)
    assert (done.stdout, done.stderr) == ("", "")


def test_every_docstring_of_a_backend_has_all_sections():
    lost = {
        (entry.name, section)
        for entry in BACKENDS
        for section in ("Reads", "Writes", "Batch", "Raises", "Source")
        if f"\n{section}:" not in inspect.cleandoc(entry.load().__doc__)
    }
    assert lost == set()


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
