"""The program behind `probe`: fresh processes in which a backend is imported, checked and built.

The program loads headrace once, reads a question per line from stdin, and answers each in a fork of itself,
so that not every question costs the start of an interpreter. For each question it writes the process id of
the fork, and later how the fork has ended. Where there is no ``fork`` it answers one question itself.
"""

from __future__ import annotations

import base64
import json
import os
import pickle
import sys
import threading
import traceback
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from headrace_testing.conformance.probe import Probe

if TYPE_CHECKING:
    from headrace.plugins import BuiltExpression

_LIGHT = frozenset(
    (
        *("headrace", "pydantic", "pydantic_core", "annotated_types", "typing_extensions"),
        *("typing_inspection", "pluggy", "packaging", "tomli"),
    )
)
"""Headrace, and the distributions that it requires itself."""


def _loaded() -> set[str]:
    return {name.partition(".")[0] for name in sys.modules}


def _libraries(names: set[str], own: list[str]) -> list[str]:
    """Return the names that are libraries: not standard, not required by headrace, not the backend's own."""
    known = {*sys.stdlib_module_names, *_LIGHT, *own}
    found = {name for name in names - known if not name.startswith("__")}
    if found:
        from importlib.metadata import packages_distributions

        by_name = packages_distributions()
        ours = {d for name in own for d in by_name.get(name, ())}
        # A name without a distribution is an inner module of a library, such as a shim.
        found = {name for name in found if by_name.get(name) and not ours & set(by_name[name])}
    return sorted(found)


def _load_headrace() -> None:
    """Load everything that headrace itself loads."""
    import headrace

    headrace.plugins.build({"backend": "Identity"}).close()
    headrace.InitContext()


def _register(backends: list[list[str]]) -> None:
    import importlib
    import importlib.util

    import headrace

    for name, module_name, path, qualname in backends:
        try:
            module = importlib.import_module(module_name)
        except ModuleNotFoundError:
            module = sys.modules.get(module_name) or _from_file(module_name, path)
        cls: Any = module
        for part in qualname.split("."):
            cls = getattr(cls, part)
        headrace.register(name, cls, replace=True)


def _from_file(name: str, path: str) -> Any:
    import importlib.util

    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path!r} is no Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def _answer(asked: dict[str, Any], path: Path) -> None:
    """Import, check and build a backend, and write what was loaded in each step."""
    import importlib

    import headrace

    built = None
    found = Probe(asked["module"])
    before = _loaded()
    sys.path[:] = asked["path"]
    importlib.invalidate_caches()
    headrace.plugins.refresh()
    for name in asked["blocked"]:
        sys.modules[name] = None  # type: ignore[assignment]
    own = asked["own"]
    try:
        if asked["backends"]:
            _register(asked["backends"])
        else:
            importlib.import_module(asked["module"])
        found.imported = _libraries(_loaded() - before, own)
        found.stage, before = "configure", before | _loaded()
        settings = pickle.loads(base64.b64decode(asked["settings"]))  # noqa: S301 - made by the parent process
        config = headrace.PipelineConfig.load(settings)
        found.configured = _libraries(_loaded() - before, own)
        if asked["build"]:
            found.stage, before = "build", before | _loaded()
            built = headrace.plugins.build(config)
            found.built = _libraries(_loaded() - before, own)
    except Exception as error:  # noqa: BLE001 - the error is a part of the answer
        found.error, found.error_text = type(error).__name__, f"{type(error).__name__}: {error}"
    _write(found, path)
    if built is not None:
        _close(built, asked["closing_s"])


def _write(found: Probe, path: Path) -> None:
    part = path.with_suffix(".part")
    part.write_text(json.dumps(asdict(found)), encoding="utf-8")
    part.replace(path)


def _close(built: BuiltExpression, limit_s: float) -> None:
    """Close the backend, and wait no longer than a limit: other rules judge how it closes."""
    closing = threading.Thread(target=built.close, daemon=True)
    closing.start()
    closing.join(limit_s)


def _serve() -> None:
    """Answer the questions one after the other, until stdin ends."""
    questions, answers = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb", buffering=0)
    nothing = os.open(os.devnull, os.O_RDWR)
    for used in (0, 1):  # a backend may read and print
        os.dup2(nothing, used)
    _load_headrace()
    for line in questions:
        job = json.loads(line)
        if not hasattr(os, "fork"):
            answers.write(b"%d\n" % os.getpid())
            _run(job)
        pid = os.fork()
        if not pid:
            questions.close()
            answers.close()
            _run(job)
        answers.write(b"%d\n" % pid)
        answers.write(b"%d\n" % os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))


def _run(job: dict[str, Any]) -> NoReturn:
    """Answer one question, and end the process even if the backend has left something running."""
    status = 1
    folder = Path(job["folder"])
    # The answer goes into files, because a process that the backend leaves behind would keep a pipe open, and the
    # reader would wait for its end.
    os.dup2(os.open(folder / "stderr", os.O_WRONLY | os.O_CREAT), 2)
    try:
        os.environ.clear()
        os.environ.update(job["env"])
        os.chdir(job["cwd"])
        _answer(json.loads(job["asked"]), folder / "found.json")
        status = 0
    except BaseException:  # noqa: BLE001 - a backend may raise SystemExit as well
        traceback.print_exc()
    sys.stderr.flush()
    os._exit(status)


if __name__ == "__main__":
    _serve()
