"""Running the code that a configuration imports: modules once, files once per version.

One thread at a time runs imported files and modules. The code is the user's: where it loads a
configuration that imports the same code again, that is an error, or the file would run within
itself until memory is used up. It must not wait for another thread that loads one, which waits here
until the import is over.
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

_HINT = "A file ends in .py and is relative to the configuration; a module is on sys.path."
_RELATIVE = "Paths are relative to the file that holds the configuration."
_ELSEWHERE = "Code under 'import' registers backends; load and build configurations elsewhere."
_YES = ("1", "true", "yes", "on")


def run_import(item: str, base: Path) -> dict[str, dict[str, type[Any]]]:
    """Run a file or a module that ``import`` lists.

    Args:
        item: The item as written.
        base: The folder from which a relative path starts.

    Returns:
        By the path of the file the classes that it has registered, by name. Empty for a module,
        which registers its classes for the process.

    Raises:
        PluginLoadError: The code cannot be found, or raised.
    """
    path = _file_of(item, base)
    with _import_lock(item if path is None else str(path)):
        try:
            if path is not None:
                return {str(path): package_of(path.parent).run(path)}
            importlib.import_module(item)
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            line, hint = ("", _HINT) if path is None else _place_and_hint(error, path)
            message = f"{item!r} failed{line}: {error_text(error)}"
            raise PluginLoadError(message, hint=hint) from error
    return {}


HOW_TO_ALLOW = (
    "Allow it with allow_import=True, without --no-import, and with HEADRACE_IMPORT=1 or without "
    "that variable."
)


def why_refused(*, allow_import: bool) -> str | None:
    """Say why no code may be imported. None when it may.

    The environment variable ``HEADRACE_IMPORT`` allows it when it is unset, or one of the known
    words for yes.
    """
    if not allow_import:
        return "allow_import=False or --no-import refuses it"
    value = os.environ.get("HEADRACE_IMPORT", "yes")
    allowed = value.strip().lower() in _YES
    return None if allowed else f"HEADRACE_IMPORT={value} refuses it (yes is {', '.join(_YES)})"


def module_of(stem: str, files: Files) -> str | None:
    """Return the name in ``sys.modules`` of the imported file ``stem.py``, if there is one."""
    paths = [path for file, _ in files if (path := Path(file)).stem == stem]
    return package_of(paths[0].parent).module_name(paths[0]) if paths else None


def _file_of(item: str, base: Path) -> Path | None:
    """Return the file that an item names, which can be read; None where the item names a module."""
    if not (item.endswith(".py") or "/" in item or os.sep in item):
        return None
    try:
        path = (base / in_home(item)).resolve()
        kind = no_file(path)
        if kind is None:
            path.read_bytes()
        if kind is not None or path.suffix not in SOURCE_SUFFIXES:
            is_a = "no" if kind is None else f"{kind}, not a"
            raise PluginLoadError(f"{str(path)!r} is {is_a} Python file")
    except FileNotFoundError as error:
        meant, hint = nearest_file(path), _RELATIVE
        hint = hint if meant is None else f"Did you mean {meant!r}? {hint}"
        raise PluginLoadError(f"no such file: {str(path)!r}", hint=hint) from error
    except (OSError, ValueError, RuntimeError) as error:
        raise PluginLoadError(f"{item!r} cannot be read: {error}") from error
    return path


def _place_and_hint(error: BaseException, path: Path) -> tuple[str, str | None]:
    """Say in which line of a file, and of what it imports beside it, an error was raised."""
    walked = traceback.walk_tb(error.__traceback__)
    frames = [(Path(frame.f_code.co_filename), line) for frame, line in walked]
    outer = [f" in line {line}" for file, line in frames if file == path]
    inner = [
        f" ({file.name}, line {line})"
        for file, line in frames
        if path.parent in file.parents and file != path
    ]
    hint = None
    part = error.name if isinstance(error, ModuleNotFoundError) else None
    if part and path.with_name(f"{part}.py").is_file():
        hint = f"{part}.py is beside it: write `import {part}`, and for importlib `.{part}`."
    return "".join(outer[-1:] + inner[-1:]), hint


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
            message = f"code is being imported already, so {name!r} cannot be: {why}"
            raise PluginLoadError(message, hint=_ELSEWHERE)
        _running.append(name)
        try:
            yield
        finally:
            _running.pop()
