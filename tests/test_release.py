"""Releases, rehearsed in a repository of a copy: each distribution after those that it needs."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from importlib.machinery import SourceFileLoader
from pathlib import Path

import distributions
import pytest
from packaging.version import Version
from processes import run_process

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = ("core", "libs/formats", "cli", "testing", "libs/tensors", "plugins/cv")

pytestmark = [pytest.mark.slow, pytest.mark.skipif(not shutil.which("git"), reason="needs git")]


def git(repository: Path, *arguments: str) -> str:
    person = {
        f"GIT_{who}_{what}": value
        for who in ("AUTHOR", "COMMITTER")
        for what, value in (("NAME", "A Releaser"), ("EMAIL", "releaser@headrace.example"))
    }
    settings = {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_SYSTEM": os.devnull}
    done = run_process(
        ["git", *arguments], cwd=repository, env={**os.environ, **person, **settings}, check=True
    )
    return done.stdout


@pytest.fixture
def repository(tmp_path, monkeypatch) -> Path:
    """A repository with some of the distributions, none of which is released."""
    top = tmp_path / "repository"
    left_out = shutil.ignore_patterns("__pycache__", "dist", ".venv")
    for folder in (*FOLDERS, "scripts"):
        shutil.copytree(ROOT / folder, top / folder, ignore=left_out)
    shutil.copy(ROOT / ".gitignore", top)
    git(top, "init", "--quiet")
    git(top, "config", "user.name", "A Releaser")
    git(top, "config", "user.email", "releaser@headrace.example")
    git(top, "add", "--all")
    git(top, "commit", "--quiet", "--message", "All of it")
    return top


def release(repository: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(repository / "scripts" / "release"), *arguments]
    return run_process(command)


def test_a_plugin_is_not_released_before_the_core_that_it_needs(repository):
    done = release(repository, "headrace-cv", "0.1.0", "--dry-run")
    assert done.returncode == 2
    assert "headrace-cv needs headrace" in done.stderr
    assert "release headrace first" in done.stderr


def test_a_rehearsal_builds_and_changes_nothing(repository):
    done = release(repository, "headrace", "0.1.1", "--dry-run")
    assert done.returncode == 0, done.stderr
    assert "built headrace-0.1.1-py3-none-any.whl" in done.stdout
    assert "built headrace-0.1.1.tar.gz" in done.stdout
    assert "would tag headrace-v0.1.1" in done.stdout
    assert git(repository, "status", "--porcelain") == ""
    assert git(repository, "tag") == ""


def test_releases_in_order_install_from_an_index_of_what_they_built(repository, tmp_path):
    for name in ("headrace", "headrace-tensors", "headrace-formats", "headrace-cv"):
        done = release(repository, name, "0.1.0")
        assert done.returncode == 0, done.stderr
    assert git(repository, "tag").split() == [
        "headrace-cv-v0.1.0",
        "headrace-formats-v0.1.0",
        "headrace-tensors-v0.1.0",
        "headrace-v0.1.0",
    ]
    changelog = (repository / "plugins" / "cv" / "CHANGELOG.md").read_text(encoding="utf-8")
    assert re.search(r"^## 0\.1\.0 \(\d{4}-\d\d-\d\d\)$", changelog, re.MULTILINE)
    # What the workflow does with a tag, and an index of it, as a folder of the simple form.
    index = tmp_path / "index"
    for folder, name in (
        ("core", "headrace"),
        ("libs/tensors", "headrace-tensors"),
        ("libs/formats", "headrace-formats"),
        ("plugins/cv", "headrace-cv"),
    ):
        out = index / name
        build = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(out)]
        subprocess.run([*build, str(repository / folder)], capture_output=True, check=True)
        links = "".join(f'<a href="{file.name}">{file.name}</a>' for file in out.iterdir())
        (out / "index.html").write_text(f"<!doctype html>{links}", encoding="utf-8")
        # Each installs when those before it are there.
        pip = [sys.executable, "-m", "pip", "download", "--no-deps", "--no-build-isolation"]
        target = tmp_path / f"got-{name}"
        subprocess.run(
            [*pip, "--index-url", index.as_uri(), "--dest", str(target), f"{name}==0.1.0"],
            env={key: value for key, value in os.environ.items() if not key.startswith("PIP_")},
            capture_output=True,
            check=True,
        )
        assert [file.suffix for file in target.iterdir()] == [".whl"]
    # A second release of the same is refused, and so is one whose changelog says nothing new.
    again = release(repository, "headrace", "0.1.0")
    assert (again.returncode, "does not come after 0.1.0" in again.stderr) == (2, True)
    empty = release(repository, "headrace", "0.1.1")
    assert (empty.returncode, "has no heading '## 0.1.1 (unreleased)'" in empty.stderr) == (2, True)


def test_what_cannot_be_released_is_refused_with_what_to_do(repository):
    unknown = release(repository, "headrace-vc", "0.1.0")
    assert (unknown.returncode, "headrace-cv" in unknown.stderr) == (2, True)
    wrong = release(repository, "headrace", "one")
    assert (wrong.returncode, "'one' is no version" in wrong.stderr) == (2, True)
    (repository / "core" / "README.md").write_text("changed", encoding="utf-8")
    changed = release(repository, "headrace", "0.1.0")
    assert (changed.returncode, "not committed" in changed.stderr) == (2, True)


def test_every_distribution_can_be_released_after_those_that_are_listed_before_it(monkeypatch):
    path = ROOT / "scripts" / "release"
    spec = importlib.util.spec_from_loader("release", SourceFileLoader("release", str(path)))
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    versions: dict[str, list[Version]] = {}
    monkeypatch.setattr(script, "released", lambda name: versions.get(name, []))
    projects = {distributions.project(folder)["name"]: folder for folder in distributions.folders()}
    assert {
        "headrace-flow",
        "headrace-models",
        "headrace-process",
        "headrace-text",
        "headrace-triton",
        "headrace-vision",
    } <= {*projects}
    for name, folder in projects.items():
        project = distributions.project(folder)
        script.check_dependencies(project, projects)  # raises what is to be released first
        texts = script.changed_texts(folder, project, project["version"])
        version_file = "_version.py" if name == "headrace" else "__init__.py"
        assert [file.name for file in texts] == ["CHANGELOG.md", "pyproject.toml", version_file]
        versions[name] = [Version(project["version"])]
