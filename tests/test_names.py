"""Functions of core are named for what they do or for what they give. Both numbers of exceptions only fall."""

from __future__ import annotations

import ast
import collections
import importlib
import inspect
import re
from pathlib import Path

from distributions import folders

import headrace

ROOT = Path(__file__).parents[1]
CORE = ROOT / "core" / "src" / "headrace"

STATES = 2
"""How many functions of core may still be named by a bare participle or adjective."""

OTHER_VERBS = 105
"""How many functions of core that return nothing may still begin with another word than a verb of the list."""

HOLLOW = {
    "asked": (0, 53),
    "found": (0, 4),
    "given": (2, 58),
    "held": (0, 28),
    "kept": (1, 18),
    "made": (0, 1),
    "near": (0, 17),
    "one": (0, 4),
    "own": (0, 146),
    "said": (0, 24),
    "seen": (4, 2),
    "those": (0, 0),
    "told": (0, 34),
    "wanted": (0, 30),
    "what": (2, 22),
    "wrong": (0, 47),
}
"""Names of variables and parameters that say nothing: how many there may be in core, where they are public, and around it."""

IRREGULAR = {
    *(
        "alone",
        "asleep",
        "bare",
        "begun",
        "bound",
        "broken",
        "busy",
        "chosen",
        "done",
        "drawn",
        "due",
        "empty",
        "found",
    ),
    *(
        "free",
        "full",
        "given",
        "gone",
        "held",
        "hidden",
        "idle",
        "kept",
        "known",
        "laid",
        "late",
        "led",
        "left",
        "lost",
    ),
    *(
        "made",
        "met",
        "overdue",
        "paid",
        "plain",
        "ready",
        "said",
        "seen",
        "sent",
        "shown",
        "shut",
        "spent",
        "taken",
    ),
    *("told", "torn", "unfit", "unfinished", "whole", "won", "woken", "worn", "written", "wrong"),
}
"""Participles that do not end in -ed, and adjectives."""

NO_NOUNS = {
    "again",
    "as",
    "back",
    "by",
    "from",
    "here",
    "in",
    "of",
    "on",
    "out",
    "over",
    "to",
    "up",
}
"""What follows a participle without telling what the function gives."""

REGULAR = re.compile(r"(?!embed|exceed|feed|heed|need|proceed|seed|speed|succeed)\w+ed")


def verbs():
    """Read the list of verbs in CONTRIBUTING."""
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    (section,) = re.findall(r"^## Names of functions\n(.*?)^## ", text, re.MULTILINE | re.DOTALL)
    return re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE)


def public_methods():
    """Find the methods of public classes: their names are not core's to choose any more."""
    modules = [
        importlib.import_module(f"headrace.{one}")
        for one in headrace.__all__
        if inspect.ismodule(getattr(headrace, one))
    ]
    values = [getattr(module, name) for module in (headrace, *modules) for name in module.__all__]
    found = {name for value in values if inspect.isclass(value) for name in dir(value)}
    return {name for name in found if not name.startswith("_")} | {
        value.__name__ for value in values if inspect.isfunction(value)
    }


def is_property(node):
    names = {getattr(one, "id", getattr(one, "attr", "")) for one in node.decorator_list}
    return bool(names & {"property", "cached_property", "setter"})


def functions():
    """Find the functions whose names core chooses, by file and line."""
    public = public_methods()
    for path in sorted(CORE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) or is_property(node):
                continue
            if not node.name.startswith("__") and node.name not in public:
                yield f"{path.relative_to(CORE)}:{node.lineno} {node.name}", node


def words_of(node):
    return node.name.strip("_").split("_")


def is_state(words):
    """Tell whether a name is a participle or an adjective, with nothing behind it that it describes."""
    first, *rest = words
    return (first in IRREGULAR or bool(REGULAR.fullmatch(first))) and not set(rest) - NO_NOUNS


def test_no_more_functions_are_named_by_a_state():
    found = [where for where, node in functions() if is_state(words_of(node))]
    assert len(found) <= STATES, found


def test_a_function_that_returns_nothing_begins_with_a_verb_of_the_list():
    listed = verbs()
    assert 15 < len(listed) <= 25
    found = [
        where
        for where, node in functions()
        if isinstance(node.returns, ast.Constant)
        and node.returns.value is None
        and words_of(node)[0] not in listed
    ]
    assert len(found) <= OTHER_VERBS, found


def bound_names(folder):
    """Count what the sources of a folder call their variables and parameters."""
    nodes = (
        node
        for path in (folder / "src").rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
    )
    return collections.Counter(
        node.arg if isinstance(node, ast.arg) else node.id
        for node in nodes
        if isinstance(node, ast.arg)
        or (isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store))
    )


def test_no_more_variables_have_a_name_that_says_nothing():
    core = bound_names(ROOT / "core")
    around = sum(map(bound_names, {*folders()} - {ROOT / "core"}), collections.Counter())
    assert min(core["request"], around["request"]) > 50
    counts = {name: (core[name], around[name]) for name in HOLLOW}
    assert {
        name: n for name, n in counts.items() if n[0] > HOLLOW[name][0] or n[1] > HOLLOW[name][1]
    } == {}
