"""What importing, checking and building a backend loads, seen in a fresh process.

Run as a program it reads a request as JSON from stdin and writes what it found as JSON into the file
that it is given.
"""

from __future__ import annotations

import base64
import functools
import json
import os
import pickle
import subprocess
import sys
import tempfile
import threading
import traceback
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace.testing.conformance.live import Live
from headrace.testing.conformance.rule import Broken, NotApplicable

if TYPE_CHECKING:
    from headrace.testing.conformance.subject import Subject

__all__ = ["Probe", "probe"]

_PROGRAM = "headrace.testing.conformance.probe"
_LIMIT_S = 300
_CLOSING_S = 20
"""How long a backend may take to close in the fresh process; what it loads is known by then."""

_LIGHT = frozenset(
    (
        *("headrace", "pydantic", "pydantic_core", "annotated_types", "typing_extensions"),
        *("typing_inspection", "pluggy", "packaging", "tomli"),
    )
)
"""Headrace, and what it requires itself."""


@dataclass
class Probe:
    """What a fresh process saw.

    Attributes:
        module: The module of the backend.
        imported, configured, built: The libraries that each step loaded first, by top-level name.
        stage: How far it came: ``import``, ``configure``, ``build``.
        error: The class of the error that ended it, empty for none.
        error_text: Class and text of that error.
    """

    module: str = ""
    imported: list[str] = field(default_factory=list)
    configured: list[str] = field(default_factory=list)
    built: list[str] = field(default_factory=list)
    stage: str = "import"
    error: str = ""
    error_text: str = ""


def probe(subject: Subject, blocked: tuple[str, ...] = (), *, build: bool = True) -> Probe:
    """Import, check and build the backend in a fresh process.

    Args:
        subject: The backend.
        blocked: Libraries that cannot be imported there.
        build: Whether to build it at all.

    Raises:
        NotApplicable: The class stands where no configuration can import it from.
        Broken: The process ended in another way than with an error of the backend.
    """
    backends = []
    for element in subject.element.walk():
        if element.spec.cls is None:
            continue
        backends.append(_found(element.spec.name, element.cls))
    asked = {
        "module": subject.cls.__module__,
        "backends": backends,
        "own": _own(subject),
        "settings": base64.b64encode(pickle.dumps(subject.settings())).decode("ascii"),
        "blocked": blocked,
        "build": build,
        "path": sys.path,
        "closing_s": _CLOSING_S,
    }
    return _asked(json.dumps(asked))


def _found(name: str, cls: type[Any]) -> tuple[str, str, str, str]:
    """Say where a class that was registered can be found again: name, module, file, qualname."""
    if "<locals>" in cls.__qualname__:
        raise NotApplicable(
            f"{cls.__name__} is made inside a function, from where no configuration can import it"
        )
    module = sys.modules.get(cls.__module__)
    path = getattr(module, "__file__", None) or ""
    stem = cls.__module__.rpartition(".")[2]
    if not path or stem == "__main__" or stem == "conftest" or stem.startswith("test_"):
        raise NotApplicable(
            f"{cls.__name__} is defined in {cls.__module__}, a program or test that no "
            "configuration imports"
        )
    return name, cls.__module__, path, cls.__qualname__


def _own(subject: Subject) -> list[str]:
    return sorted({element.cls.__module__.partition(".")[0] for element in subject.element.walk()})


@functools.lru_cache(maxsize=64)
def _asked(asked: str) -> Probe:
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        # Files, not pipes: a process that the backend starts and leaves would hold a pipe open.
        found, said = Path(folder, "found.json"), Path(folder, "stderr")
        with said.open("wb") as stderr:
            try:
                done = subprocess.run(  # noqa: S603 - our own program
                    [sys.executable, "-W", "ignore", "-m", _PROGRAM, str(found)],
                    input=asked.encode(),
                    stdout=subprocess.DEVNULL,
                    stderr=stderr,
                    timeout=_LIMIT_S,
                    check=False,
                    env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
                )
                ended = f"ended with {done.returncode}"
            except subprocess.TimeoutExpired:
                ended = f"did not end within {_LIMIT_S} s"
        if not found.exists():
            last = said.read_text("utf-8", "replace").strip()[-500:]
            raise Broken(f"a fresh process {ended}: {last}")
        return Probe(**json.loads(found.read_text("utf-8")))


# In the fresh process.


def _loaded() -> set[str]:
    return {name.partition(".")[0] for name in sys.modules}


def _libraries(names: set[str], own: list[str]) -> list[str]:
    """Give what of these is a library that is neither standard nor headrace's nor the backend's."""
    known = {*sys.stdlib_module_names, *_LIGHT, *own}
    found = {name for name in names - known if not name.startswith("__")}
    if found:
        from importlib.metadata import packages_distributions

        by_name = packages_distributions()
        ours = {d for name in own for d in by_name.get(name, ())}
        # What has no distribution is an inner module that a library made up, such as a shim.
        found = {name for name in found if by_name.get(name) and not ours & set(by_name[name])}
    return sorted(found)


def _base() -> set[str]:
    """Load everything that headrace itself loads, and give what is there then."""
    import headrace

    Live(headrace.PipelineConfig.load({"backend": "Identity"})._plan).close()
    headrace.InitContext()
    return _loaded()


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


def _main() -> None:
    import importlib

    asked = json.load(sys.stdin)
    built = None
    sys.path[:] = asked["path"]
    found = Probe(asked["module"])
    before = _base()
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
        import headrace

        settings = pickle.loads(base64.b64decode(asked["settings"]))  # noqa: S301 - our parent's
        config = headrace.PipelineConfig.load(settings)
        found.configured = _libraries(_loaded() - before, own)
        if asked["build"]:
            found.stage, before = "build", before | _loaded()
            built = Live(config._plan)
            found.built = _libraries(_loaded() - before, own)
    except Exception as error:  # noqa: BLE001 - it is what is asked for
        found.error, found.error_text = type(error).__name__, f"{type(error).__name__}: {error}"
    _tell(found, sys.argv[1])
    if built is not None:
        _close(built, asked["closing_s"])


def _tell(found: Probe, path: str) -> None:
    part = Path(path + ".part")
    part.write_text(json.dumps(asdict(found)), encoding="utf-8")
    part.replace(path)


def _close(built: Live, limit_s: float) -> None:
    """Close what was built, as far as it ends: rules of their own judge how."""
    closing = threading.Thread(target=built.close, daemon=True)
    closing.start()
    closing.join(limit_s)


if __name__ == "__main__":
    status = 1
    try:
        _main()
        status = 0
    except BaseException:  # noqa: BLE001 - a backend may raise SystemExit as well
        traceback.print_exc()
    # A thread that the backend has left running must not keep the process, and its parent, waiting.
    sys.stderr.flush()
    os._exit(status)
