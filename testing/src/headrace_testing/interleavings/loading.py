"""Programs: functions without arguments, in files."""

from __future__ import annotations

import importlib.util
import inspect
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

VERSIONS = ((3, 10), (3, 11), (3, 12), (3, 13))
"""The versions of Python whose threads are known."""


def unsupported() -> str:
    """Say why interleavings cannot be explored here; an empty text where they can."""
    version = sys.version_info[:2]
    if sys.implementation.name != "cpython" or version not in VERSIONS:
        known = ", ".join(f"{major}.{minor}" for major, minor in VERSIONS)
        here = f"{sys.implementation.name} {version[0]}.{version[1]}"
        return f"interleavings are explored in CPython {known}, and this is {here}"
    if not hasattr(os, "fork"):
        return "interleavings are explored where a process can fork, and this system has no fork"
    if not getattr(sys, "_is_gil_enabled", lambda: True)():
        return (
            "interleavings are explored where threads take turns, and this interpreter has no lock"
        )
    return ""


def address_of(program: Callable[[], object] | str) -> str:
    """Return where a program is, as ``FILE:FUNCTION``.

    Raises:
        ValueError: It is no function at the top of a file.
    """
    if isinstance(program, str):
        return program
    name = getattr(program, "__qualname__", "")
    file = inspect.getsourcefile(program) if inspect.isfunction(program) else None
    if not name.isidentifier() or file is None:
        problem = f"{name or program!r} is no function at the top of a module, which another process could find"
        raise ValueError(f"{problem}. Move it there.")
    return f"{Path(file).resolve()}:{name}"


def load(address: str) -> Callable[[], object]:
    """Load the module of a program, and give the program.

    Raises:
        ValueError: There is no such file, or no such function in it.
    """
    path, _, name = address.rpartition(":")
    file = Path(path).resolve()
    if not path.endswith(".py") or not file.is_file():
        raise ValueError(f"a program is named as FILE.py:FUNCTION, and {address!r} names no file")
    sys.path.insert(0, str(file.parent))
    module = sys.modules.get(file.stem)
    if module is None or getattr(module, "__file__", None) != str(file):
        spec = importlib.util.spec_from_file_location(file.stem, file)
        if spec is None or spec.loader is None:
            raise ValueError(f"{path} is no module of Python")
        module = sys.modules[file.stem] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    program = getattr(module, name, None)
    if not inspect.isfunction(program):
        there = [known for known, value in vars(module).items() if inspect.isfunction(value)]
        raise ValueError(f"{path} has no function {name!r}. It has {', '.join(there)}.")
    loaded: Callable[[], object] = program
    return loaded
