"""The pages docs/api.md and one per module in docs/api, the public names of core and of what extends it, from their docstrings."""

from __future__ import annotations

import ast
import importlib
import inspect
import itertools
import re
import sys
from collections.abc import Iterator
from dataclasses import is_dataclass
from pathlib import Path
from types import GenericAlias
from typing import Any

PAGE = Path(__file__).resolve().parents[1] / "docs" / "api.md"
FOLDER = PAGE.with_suffix("")

HEAD = """# The public names

What programs, backends and plugins may use, made from the docstrings. All other
names may change. Before 1.0 a minor release may break, after a release with a warning
([publishing](policies.md#publish-a-backend) says what a plugin pins). `help(headrace.Backend)` shows the same in Python. The
plain functions of the plugins are in their READMEs and in `help(headrace_cv)`, the backends in
[the catalogue](catalogue.md) and [the words](words.md). Each module has a page.
"""

MODULES = (
    "headrace",
    "headrace.errors",
    "headrace.keys",
    "headrace.words",
    "headrace.policies",
    "headrace.futures",
    "headrace.hookspecs",
    "headrace.isolation",
    "headrace.lazy",
    "headrace.plan",
    "headrace.plugins",
    "headrace_testing",
    "headrace_testing.interleavings",
    "headrace_cli.for_plugins",
)

OF_AUTHORS = ("PENDING", "Backend", "FilePath", "InitContext", "Options", "OutputPath", "register")
"""The names of `headrace` that authors of backends use, on a page of their own."""

_SECTION = re.compile(r"(Args|Attributes|Returns|Raises|Yields):")


def names(module: Any) -> list[str]:
    """Return the public names of a module, but for modules in it."""
    return [
        name
        for name in module.__all__
        if not name.startswith("_") and not inspect.ismodule(getattr(module, name))
    ]


def markdown(text: str) -> str:
    """Write a docstring as Markdown: what is in its sections becomes lists."""
    lines: list[str] = []
    inside = ""
    for line in inspect.cleandoc(text).splitlines():
        if line and not line.startswith(" "):
            inside = ""
        if section := _SECTION.fullmatch(line):
            inside = section[1]
            lines += [f"**{inside}**", ""]
        elif line.endswith("::"):  # code follows, which Markdown wants after an empty line
            lines += [line[:-1] if line != "::" else "", ""]
        elif inside in {"Returns", "Yields"}:
            lines.append(line.removeprefix("    "))
        elif inside and (item := re.fullmatch(r"    (\S.*)", line)):
            name, colon, rest = item[1].partition(": ")
            named = colon and re.fullmatch(r"[\w*, ]+", name)
            lines.append(f"- `{name}`: {rest}" if named else f"- {item[1]}")
        elif inside and line:
            lines.append(f"  {line.strip()}")
        else:
            lines.append(line)
    written = re.sub(r"\n{3,}", "\n\n", "\n".join(lines)).strip("\n")
    return re.sub(r"``(.+?)``", r"`\1`", written)


def written_below(cls_or_module: Any) -> dict[str, str]:
    """Return the texts that stand below the assignments of a module."""
    body = ast.parse(inspect.getsource(cls_or_module)).body
    found = {}
    for one, after in itertools.pairwise(body):
        target = (
            one.target if isinstance(one, ast.AnnAssign) else getattr(one, "targets", [None])[0]
        )
        if isinstance(target, ast.Name) and isinstance(after, ast.Expr):
            text = getattr(after.value, "value", None)
            if isinstance(text, str):
                found[target.id] = text
    return found


def call_of(name: str, function: Any) -> str:
    """Write how a function is called: its parameters with their defaults."""
    try:
        given = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return name  # it is written in C
    bare = [one.replace(annotation=one.empty) for one in given if one.name not in ("self", "cls")]
    return name + re.sub(r"=<[^>]*>", "=...", str(inspect.Signature(bare)))


def own(cls: type) -> dict[str, Any]:
    """Return what a class itself defines, also in a base of its name: its half in the kernel."""
    halves = [base for base in reversed(cls.__mro__) if base.__name__ == cls.__name__]
    return {name: member for half in halves for name, member in vars(half).items()}


def members(cls: type) -> Iterator[tuple[str, str]]:
    """Return the public methods, properties and groups of fields that a class itself defines, with their docstrings."""
    for name, member in own(cls).items():
        field = name in getattr(cls, "__dataclass_fields__", ())
        if field or (name.startswith("_") and name != "__call__"):
            continue
        function = getattr(member, "__func__", member)
        if inspect.isfunction(function) and function.__doc__:
            call = call_of("" if name == "__call__" else f".{name}", function)
            yield call, function.__doc__
        elif (isinstance(member, property) or is_dataclass(member)) and member.__doc__:
            yield f".{name}", member.__doc__


def entry(module: Any, name: str) -> str:
    """Write the part of the page about one name."""
    found = getattr(module, name)
    full = f"{module.__name__}.{name}"
    if inspect.isclass(found) and not isinstance(found, GenericAlias):  # both, in Python 3.10
        lines = [f"### {full}", "", markdown(found.__doc__ or "")]
        if isinstance(code := getattr(found, "code", None), str):
            lines += ["", f"Its `code` is `{code}`."]
        for call, text in members(found):
            lines += ["", f"#### `{name}{call}`", "", markdown(text)]
    elif inspect.isfunction(found):
        lines = [f"### {call_of(full, found)}", "", markdown(found.__doc__ or "")]
    else:
        lines = [f"### {full}", "", markdown(text_below(module, name))]
    return "\n".join(lines).rstrip() + "\n"


def text_below(module: Any, name: str) -> str:
    """Return the text below the assignment of a name, in whichever module of its package that is."""
    inside = module.__name__.partition(".")[0] + "."
    found = getattr(module, name)
    loaded = [sys.modules[path] for path in sorted(sys.modules) if path.startswith(inside)]
    for other in [module, *(one for one in loaded if getattr(one, name, None) is found)]:
        if (text := written_below(other).get(name)) is not None:
            return text
    raise SystemExit(f"{module.__name__}.{name} has no text below it that says what it is")


def first_sentence(module: Any, name: str) -> str:
    """Return what a name is, in a sentence: the first of its docstring, or of the text below it."""
    found = getattr(module, name)
    written = inspect.isclass(found) or inspect.isfunction(found)
    text = found.__doc__ if written and not isinstance(found, GenericAlias) else None
    paragraph = " ".join(markdown(text or text_below(module, name)).split("\n\n")[0].split())
    return re.split(r"(?<=[.])\s(?=[A-Z`])", paragraph)[0].rstrip(":")


def anchor(heading: str) -> str:
    """Return the anchor that a heading has on the usual hosts of Markdown."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def page_of(module: str, name: str) -> str:
    """Return the name of the page about a name of a module."""
    return "headrace.authors" if module == "headrace" and name in OF_AUTHORS else module


def pages() -> dict[Path, str]:
    """Return the text of all pages: the index, and one per module."""
    index, written = [HEAD], {}
    for path in MODULES:
        module = importlib.import_module(path)
        about = "" if path == "headrace" else markdown(module.__doc__ or "") + "\n"
        entries = {name: entry(module, name) for name in names(module)}
        index += [f"## {path}\n", "| name | |", "|---|---|"]
        for name, text in entries.items():
            page = page_of(path, name)
            head = f"# Public names of {page.replace('.authors', ', for authors of backends')}\n"
            made = "Made from the docstrings; [all modules](../api.md).\n"
            start = "\n".join([head, made, *([about] if about else [])])
            body = text.replace("\n####", "\n###").removeprefix("#")
            file = FOLDER / f"{page}.md"
            written[file] = f"{written.get(file, start)}\n{body}"
            heading = text.partition("\n")[0].removeprefix("### ")
            said = first_sentence(module, name).replace("|", "\\|")
            index.append(f"| [`{name}`](api/{page}.md#{anchor(heading)}) | {said} |")
        index.append("")
    return {PAGE: "\n".join(index), **written}
