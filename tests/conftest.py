"""What several tests need: the distributions as wheels, built once, as a release is."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
DISTRIBUTIONS = {
    "core": "headrace",
    "plugins/cv": "headrace_cv",
    "plugins/ort": "headrace_ort",
}


@pytest.fixture(scope="session")
def wheels(tmp_path_factory) -> dict[str, Path]:
    """One wheel per distribution, all in one folder, by name of the package."""
    out = tmp_path_factory.mktemp("wheels")
    built = {}
    for folder, package in DISTRIBUTIONS.items():
        command = ["-m", "build", "--wheel", "--no-isolation", "-o", str(out), str(ROOT / folder)]
        done = subprocess.run(
            [sys.executable, *command], capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
        (built[package],) = out.glob(f"{package}-*.whl")
    return built
