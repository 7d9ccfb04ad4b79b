"""No module imports itself through others when it runs: imports inside of functions count.

What is imported under ``TYPE_CHECKING`` does not run, and does not count. The contracts of import-linter leave it out as well.
"""

from __future__ import annotations

import ast
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parents[1]
SOURCES = [*ROOT.glob("*/src"), *ROOT.glob("libs/*/src"), *ROOT.glob("plugins/*/src")]


def modules_under(source: Path) -> dict[str, ast.Module]:
    """The syntax tree of each module below a folder, by name; templates are no modules."""
    found = {}
    for path in source.rglob("*.py"):
        parts = path.relative_to(source).with_suffix("").parts
        if all(part.isidentifier() for part in parts) and "_templates" not in parts:
            found[".".join(parts).removesuffix(".__init__")] = ast.parse(path.read_text())
    return found


def is_for_types(node: ast.AST) -> bool:
    """Whether a statement is ``if TYPE_CHECKING``."""
    return isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING")


def imports_of(tree: ast.Module, *, types: bool = False) -> Iterator[tuple[str, str | None]]:
    """Each module that is imported, with the name that is taken out of it; also for types alone where ``types`` says so."""
    left: list[ast.AST] = [tree]
    while left:
        node = left.pop()
        if types or not is_for_types(node):
            left += ast.iter_child_nodes(node)
        elif isinstance(node, ast.If):
            left += node.orelse
        if isinstance(node, ast.Import):
            yield from ((alias.name, None) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from ((str(node.module), alias.name) for alias in node.names)


def graph_of(trees: dict[str, ast.Module]) -> dict[str, set[str]]:
    """Which module imports which; what a package hands on is imported from where it is written."""

    packages = {one.rpartition(".")[0] for one in trees}

    def home(module: str, name: str | None) -> str:
        if name is None or module not in trees:
            return module
        if f"{module}.{name}" in trees:
            return f"{module}.{name}"
        if module in packages:
            for other, given in imports_of(trees[module], types=True):
                if given == name:
                    return home(other, given)
        return module

    return {
        importer: {home(*found) for found in imports_of(tree)} & trees.keys() - {importer}
        for importer, tree in trees.items()
        if importer not in packages  # a package only hands names on
    }


def cycle_in(graph: dict[str, set[str]]) -> list[str]:
    """One cycle of a graph, the first module again at the end; empty if there is none."""
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return error.args[1]
    return []


def test_no_module_imports_itself_through_others():
    trees = {name: tree for source in SOURCES for name, tree in modules_under(source).items()}
    graph = graph_of(trees)
    assert len(graph) > 200
    assert cycle_in(graph) == []


@pytest.mark.parametrize(
    "importing",
    [
        "from pkg.b import B",
        "def late():\n    from pkg import b",
        "def late():\n    from pkg import B",
        "import pkg.b",
    ],
)
def test_an_import_in_a_function_or_through_the_package_counts(importing):
    texts = {"pkg": "from pkg.b import B", "pkg.a": importing, "pkg.b": "from pkg.a import A"}
    graph = graph_of({name: ast.parse(text) for name, text in texts.items()})
    assert set(cycle_in(graph)) == {"pkg.a", "pkg.b"}


@pytest.mark.parametrize("test", ["TYPE_CHECKING", "typing.TYPE_CHECKING"])
def test_an_import_for_types_does_not_count(test):
    importing = f"if {test}:\n    from pkg.b import B\nelse:\n    from pkg.c import C"
    texts = {"pkg.a": importing, "pkg.b": "from pkg.a import A", "pkg.c": "import pkg"}
    graph = graph_of({name: ast.parse(text) for name, text in texts.items()})
    assert graph["pkg.a"] == {"pkg.c"}
    assert cycle_in(graph) == []


def test_no_module_of_core_imports_the_package_itself():
    """Through the package a module may import any other one, and no arrow shows it. Examples in docstrings are no imports."""
    trees = modules_under(ROOT / "core" / "src")
    found = [
        (importer, name)
        for importer, tree in trees.items()
        for module, name in imports_of(tree, types=True)
        if module == "headrace" and (name is None or f"headrace.{name}" not in trees)
    ]
    assert len(trees) > 80
    assert [one for one in found if one[0] != "headrace"] == []
