"""Rules about the options that a backend offers: each of them has to change something."""

from __future__ import annotations

import ast
import contextlib
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import headrace
from headrace_testing.conformance.outcome import Broken
from headrace_testing.conformance.rule import Rule, rule

if TYPE_CHECKING:
    from collections.abc import Iterator

    from headrace_testing.conformance.subject import Subject


class _Code(NamedTuple):
    """What the code of some packages names.

    Attributes:
        loads: Per attribute that is read, the attributes into which that is put. None for any other use.
        texts: The text constants.
    """

    loads: dict[str, set[str | None]]
    texts: set[str]

    def uses(self, name: str, known: frozenset[str] = frozenset()) -> bool:
        """Return whether anything is done with what an attribute holds, but to put it away under another name."""
        if name in self.texts or any(f"{{{name}}}" in text for text in self.texts):
            return True
        known |= {name}
        return any(
            into is None
            or hasattr(headrace.Backend, into)  # which core reads
            or (into not in known and self.uses(into, known))
            for into in self.loads.get(name, ())
        )


@rule("options-used", "closes-unused")
def options_used(subject: Subject) -> str:
    """An option that changes nothing is a promise that is not kept: whoever sets it believes that it works.

    Each option of `Options` is used: by the code of the backend's own package, in which it is read, and not only put
    away under a name that nothing reads, or by whom it is handed to. Validators count, and so does whoever reads all options at once, as
    `dict(options)` does.
    """
    cls = subject.cls.Options
    names = [name for name in cls.model_fields if name not in headrace.Options.model_fields]
    if not names:
        return "it has no options"
    packages = {
        base.__module__.partition(".")[0]
        for base in (*subject.cls.__mro__, *cls.__mro__)
        if issubclass(base, (headrace.Backend, headrace.Options))
    }
    if len(packages) > 1:
        packages.discard("headrace")
    with _reading(cls, packages) as read:
        live = subject.build()
        live.results(live.take(subject.item))
        live.alone({})
        subject.done(live)
    code = _code_of(packages)  # after the run, which has loaded what it needs
    if code is None:
        return "its source is not here to be looked at"
    for name in names:
        if not (code.uses(name) or name in read["by others"]):
            if name in read["by itself"] and name not in code.loads:
                continue  # by a name that is made when it runs
            raise Broken(f"the option {name!r} changes nothing: no code uses what it holds")
    return f"{len(names)} options"


@contextlib.contextmanager
def _reading(cls: Any, packages: set[str]) -> Iterator[dict[str, set[str]]]:
    """Note which options are read, by the packages themselves and by others; all count where one reads all."""
    fields, read = set(cls.model_fields), {"by itself": set[str](), "by others": set[str]()}
    own, getting = vars(cls).get("__getattribute__"), cls.__getattribute__

    def noting(self: Any, name: str) -> Any:
        if name in fields or name == "__dict__":
            by = sys._getframe(1).f_globals.get("__name__", "").partition(".")[0]
            if name in fields:
                read["by itself" if by in packages else "by others"].add(name)
            else:
                read["by others"] |= fields
        return getting(self, name)

    cls.__getattribute__ = noting
    try:
        yield read
    finally:
        if own is None:
            del cls.__getattribute__
        else:
            cls.__getattribute__ = own


def _code_of(packages: set[str]) -> _Code | None:
    """Return what the source of packages names; None where there is no source of one."""
    code = _Code({}, set())
    for package in packages:
        module: Any = sys.modules.get(package)
        folders = [Path(folder) for folder in getattr(module, "__path__", ())]
        files = [file for folder in folders for file in folder.rglob("*.py")]
        if not folders and getattr(module, "__file__", None):
            files = [Path(module.__file__)]
        try:
            trees = [ast.parse(file.read_bytes()) for file in files]
        except (OSError, SyntaxError, ValueError):
            return None
        if not trees:
            return None
        for tree in trees:
            _add(tree, code)
    return code


def _add(tree: ast.Module, code: _Code) -> None:
    put = {
        node.value: node.targets[0].attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Attribute)
        if len(node.targets) == 1
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
            code.loads.setdefault(node.attr, set()).add(put.get(node))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            code.texts.add(node.value)
        elif isinstance(node, ast.MatchClass):
            for name in node.kwd_attrs:
                code.loads.setdefault(name, set()).add(None)


RULES: tuple[Rule, ...] = (options_used,)
