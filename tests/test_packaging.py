"""The wheels, as a user gets them: built, installed into an empty environment, used."""

from __future__ import annotations

import json
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
DISTRIBUTIONS = {
    "core": "headrace",
    "plugins/cv": "headrace_cv",
    "plugins/ort": "headrace_ort",
}


def run(*command: object, **options) -> str:
    done = subprocess.run(
        [str(part) for part in command], capture_output=True, text=True, check=False, **options
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="session")
def wheels(tmp_path_factory) -> dict[str, Path]:
    """One wheel per distribution, built as a release is."""
    built = {}
    for folder, package in DISTRIBUTIONS.items():
        out = tmp_path_factory.mktemp("wheel")
        run(sys.executable, "-m", "build", "--wheel", "--no-isolation", "-o", out, ROOT / folder)
        (built[package],) = out.iterdir()
    return built


@pytest.mark.timeout(300)
def test_a_wheel_holds_its_package_and_nothing_else(wheels):
    for package, wheel in wheels.items():
        assert wheel.name.endswith("-py3-none-any.whl")
        names = zipfile.ZipFile(wheel).namelist()
        tops = {name.split("/")[0] for name in names}
        assert tops == {package, f"{package}-0.1.0.dist-info"}
        assert f"{package}/py.typed" in names
        assert not [name for name in names if name.rpartition("/")[2].startswith("test_")]


@pytest.fixture(scope="session")
def environment(wheels, tmp_path_factory) -> Path:
    """An environment of its own with the three wheels and what they ask for."""
    folder = tmp_path_factory.mktemp("environment")
    run(sys.executable, "-m", "venv", folder)
    core, cv, ort = wheels.values()
    python = folder / "bin" / "python"
    run(python, "-m", "pip", "install", "--quiet", f"{core}[cli]", cv, ort)
    return folder


@pytest.mark.network
@pytest.mark.timeout(600)
def test_the_installed_distributions_find_each_other(environment, tmp_path):
    headrace = environment / "bin" / "headrace"
    plugins = json.loads(run(headrace, "plugins", "list", "--json", cwd=tmp_path))
    text = json.dumps(plugins)
    for name in ("headrace-cv", "headrace-ort", "DecodeMat", "OnnxTensor"):
        assert name in text


@pytest.mark.network
@pytest.mark.timeout(600)
def test_the_program_of_the_readme_runs_in_that_environment(environment, tmp_path):
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    program = readme.partition("```python\n")[2].partition("```")[0]
    printed = run(environment / "bin" / "python", "-c", program, cwd=tmp_path)
    assert printed == "float32 (3, 224, 224)\n"


@pytest.mark.network
@pytest.mark.timeout(600)
def test_a_configuration_runs_from_the_installed_command(environment, tmp_path):
    (tmp_path / "upper.py").write_text(
        "import headrace\n"
        "@headrace.register('Upper')\n"
        "class Upper:\n"
        "    def forward(self, batch):\n"
        "        for request in batch:\n"
        "            request['result'] = request['data'].decode().upper()\n",
        encoding="utf-8",
    )
    (tmp_path / "upper.toml").write_text(
        "import = ['upper.py']\nbackend = 'Upper'\nmax = 4\n", encoding="utf-8"
    )
    for name in ("a", "b"):
        (tmp_path / f"{name}.txt").write_text(f"text {name}", encoding="utf-8")
    printed = run(
        environment / "bin" / "headrace", "run", "upper.toml", "a.txt", "b.txt", cwd=tmp_path
    )
    assert printed == "a.txt\tTEXT A\nb.txt\tTEXT B\n"
