"""Sections that no interrupt tears, and sections under a lock, as the source marks them.

No interrupt tears what stands between ``# atomic`` and ``# end atomic``.
CPython raises what a signal asks for, and runs its handlers, at the begin of a function, after a call
and where a loop goes back. So these sections have none of that. Their last statement may be a call into
C that ends before the interpreter looks.
"""

from __future__ import annotations

import ast
import io
import tokenize
from pathlib import Path

import headrace

SOURCE = Path(headrace.__file__).parent

FORBIDDEN = (
    *(ast.For, ast.AsyncFor, ast.While, ast.With, ast.AsyncWith, ast.Try, ast.Raise, ast.Await),
    *(ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp, ast.Yield, ast.YieldFrom),
    *(ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda, ast.Import, ast.ImportFrom),
    # These call methods of whatever object stands there.
    *(ast.Compare, ast.BinOp, ast.JoinedStr, ast.Assert),
)
LAST_CALLS = {"append", "wake"}
"""Methods that a section may end with: each is a call into C, or has it as its first step."""

SAFE_COMPARISONS = (ast.Is, ast.IsNot)


def sections(text):
    """Give the first and the last line of each marked section."""
    begun = None
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type != tokenize.COMMENT:
            continue
        words = token.string.removeprefix("#").split()
        if words[:1] in (["atomic:"], ["atomic"]):
            assert begun is None, f"line {token.start[0]}: a section in a section"
            begun = token.start[0]
        elif words[:2] == ["end", "atomic"]:
            assert begun is not None, f"line {token.start[0]}: no section to end"
            yield begun, token.start[0]
            begun = None
    assert begun is None, f"line {begun}: a section without end"


def properties(trees):
    """Give the names of all properties: to read one is a call."""
    return {
        function.name
        for tree in trees
        for function in ast.walk(tree)
        if isinstance(function, ast.FunctionDef)
        for decorator in function.decorator_list
        if isinstance(decorator, ast.Name) and decorator.id == "property"
    }


def problems(tree, first, last, computed):
    """Give what an interrupt might find half done in the lines of a section."""
    inside = [
        node
        for node in ast.walk(tree)
        if isinstance(node, (ast.stmt, ast.expr)) and first < node.lineno < last
    ]
    statements = [node for node in inside if isinstance(node, ast.stmt)]
    assert statements, f"line {first}: an empty section"
    end = max(statements, key=lambda node: node.lineno)
    found = []
    for node in inside:
        if node.end_lineno >= last:
            found.append(f"line {node.lineno}: goes on after the section")
        if isinstance(node, ast.Compare) and isinstance(node.ops[0], SAFE_COMPARISONS):
            continue
        if isinstance(node, FORBIDDEN):
            found.append(f"line {node.lineno}: {type(node).__name__}")
        if isinstance(node, ast.Attribute) and node.attr in computed:
            found.append(f"line {node.lineno}: the property {node.attr}")
        if isinstance(node, ast.Call) and not (
            isinstance(end, ast.Expr)
            and end.value is node
            and isinstance(node.func, ast.Attribute)
            and node.func.attr in LAST_CALLS
            and all(isinstance(one, ast.Name) for one in node.args)
        ):
            found.append(f"line {node.lineno}: a call")
    return found


def check(text, computed=frozenset(), tree=None):
    tree = tree or ast.parse(text)
    return [
        problem
        for first, last in sections(text)
        for problem in problems(tree, first, last, computed)
    ]


def test_no_section_of_core_can_be_torn():
    texts = {path: path.read_text() for path in SOURCE.rglob("*.py") if "{" not in str(path)}
    trees = {path: ast.parse(text) for path, text in texts.items()}
    computed = properties(trees.values())
    marked = [path for path, text in texts.items() if "atomic" in text]
    found = {path.name: check(texts[path], computed, trees[path]) for path in marked}
    assert not any(found.values()), found
    assert {"fast_path.py", "scheduler.py"} <= {p.name for p in marked if list(sections(texts[p]))}


def section(*lines):
    return "\n".join(["# atomic: why", *lines, "# end atomic", ""])


def unnoted(text):
    """Give the lines that take the lock of a node, and neither note it nor notify owners afterwards."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.With):
            taken = [ast.unparse(item.context_expr) for item in node.items]
            for number, one in enumerate(taken):
                owner = one.removesuffix(".lock")
                if owner != one and taken[number - 1 : number] != [f"{owner}.section"]:
                    yield f"line {node.lineno}: with {', '.join(taken)}"


def test_the_lock_of_a_node_is_taken_in_a_section():
    paths = [path for path in (SOURCE / "_scheduling").glob("*.py") if path.name != "queue.py"]
    found = {path.name: lines for path in paths if (lines := list(unnoted(path.read_text())))}
    assert found == {}
    assert not list(unnoted("with a.section, a.lock: b\nwith taking(a.lock): b"))
    for text in ("with a.lock: b", "with b.section, a.lock: c", "with a.lock, a.section: b"):
        assert list(unnoted(text)), text


def test_what_the_interpreter_does_in_one_step_is_allowed():
    assert check(section("a.b = None", "a.n += 1", "d[k] = v", "q[0].append(a)")) == []
    assert check(section("if a is b:", "    a.n += 1", "else:", "    del d[k]")) == []


def test_what_an_interrupt_can_tear_is_found():
    for lines in (
        ["f()", "a.b = None"],  # after the call
        ["a.b = None", "f()"],  # at the begin of the function
        ["q.append(f())"],
        ["q.append(a)", "a.b = None"],
        ["for a in b:", "    a.n = 1"],
        ["while a:", "    a = a.b"],
        ["with a:", "    b = 1"],
        ["a = [b for b in c]"],
        ["if a == b:", "    c = 1"],
        ["a.busy = b.busy"],
        ["try:", "    a = 1", "finally:", "    b = 1"],
    ):
        assert check(section(*lines), {"busy"}), lines


def test_marks_that_do_not_fit_are_found():
    for text in ("# atomic: a\n# atomic: b\n# end atomic\n", "# end atomic\n", "# atomic: a\n"):
        try:
            list(sections(text))
        except AssertionError:
            continue
        raise AssertionError(text)
