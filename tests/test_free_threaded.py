"""Free-threaded CPython: what is imported leaves the interpreter lock off, and requests go through."""

from __future__ import annotations

import functools
import os
import shutil
import sys
from pathlib import Path

import pytest
from processes import run_process

ROOT = Path(__file__).parents[1]
SOURCES = [str(ROOT / "core" / "src"), str(ROOT / "plugins" / "ort" / "src")]
IS_FREE = "import sysconfig, sys; sys.exit(not sysconfig.get_config_var('Py_GIL_DISABLED'))"


def run(python: str, *args: str, path: str = os.pathsep.join(SOURCES), timeout: int = 120):
    environment = {**os.environ, "PYTHONPATH": path}
    environment.pop("PYTHON_GIL", None)
    return run_process([python, *args], timeout=timeout, env=environment, cwd=ROOT)


@functools.cache
def free_threaded() -> str:
    """Return a free-threaded interpreter with the libraries that core needs; skip where there is none."""
    found = [shutil.which(f"python3.{minor}t") for minor in (15, 14, 13)]
    for python in filter(None, [sys.executable, *found]):
        if run(python, "-c", IS_FREE).returncode == 0:
            break
    else:
        pytest.skip("there is no free-threaded interpreter here")
    if run(python, "-c", "import pydantic, pluggy, packaging").returncode:
        pytest.skip(f"{python} lacks what headrace needs")
    return python


def test_core_leaves_the_lock_off_and_runs_in_many_threads():
    program = """
import sys, threading
import headrace
threads, results = [], []
with headrace.pipe({"backend": "S[Identity,Identity]", "max": 4, "instance_num": 4}) as pipe:
    def client(k):
        results.extend(pipe({"data": (k, n)})["result"] == (k, n) for n in range(500))
    threads = [threading.Thread(target=client, args=(k,)) for k in range(8)]
    for thread in threads: thread.start()
    for thread in threads: thread.join()
    print(sys._is_gil_enabled(), len(results), all(results), pipe.stats()["nodes"]["main"]["ok"])
"""
    done = run(free_threaded(), "-W", "error", "-c", program)
    assert done.stdout.split() == ["False", "4000", "True", "4000"], done.stderr


def test_ort_leaves_the_lock_off():
    python = free_threaded()
    if run(python, "-c", "import onnxruntime").returncode:
        pytest.skip(f"{python} has no ONNX Runtime")
    program = "import sys, onnxruntime, headrace_ort.backend; print(sys._is_gil_enabled())"
    done = run(python, "-c", program)
    assert done.stdout.split() == ["False"], done.stderr


@pytest.mark.stress
@pytest.mark.parametrize("folder", ["core", "plugins/ort"])
def test_the_tests_pass(request, tmp_path, folder):
    """Those of core and of ort with ``--stress``; else one module of each."""
    python = free_threaded()
    if run(python, "-c", "import pytest, pytest_timeout, hypothesis, numpy, onnx, rich").returncode:
        pytest.skip(f"{python} lacks what the tests need")
    tests = ROOT / folder / "tests"
    brief = [*tests.rglob("test_core_backend.py"), *tests.glob("test_ort_setup.py")]
    chosen = [tests] if request.config.getoption("--stress") else brief
    installed = run(python, str(ROOT / "scripts" / "distributions.py"), str(tmp_path)).stdout
    done = run(
        *(python, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--hypothesis-profile=ci"),
        *("-m", "not slow", *map(str, chosen)),
        path=installed.strip(),
        timeout=3600,
    )
    assert done.returncode == 0, done.stdout[-3000:]
