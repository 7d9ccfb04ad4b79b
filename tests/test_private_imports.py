"""How many modules of tests look into core: a frozen number, so that core can be changed behind its public names."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]

MOST_OF_CORE = 2
"""How many modules under ``core/tests`` may name a private module; it only ever falls."""

OTHERS = {
    "cli/tests/test_cli_commands.py",
    "cli/tests/test_cli_schema.py",
    "cli/tests/test_cli_sources.py",
    "testing/tests/test_testing_conformance.py",
}
"""The modules of tests of other distributions that name one; it only ever shrinks."""


def private(name: str) -> bool:
    """Tell whether a dotted name leads through a private module of core, as ``headrace._language.plan.word`` does."""
    package, *inside = name.split(".")
    return package == "headrace" and any(re.match("_[^_]", part) for part in inside)


def named(code: str) -> set[str]:
    """Return the private names of core that a module of tests imports.

    Its imports count, texts that are a dotted name, as `monkeypatch.setattr` takes them, and the imports of a program
    that is written as a text.
    """
    found: set[str] = set()
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Import):
            found.update(one.name for one in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            found.update(f"{node.module}.{one.name}" for one in node.names)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            text = re.sub(r"\bfrom ([\w.]+) import (\w+)", r"import \1.\2", node.value)
            found.update([text], re.findall(r"\bimport ([\w.]+)", text))
    return {one for one in found if re.fullmatch(r"[\w.]+", one) and private(one)}


def who(*folders: str) -> set[str]:
    """Return the modules of tests in some folders that name a private module of core."""
    paths = (path for folder in folders for path in ROOT.glob(f"{folder}/**/*.py"))
    return {
        str(path.relative_to(ROOT)) for path in paths if named(path.read_text(encoding="utf-8"))
    }


@pytest.mark.parametrize(
    ("code", "seen"),
    [
        ("import headrace._language.plan.word", {"headrace._language.plan.word"}),
        ("from headrace._language.plan import word", {"headrace._language.plan.word"}),
        ("from headrace import _run", {"headrace._run"}),
        (
            "def f():\n    from headrace.words._exchange import run",
            {"headrace.words._exchange.run"},
        ),
        (
            "patch.setattr('headrace._language.plan.word.MOST', 3)",
            {"headrace._language.plan.word.MOST"},
        ),
        ("run('import headrace._run.process; print(1)')", {"headrace._run.process"}),
        ("run('from headrace import _run')", {"headrace._run"}),
        ("import headrace.plugins, headrace.__main__, numpy._core", set()),
        ("assert headrace.__version__ == pipe._engine", set()),
        ("'''A text about headrace._language.plan, which is private.'''", set()),
    ],
)
def test_what_counts_as_private(code, seen):
    assert named(code) == seen


def test_tests_of_core_look_into_no_more_modules_than_they_did():
    found = sorted(who("core/tests"))
    shown = "\n  ".join(found)
    assert len(found) <= MOST_OF_CORE, (
        f"{len(found)} modules under core/tests name a private module of core, {MOST_OF_CORE} may:\n  {shown}\n"
        "Write the new test through public names (headrace.__all__ and the public modules), or let it use what "
        "conftest.py and the modules beside it offer (nothing_registered, internals.py, expressions_by_hand.py)."
    )
    assert len(found) == MOST_OF_CORE, f"fewer than before: set MOST_OF_CORE = {len(found)}"


def test_tests_of_other_distributions_look_into_core_in_known_places_only():
    found = who("plugins/*/tests", "libs/*/tests", "cli/tests", "testing/tests")
    more, gone = sorted(found - OTHERS), sorted(OTHERS - found)
    assert not more, (
        f"{more} name a private module of core: use public names, as a plugin of others would"
    )
    assert not gone, f"{gone} name none any more: take them out of OTHERS"
