"""The words of core: planner and builder import none, and what a word refuses it says."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
from loading import problems

import headrace

SOURCE = Path(headrace.__file__).parent


@pytest.mark.parametrize("package", ["plan", "building"])
def test_planner_and_builder_import_no_word(package):
    files = [*SOURCE.joinpath("_language", package).glob("*.py")]
    assert files
    for file in files:
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            modules = [node.module] if isinstance(node, ast.ImportFrom) else []
            modules += [one.name for one in node.names] if isinstance(node, ast.Import) else []
            assert not [m for m in modules if m and "words" in m.split(".")], file.name


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ("S[(or)Identity,Identity]", "(or) cannot stand before the first element of S"),
        ("IoC[Identity,Identity;Identity]", "'Identity' stands twice before ';'"),
        ("IoC[Identity;S[Identity],Identity]", "IoC has one expression after ';'"),
        ("Forward[main(a=1)]", "Forward takes a name here, without ( ) and [ ]"),
        (
            {
                "a": {"backend": "CatSplit[Identity,(or)Identity,Identity]"},
            },
            "CatSplit does not understand the prefix (or)",
        ),
        ("Reflect[which]", "node 'main' needs the key 'which'"),
        ({"backend": "Reflect[a]", "a": "S[Reflect[a]]"}, "'a' uses itself: a uses a"),
        ("IoC[Identity]", "IoC has 2 phases in brackets, separated by ';', got 1"),
        ("S[Identity;Identity]", "S has one phase in brackets, separated by ';', got 2"),
        ("CatSplit[Identity,Identity]", "CatSplit takes 3 in brackets, got 2"),
        ("Reflect[a,Identity,Identity]", "Reflect takes 1 to 2 in brackets, got 3"),
        ("S", "S takes 1 or more in brackets, got 0"),
        ("Identity[Identity]", "Identity takes nothing in brackets"),
        ("Call(a,b,c)", "Call takes at most 1 positional (function), got 3"),
        ("Call(f)", "a function is named as package.module:name"),
        ("Call(no.such:f)", "Call needs the module 'no'"),
        ("Call(html.no_such:f)", "Call needs the module 'html.no_such'"),
    ],
)
def test_what_a_word_refuses_it_says(config, message):
    found = problems(config if isinstance(config, dict) else {"backend": config})
    assert [p for p in found if message in p.message], found


@pytest.mark.parametrize("node", [{"max": 2}, {"init": "Identity"}])
def test_a_node_without_backend_is_told_of(node):
    found = problems({"a": node})
    assert "a" in [p.path for p in found if "node 'a' needs the key 'backend'" in p.message]
