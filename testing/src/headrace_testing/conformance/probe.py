"""Finding out, in a fresh process, which libraries importing, checking and building a backend loads."""

from __future__ import annotations

import atexit
import base64
import contextlib
import functools
import json
import os
import pickle
import signal
import subprocess
import sys
import tempfile
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace_testing.conformance.outcome import Broken, NotApplicable

if TYPE_CHECKING:
    from headrace_testing.conformance.subject import Subject

_PROGRAM = "headrace_testing.conformance.fresh"
_KILL = getattr(signal, "SIGKILL", signal.SIGTERM)  # Windows has no other
_LIMIT_S = 300
_CLOSING_S = 20
"""How long a backend may take to close in the fresh process, which has written its answer by then."""


@dataclass
class Probe:
    """The answer of a fresh process.

    Attributes:
        module: The module of the backend.
        imported, configured: The heavy libraries that each step was the first to load, by top-level name.
        required: All libraries that these two steps loaded and a distribution brings.
        built: Such libraries that the last step was the first to load.
        stage: The last step that the process began: ``import``, ``configure``, ``build``.
        error: The class of the error that ended that step, empty for none.
        error_text: The class and text of that error.
    """

    module: str = ""
    imported: list[str] = field(default_factory=list)
    configured: list[str] = field(default_factory=list)
    required: list[str] = field(default_factory=list)
    built: list[str] = field(default_factory=list)
    stage: str = "import"
    error: str = ""
    error_text: str = ""


def probe(subject: Subject, blocked: tuple[str, ...] = (), *, build: bool = True) -> Probe:
    """Import, check and build the backend in a fresh process.

    Args:
        subject: The backend.
        blocked: Libraries that cannot be imported there.
        build: Whether to build the backend as well.

    Raises:
        NotApplicable: No configuration can import the class from the place where it is defined.
        Broken: The process ended neither normally nor by an error of the backend.
    """
    registered = [element for element in subject.element.walk() if element.registered]
    backends = [_found(element.backend, element.cls) for element in registered]
    job = {
        "module": subject.cls.__module__,
        "backends": backends,
        "own": _own(subject),
        "settings": base64.b64encode(pickle.dumps(subject.settings())).decode("ascii"),
        "blocked": blocked,
        "build": build,
        "path": sys.path,
        "closing_s": _CLOSING_S,
    }
    return _asked(json.dumps(job))


def _found(name: str, cls: type[Any]) -> tuple[str, str, str, str]:
    """Return the place of a registered class for another process: name, module, file, qualname."""
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


class _Fresh:
    """The process that forks the fresh ones: it has loaded headrace and nothing else.

    It is started when it is first needed, and ends with this process. Where the platform cannot fork, it is
    the fresh process itself, and another one is started for the next question.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        # The process that has started `_process`: a fork of it has to start its own.
        self._owner = 0

    def ask(self, job_json: str, folder: str) -> str:
        """Let a fresh process answer into ``folder``; return how it ended."""
        env = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        job = {"asked": job_json, "folder": folder, "env": env, "cwd": str(Path.cwd())}
        with self._lock:
            process = self._running(env)
            pid, late = process.pid, threading.Event()

            def kill() -> None:
                late.set()
                with contextlib.suppress(OSError):
                    os.kill(pid, _KILL)

            timer = threading.Timer(_LIMIT_S, kill)
            timer.daemon = True
            try:
                pid = int(_exchange(process, json.dumps(job).encode() + b"\n") or pid)
                timer.start()
                status = _exchange(process)
            except BaseException:  # after Ctrl-C no thread waits for the answer
                kill()
                process.kill()
                raise
            finally:
                timer.cancel()
            if late.is_set():
                return f"did not end within {_LIMIT_S} s"
            return f"ended with {status or process.wait()}"

    def _running(self, env: dict[str, str]) -> subprocess.Popen[bytes]:
        process = self._process if self._owner == os.getpid() else None
        if process is None or process.poll() is not None:
            self.end()
            self._owner = os.getpid()
            process = self._process = subprocess.Popen(  # noqa: S603 - our own program
                [sys.executable, "-W", "ignore", "-m", _PROGRAM],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                env=env,
                start_new_session=True,  # keeps Ctrl-C away from it
            )
        return process

    def end(self) -> None:
        """End the process by closing its stdin."""
        if self._process is not None and self._owner == os.getpid():
            with contextlib.suppress(OSError, subprocess.TimeoutExpired):
                self._process.communicate(timeout=_CLOSING_S)


def _exchange(process: subprocess.Popen[bytes], line: bytes = b"") -> str:
    """Send a line and give the next line of the process; empty when it has ended."""
    if process.stdin is None or process.stdout is None:
        return ""
    with contextlib.suppress(BrokenPipeError):
        process.stdin.write(line)
        process.stdin.flush()
    return process.stdout.readline().decode().strip()


_fresh = _Fresh()
atexit.register(_fresh.end)


@functools.lru_cache(maxsize=64)
def _asked(job_json: str) -> Probe:
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        ended = _fresh.ask(job_json, folder)
        answer, log = Path(folder, "found.json"), Path(folder, "stderr")
        if not answer.exists():
            last = log.read_text("utf-8", "replace").strip()[-500:] if log.exists() else ""
            raise Broken(f"a fresh process {ended}: {last}")
        return Probe(**json.loads(answer.read_text("utf-8")))
