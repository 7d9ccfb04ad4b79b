"""What `./dev test` of a clone without a change runs: a test for each row of the README's table, and for each distribution."""

from __future__ import annotations

import ast
import re
import sys

import pytest
import uv_install
from distributions import ROOT, folders
from pages import Page
from processes import run_process

NOT_QUICK = {"browser", "docs", "gpu", "peers", "ray", "slow", "stress", "whole_device"}
FIRST = "pytest.mark.first"


def reasons(node: ast.AST) -> list[str]:
    """Return what the marks ``first`` in a part of a module say; an empty text for one that says nothing."""
    calls = {one.func: one.args for one in ast.walk(node) if isinstance(one, ast.Call)}
    marks = [one for one in ast.walk(node) if isinstance(one, ast.Attribute)]
    given = [calls.get(one, []) for one in marks if ast.unparse(one) == FIRST]
    return [ast.literal_eval(one[0]).strip() if one else "" for one in given]


def left_out(node: ast.AST) -> bool:
    """Tell whether a test, or a whole module, is first and has a mark by which it is not quick as well."""
    wholes = getattr(node, "decorator_list", None)
    if wholes is None:
        is_of_module = isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "pytestmark"
        wholes = getattr(node.value, "elts", [node.value]) if is_of_module else []
    marks = {ast.unparse(one).partition("(")[0].removeprefix("pytest.mark.") for one in wholes}
    return "first" in marks and bool(marks & NOT_QUICK)


def modules() -> dict[str, ast.Module]:
    """Return the modules of tests that name the mark, by their paths."""
    listed = [one for top in folders() for one in sorted(top.glob("tests/**/test_*.py"))]
    texts = {
        path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8")
        for path in [*listed, *sorted((ROOT / "tests").glob("test_*.py"))]
    }
    return {name: ast.parse(text) for name, text in texts.items() if "mark.first" in text}


MODULES = {name: tree for name, tree in modules().items() if reasons(tree)}
REASONS = {name: reasons(tree) for name, tree in MODULES.items()}


def rows(table: str) -> list[str]:
    """Return the first cells of a table, without the addresses of links."""
    cells = re.findall(r"^\| (.*?) \|.*\|$", table, re.MULTILINE)[1:]
    return [re.sub(r"\[(.*?)\]\(.*?\)", r"\1", cell) for cell in cells if not cell.startswith("-")]


def uncovered(jobs: list[str]) -> list[str]:
    """Return the rows for which no test is first."""
    said = [reason for each in REASONS.values() for reason in each]
    return [job for job in jobs if not any(one.startswith(f"{job}: ") for one in said)]


def test_each_row_of_the_table_of_the_readme_has_a_first_test():
    jobs = rows(Page("README.md", "What you can do with it").text)
    assert len(jobs) > 8
    assert uncovered(jobs) == []
    assert uncovered(["translate poems"]) == ["translate poems"]


def test_each_distribution_has_a_first_test():
    names = [folder.relative_to(ROOT).as_posix() for folder in folders()]
    without = [one for one in names if not any(path.startswith(f"{one}/") for path in MODULES)]
    assert without == []


def test_each_first_test_has_a_reason_and_is_quick():
    assert [name for name, said in REASONS.items() if not all(said)] == []
    assert [name for name, tree in MODULES.items() for one in tree.body if left_out(one)] == []


@pytest.mark.parametrize(
    ("text", "said", "is_left_out"),
    [
        ("@pytest.mark.first('a: b')\ndef test_it(): pass", ["a: b"], False),
        ("@pytest.mark.first\ndef test_it(): pass", [""], False),
        ("@pytest.mark.first(' ')\ndef test_it(): pass", [""], False),
        ("@pytest.mark.slow\n@pytest.mark.first('a')\ndef test_it(): pass", ["a"], True),
        ("pytestmark = [pytest.mark.slow, pytest.mark.first('a')]", ["a"], True),
        ("pytest.mark.first('a')(Class)", ["a"], False),
    ],
)
def test_a_mark_is_found_wherever_it_stands(text, said, is_left_out):
    (node,) = ast.parse(text).body
    assert (reasons(node), left_out(node)) == (said, is_left_out)


# What installs for it.


def test_uv_is_told_the_settings_of_pip_of_which_the_nearest_counts():
    listed = """:env:.default-timeout='180'
:env:.find-links='/wheels /others'
global.index-url='https://one.example/simple'
install.index-url='https://two.example/simple'
global.extra-index-url='\\nhttps://three.example/simple'
global.no-index='false'
wheel.no-index='true'
global.disable-pip-version-check='1'
"""
    options, variables = uv_install.translated(uv_install.settings(listed))
    assert options == [
        *("--index-strategy", "unsafe-best-match"),
        *("--find-links", "/wheels", "--find-links", "/others"),
    ]
    assert variables == {
        "UV_DEFAULT_INDEX": "https://two.example/simple",
        "UV_INDEX": "https://three.example/simple",
        "UV_HTTP_RETRIES": "10",
        "UV_HTTP_TIMEOUT": "180",
    }
    assert uv_install.translated({"no-index": "1"})[0] == ["--no-index"]


def test_a_setting_that_uv_does_not_have_is_left_to_pip(tmp_path):
    pip = {"PIP_CONFIG_FILE": "/dev/null", "PIP_PLATFORM": "any", "PATH": "/usr/bin:/bin"}
    script = ROOT / "scripts" / "uv_install.py"
    done = run_process(
        [sys.executable, script, tmp_path / "uv", "x"], env={**pip, "HOME": str(tmp_path)}
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert "nothing for platform" in done.stderr
