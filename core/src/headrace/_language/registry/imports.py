"""Running the code that a configuration imports: modules once, files once per version.

One thread at a time runs imported files and modules. The code is the user's: where it loads a configuration that
imports the same code again, that is an error, or the file would run within itself until memory is used up. It
must not wait for another thread that loads one, which waits here until the import is over.
"""

from __future__ import annotations

import importlib
import os
import threading
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.machinery import SOURCE_SUFFIXES
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace._language.contract.missing import nearest_file, no_file
from headrace._language.contract.options import in_home
from headrace._language.registry.packages import package_of
from headrace._texts import error_text
from headrace.errors import PluginLoadError

if TYPE_CHECKING:
    from headrace._language.registry.registry import Files

_YES = ("1", "true", "yes", "on")


def run_imports(wanted: list[tuple[str, Path]]) -> Files:
    """Run the files and modules that ``import`` lists.

    Args:
        wanted: Each item as written, and the folder from which a relative path starts.

    Returns:
        The path of each file, and the classes that it has registered, by name. A module registers its
        classes for the process, so they are not here.

    Raises:
        PluginLoadError: The code cannot be found, or raised.
    """
    tables = []
    for item, base in wanted:
        if item.endswith(".py") or "/" in item or os.sep in item:  # it names a file
            try:
                path = (base / in_home(item)).resolve()
                with _import_lock(str(path)):
                    tables.append((str(path), _run_file(path, item)))
            # These are errors of the path: what the file itself raises is a PluginError.
            except (OSError, ValueError, RuntimeError) as error:
                raise PluginLoadError(f"{item!r} cannot be read: {error}") from error
        else:
            with _import_lock(item):
                _import_module(item)
    return tuple(dict(tables).items())


HOW_TO_ALLOW = (
    "Allow it with allow_import=True, without --no-import, and with HEADRACE_IMPORT=1 or without "
    "that variable."
)


def why_refused(*, allow_import: bool) -> str | None:
    """Say why no code may be imported. None when it may.

    The environment variable ``HEADRACE_IMPORT`` allows it when it is unset, or one of the known words for
    yes.
    """
    if not allow_import:
        return "allow_import=False or --no-import refuses it"
    value = os.environ.get("HEADRACE_IMPORT", "yes")
    allowed = value.strip().lower() in _YES
    return None if allowed else f"HEADRACE_IMPORT={value} refuses it (yes is {', '.join(_YES)})"


def _import_module(name: str) -> None:
    try:
        importlib.import_module(name)
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        what = f"{name!r} failed: {error_text(error)}"
        hint = "A file ends in .py and is relative to the configuration; a module is on sys.path."
        raise PluginLoadError(what, hint=hint) from error


def module_of(stem: str, files: Files) -> str | None:
    """Return the name in ``sys.modules`` of the imported file ``stem.py``; None where there is none."""
    found = (Path(path) for path, _ in files)
    named = (package_of(path.parent).module_name(path) for path in found if path.stem == stem)
    return next(named, None)


def _run_file(path: Path, item: str) -> dict[str, type[Any]]:
    """Return the classes that a file registers, and run it unless its present version was run already."""
    if (kind := no_file(path)) is not None:
        raise PluginLoadError(f"{str(path)!r} is {kind}, not a Python file")
    if not path.is_file():
        what = f"no such file: {str(path)!r}"
        near = nearest_file(path)
        hint = "Paths are relative to the file that holds the configuration."
        raise PluginLoadError(what, hint=hint if near is None else f"Did you mean {near!r}? {hint}")
    if path.suffix not in SOURCE_SUFFIXES:
        raise PluginLoadError(f"{str(path)!r} is no Python file")
    path.read_bytes()  # raises where it cannot be read, which is no error of its code
    try:
        return package_of(path.parent).run(path)
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        what = f"{item!r} failed{_line(error, path)}: {error_text(error)}"
        part = str(getattr(error, "name", None))
        beside = isinstance(error, ModuleNotFoundError) and path.with_name(f"{part}.py").is_file()
        how = f"{part}.py is beside it: `import {part}` finds it there, and importlib does as `.{part}`."
        raise PluginLoadError(what, hint=how if beside else None) from error


def _line(error: BaseException, path: Path) -> str:
    """Say in which line of a file an error was raised, and in which one of what it imports beside it."""
    walked = traceback.walk_tb(error.__traceback__)
    frames = [(Path(frame.f_code.co_filename), line) for frame, line in walked]
    own = [f" in line {line}" for file, line in frames if file == path]
    inner = [
        f" ({file.name}, line {line})"
        for file, line in frames
        if path.parent in file.parents and file != path
    ]
    return "".join(own[-1:] + inner[-1:])


_gate = threading.RLock()
"""Held by the thread that runs imported code."""
_running: list[str] = []
"""What the thread that holds `_gate` is importing, the innermost last."""


@contextmanager
def _import_lock(name: str) -> Iterator[None]:
    """Run the body while no other thread runs imported code.

    Raises:
        PluginLoadError: This thread is importing ``name`` already.
    """
    with _gate:
        if name in _running:
            why = "what it runs loads a configuration that imports it"
            what = f"code is being imported already, so {name!r} cannot be: {why}"
            hint = (
                "Code under 'import' registers backends; load and build configurations elsewhere."
            )
            raise PluginLoadError(what, hint=hint)
        _running.append(name)
        try:
            yield
        finally:
            _running.pop()
