"""The table of known attacks: each has tests, and each test is there."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


def rows() -> list[tuple[str, list[str]]]:
    """Return what each row of the table says of an attack, and the tests that it names."""
    text = (ROOT / "SECURITY.md").read_text(encoding="utf-8").partition("## Known attacks")[2]
    lines = [line.split(" | ") for line in text.splitlines() if line.startswith("| ")][1:]
    return [(attack, re.findall("`([^`]+)`", tests)) for attack, _, tests in lines]


@pytest.mark.parametrize(("attack", "tests"), rows())
def test_each_attack_has_tests_and_they_exist(attack: str, tests: list[str]) -> None:
    assert tests, attack
    for one in tests:
        path, _, name = one.partition("::")
        tree = ast.parse((ROOT / "plugins" / path).read_text(encoding="utf-8"))
        assert name in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}


def test_the_attacks_that_have_a_number_are_told_by_it() -> None:
    numbers = re.findall(r"CVE-\d{4}-\d{4,}", " ".join(attack for attack, _ in rows()))
    assert len(numbers) == len(set(numbers)) >= 12
