"""Running the code that a configuration imports: modules once, files once per version.

One thread at a time runs imported files and modules, and there is an error where waiting for it would
never end. The code is the user's: it may load a configuration that imports it again, in its own thread
or in one that it waits for. Python would run a file within itself until memory is used up, and its locks
would wait for ever.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import os
import sys
import threading
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.machinery import SourceFileLoader
from pathlib import Path
from typing import Any

from headrace._portable import error_text
from headrace._registry.registry import Files, registry
from headrace.errors import PluginLoadError

_YES = ("1", "true", "yes", "on")
_NO = ("0", "false", "no", "off", "")

_files: dict[Path, tuple[str, dict[str, type[Any]]]] = {}
"""Per file the digest of what was run, and what that registered."""

LOOK_S = 1.0
"""How often a thread that waits looks at the one that imports."""

PATIENCE_S = 60.0
"""How long the importing thread may stand still outside of `threading`: libraries take long to load."""


def run_imports(wanted: list[tuple[str, Path]]) -> Files:
    """Run what ``import`` lists.

    Args:
        wanted: Each item as written, and the folder it is relative to.

    Returns:
        Per file its path and the classes it registered, by name. What a module registers is
        registered for the process.

    Raises:
        PluginLoadError: The code cannot be found, or raised.
    """
    tables = []
    for item, base in wanted:
        if item.endswith(".py") or "/" in item or os.sep in item:  # a file, and no module
            path = (base / Path(item).expanduser()).resolve()
            with _alone(str(path)):
                tables.append((str(path), _run_file(path, item)))
        else:
            with _alone(item):
                _import_module(item)
    return tuple(dict(tables).items())


HOW_TO_ALLOW = (
    "Allow it with allow_import=True, without --no-import, and with HEADRACE_IMPORT=1 or without "
    "that variable."
)


def refused(*, allow_import: bool) -> str | None:
    """Say why no code may run, None when it may.

    The environment variable ``HEADRACE_IMPORT`` allows it when it is not set, and when it says yes in a
    way that is known.
    """
    if not allow_import:
        return "allow_import=False or --no-import refuses it"
    value = os.environ.get("HEADRACE_IMPORT", "yes")
    word = value.strip().lower()
    if word in _YES:
        return None
    if word in _NO:
        return f"HEADRACE_IMPORT={value} refuses it"
    known = f"yes is {', '.join(_YES)}, no is {', '.join(_NO[:-1])}"
    return f"HEADRACE_IMPORT={value!r} is not known to mean yes, so it is refused ({known})"


def _import_module(name: str) -> None:
    try:
        importlib.import_module(name)
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        what = f"import = [{name!r}] failed: {error_text(error)}"
        hint = "A file ends in .py and is relative to the configuration; a module is on sys.path."
        raise PluginLoadError(what, hint=hint) from error


def _run_file(path: Path, item: str) -> dict[str, type[Any]]:
    """Run a file, or give what it has registered if it has not changed since it was run."""
    if not path.is_file():
        what = f"import = [{item!r}]: no such file: {str(path)!r}"
        hint = "Paths are relative to the file that holds the configuration."
        raise PluginLoadError(what, hint=hint)
    name = f"{path.stem}_{hashlib.sha256(str(path).encode()).hexdigest()[:12]}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or not isinstance(spec.loader, SourceFileLoader):
        raise PluginLoadError(f"import = [{item!r}]: {str(path)!r} is no Python file")
    try:
        source = path.read_bytes()
    except OSError as error:
        raise PluginLoadError(f"import = [{item!r}] cannot be read: {error}") from error
    digest = hashlib.sha256(source).hexdigest()
    known = _files.get(path)
    if known is not None and known[0] == digest:
        return known[1]
    module, before = importlib.util.module_from_spec(spec), sys.modules.get(name)
    sys.modules[name] = module  # annotations and pickles of its classes are resolved there
    table: dict[str, type[Any]] = {}
    try:
        with registry.recording(name, table):
            # Not through the loader, whose cache takes two versions of one second for the same.
            exec(spec.loader.source_to_code(source, str(path)), vars(module))  # noqa: S102
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        sys.modules.pop(name, None)
        if before is not None:
            sys.modules[name] = before
        what = f"import = [{item!r}] failed{_line(error, path)}: {error_text(error)}"
        raise PluginLoadError(what) from error
    _files[path] = digest, table
    return table


def _line(error: BaseException, path: Path) -> str:
    """Say in which line of a file an error was raised, or nothing when it was not raised there."""
    frames = traceback.walk_tb(error.__traceback__)
    lines = [line for frame, line in frames if frame.f_code.co_filename == str(path)]
    return f" in line {lines[-1]}" if lines else ""


_gate = threading.RLock()
"""Held by the thread that runs imported code."""
_running: list[str] = []
"""What is being imported by that thread, the innermost last."""
_runner: tuple[int, set[int | None]] = (0, set())
"""That thread, and the threads that there were when it began."""


@contextmanager
def _alone(name: str) -> Iterator[None]:
    """Run the body while no other thread runs imported code.

    Raises:
        PluginLoadError: This thread imports ``name`` already; or another one imports, and waits for
            this one.
    """
    global _runner
    _enter(name)
    try:
        if name in _running:
            raise _cycle(name, "what it runs loads a configuration that imports it")
        if not _running:
            _runner = threading.get_ident(), {one.ident for one in threading.enumerate()}
        _running.append(name)
        try:
            yield
        finally:
            _running.pop()
    finally:
        _gate.release()


def _enter(name: str) -> None:
    """Wait for `_gate`.

    A thread that the imported code has started may be one that it waits for. Where it waits is
    not known, so a thread that is younger than the import looks whether the importing one stands
    still; a thread that is older waits for as long as it takes.
    """
    me, place, still_s = threading.get_ident(), None, 0.0
    while not _gate.acquire(timeout=LOOK_S):
        thread, before = _runner
        frame = sys._current_frames().get(thread)
        now = None if frame is None or me in before else (id(frame), frame.f_lasti)
        still_s = still_s + LOOK_S if now is not None and now == place else 0.0
        place = now
        waits = frame is not None and frame.f_globals.get("__name__") == "threading"
        if still_s >= (LOOK_S if waits else PATIENCE_S):
            raise _cycle(name, "what it runs waits for a thread that imports as well")


def _cycle(name: str, why: str) -> PluginLoadError:
    what = f"code is being imported already, so import = [{name!r}] cannot be: {why}"
    hint = "Code under 'import' registers backends; load and build configurations elsewhere."
    return PluginLoadError(what, hint=hint)
