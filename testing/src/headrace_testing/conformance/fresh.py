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
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from headrace_testing.conformance.probe import Probe
from headrace_testing.conformance.requirements import distributions_by_module

if TYPE_CHECKING:
    from headrace.plugins import BuiltExpression

_LIGHT = frozenset(
    (
        *("headrace", "pydantic", "pydantic_core", "annotated_types", "typing_extensions"),
        *("typing_inspection", "pluggy", "packaging", "tomli"),
    )
)
"""Headrace, and the distributions that it requires itself."""


_HEAVY_BYTES = 1_000_000
"""A library that loads more code than this, source and compiled, is heavy: numpy loads 12 MB, click 0.3."""


def _loaded() -> set[str]:
    return {*sys.modules, *_compiled}


_compiled: dict[str, Path] = {}
"""The files of compiled modules, also of those that hide behind another module in ``sys.modules``."""


def _note_compiled(event: str, arguments: tuple[Any, ...]) -> None:
    if event == "import" and isinstance(arguments[1], str):
        _compiled[arguments[0]] = Path(arguments[1])


class _Libraries:
    """The libraries behind the names of modules: not standard, not required by headrace, not the backend's own.

    Attributes:
        heavy: The top-level names of those that load much code.
        installed: Those that a distribution brings, which may be missing elsewhere.
    """

    def __init__(self, modules: set[str], own: list[str]) -> None:
        known = {*sys.stdlib_module_names, *_LIGHT, *own}
        files: dict[str, set[Path]] = {}
        for module in modules:
            name = module.partition(".")[0]
            if name not in known and not name.startswith("__"):
                files.setdefault(name, set()).update(_files(module))
        brought = distributions_by_module([*files, *own]) if files else {}
        ours = {brought_by_own for name in own for brought_by_own in brought.get(name, ())}
        theirs = {name: brought[name] for name in files if not ours & brought[name]}
        # What one distribution brings is one library, `pytest` and `_pytest`.
        sizes: dict[str, int] = {}
        for name, distributions in theirs.items():
            for distribution in distributions or (name,):
                sizes[distribution] = sizes.get(distribution, 0) + sum(map(_size, files[name]))
        self.heavy = sorted(
            name
            for name, distributions in theirs.items()
            if any(sizes[distribution] > _HEAVY_BYTES for distribution in distributions or (name,))
        )
        # A name without a distribution is an inner module of a library, such as a shim.
        self.installed = sorted(name for name in theirs if theirs[name])


def _files(module: str) -> list[Path]:
    """Return the files from which a module was loaded."""
    origin = getattr(getattr(sys.modules.get(module), "__spec__", None), "origin", None)
    paths = [Path(origin)] if isinstance(origin, str) else []
    return [*paths, _compiled[module]] if module in _compiled else paths


def _size(file: Path) -> int:
    try:
        return file.stat().st_size
    except OSError:  # built in, or in an archive
        return 0


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


def _answer(job: dict[str, Any], path: Path) -> None:
    """Import, check and build a backend, and write what was loaded in each step."""
    import importlib

    import headrace

    built = None
    probe = Probe(job["module"])
    sys.addaudithook(_note_compiled)
    before = _loaded()
    sys.path[:] = job["path"]
    importlib.invalidate_caches()
    headrace.plugins.refresh()
    for name in job["blocked"]:
        sys.modules[name] = None  # type: ignore[assignment]
    own = job["own"]
    try:
        if job["backends"]:
            _register(job["backends"])
        else:
            importlib.import_module(job["module"])
        libraries = _Libraries(_loaded() - before, own)
        probe.imported, probe.required = libraries.heavy, libraries.installed
        probe.stage, before = "configure", before | _loaded()
        settings = pickle.loads(base64.b64decode(job["settings"]))  # noqa: S301 - made by the parent process
        config = headrace.PipelineConfig.load(settings)
        libraries = _Libraries(_loaded() - before, own)
        probe.configured = libraries.heavy
        probe.required = sorted({*probe.required, *libraries.installed})
        if job["build"]:
            probe.stage, before = "build", before | _loaded()
            built = headrace.plugins.build(config)
            installed = _Libraries(_loaded() - before, own).installed
            probe.built = [name for name in installed if name not in probe.required]
    except Exception as error:  # noqa: BLE001 - the error is a part of the answer
        probe.error, probe.error_text = type(error).__name__, f"{type(error).__name__}: {error}"
    _write(probe, path)
    if built is not None:
        _close(built, job["closing_s"])


def _write(probe: Probe, path: Path) -> None:
    part = path.with_suffix(".part")
    try:  # by hand, since a library would count among those that are loaded
        part.write_text(json.dumps(asdict(probe)), encoding="utf-8")
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


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
        with suppress(Exception):  # so that each fork knows what is installed, without reading it
            sys.path[:] = json.loads(job["asked"])["path"]
            distributions_by_module(())
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
