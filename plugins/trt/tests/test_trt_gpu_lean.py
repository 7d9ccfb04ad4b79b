"""Plans of this TensorRT, run by the lean runtimes of newer versions, each in a process of its own.

HEADRACE_TRT_LEAN names the folders, separated as those of a PATH, that have a package ``tensorrt_lean``
each: two versions cannot be loaded by one process.
"""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from gpu_helpers import LOADED, PROFILE, QUICK, expected_of, images, relative

from headrace_trt import BuildSettings, build_engine
from headrace_trt.lean_runtime import load_lean_runtime
from headrace_trt.library import find_library

FOLDERS = [folder for folder in os.environ.get("HEADRACE_TRT_LEAN", "").split(os.pathsep) if folder]

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.usefixtures("gpu_cache"),
    pytest.mark.skipif(not FOLDERS, reason="HEADRACE_TRT_LEAN names no lean runtime"),
]

PROGRAM = """
import sys
import numpy as np, headrace
plan, given, result, trusted = sys.argv[1:]
config = {"backend": "%s", "model": plan, "library": "tensorrt_lean", "max": 4}
with headrace.pipe({**config, "trust_engine": trusted == "trusted"}) as pipe:
    np.save(result, pipe({"data": np.load(given), "request_size": 4})["result"])
    print(pipe.describe())
"""


def run_under(folder, plan, given, result, *, trusted=True):
    """Run a plan under the lean runtime of a folder; give the finished process."""
    path = os.pathsep.join(filter(None, [folder, os.environ.get("PYTHONPATH", "")]))
    how = "trusted" if trusted else "not trusted"
    return subprocess.run(
        [sys.executable, "-c", PROGRAM % LOADED, str(plan), str(given), str(result), how],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


@pytest.fixture(params=["with its runtime", "without its runtime"])
def compatible(request, small_net, tmp_path):
    """A version-compatible plan, and whether it holds the lean runtime of its version."""
    carried = request.param == "with its runtime"
    if carried and load_lean_runtime(find_library()) is None:
        pytest.skip("the lean runtime of this TensorRT is not here")
    settings = BuildSettings(
        model=small_net, profiles=(PROFILE,), version_compatible=True,
        exclude_lean_runtime=not carried, **QUICK,
    )  # fmt: skip
    plan = tmp_path / "compatible.plan"
    build_engine(settings, engine=plan)
    assert (plan.stat().st_size > 10_000_000) is carried
    return plan, carried


@pytest.mark.parametrize("folder", FOLDERS or [""], ids=lambda folder: Path(folder).name)
def test_a_newer_lean_runtime_runs_the_plan_that_holds_its_own(
    compatible, folder, small_net, tmp_path
):
    plan, carried = compatible
    given, result = tmp_path / "x.npy", tmp_path / "y.npy"
    x = images(4)
    np.save(given, x)
    done = run_under(folder, plan, given, result)
    name = f"tensorrt_lean {version_in(folder)}"
    if not carried:  # a newer version runs a plan by the runtime that lies in it
        assert done.returncode != 0
        assert name in done.stderr
        assert find_library().text in done.stderr
        return
    assert done.returncode == 0, done.stderr[-3000:]
    assert name in done.stdout
    assert relative(np.load(result), expected_of(small_net, x=x)[0]) <= 1e-3
    refused = run_under(folder, plan, given, result, trusted=False)
    assert refused.returncode != 0
    assert "trust_engine = true" in refused.stderr


def version_in(folder):
    """Read the version of a package without loading it into this process."""
    code = "import tensorrt_lean; print(tensorrt_lean.__version__)"
    environ = {**os.environ, "PYTHONPATH": folder}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environ, capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


@pytest.mark.parametrize("folder", FOLDERS or [""], ids=lambda folder: Path(folder).name)
def test_a_plan_for_one_version_is_refused_by_another_with_both_named(folder, small_net, tmp_path):
    plan, given = tmp_path / "one.plan", tmp_path / "x.npy"
    build_engine(BuildSettings(model=small_net, profiles=(PROFILE,), **QUICK), engine=plan)
    np.save(given, images(4))
    done = run_under(folder, plan, given, tmp_path / "y.npy")
    assert done.returncode != 0
    assert f"tensorrt_lean {version_in(folder)}" in done.stderr
    assert find_library().text in done.stderr  # by which it was built
    assert "version_compatible" in done.stderr
