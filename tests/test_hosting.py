"""Workflows, images and hooks: what can be checked of them without where they are meant to run."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import venv
from pathlib import Path

import pytest
import yaml
from processes import run_process

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[1]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
IMAGES = sorted((ROOT / "docker").glob("*.Dockerfile"))


def lines_of(image: Path) -> list[tuple[str, str]]:
    pairs = re.findall(r"^([A-Z]+) (.+)$", image.read_text(encoding="utf-8"), re.MULTILINE)
    return [(instruction, rest) for instruction, rest in pairs]


def test_there_are_the_workflows_that_the_policies_speak_of():
    assert [path.stem for path in WORKFLOWS] == ["check", "docs", "heavy", "release", "weekly"]
    assert [path.stem for path in IMAGES] == ["cpu", "gpu"]


@pytest.mark.parametrize("path", [*WORKFLOWS, *IMAGES], ids=lambda path: path.name)
def test_what_never_ran_says_so_in_its_first_line(path):
    first = path.read_text(encoding="utf-8").splitlines()[0]
    assert re.match(r"# Never (run|built)\b", first)


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_a_workflow_has_least_rights_and_its_steps_call_the_commands_of_the_repository(path):
    workflow = yaml.safe_load(path.read_text(encoding="utf-8"))
    assert workflow["permissions"] in ({}, {"contents": "read"})
    said = run_process([str(ROOT / "dev")], check=True).stdout
    for name, job in workflow["jobs"].items():
        assert job["timeout-minutes"] > 0
        rights = {right for right, value in job.get("permissions", {}).items() if value == "write"}
        assert rights == ({"id-token"} if name == "publish" else set())
        for step in job["steps"]:
            if "checkout" in step.get("uses", ""):
                assert step["with"]["persist-credentials"] is False
            for command in re.findall(r"^\./dev (.*)$", step.get("run", ""), re.MULTILINE):
                words = [word for word in command.split() if re.fullmatch(r"[a-z]+|--\w+", word)]
                known = " ".join(words[:2] if words[0] == "test" else words[:1])
                assert re.search(rf"^  {known}\b", said, re.MULTILINE), command
            run = step.get("run", "")
            assert not run or run.startswith(("./dev ", "sudo apt-get update"))


def test_hooks_use_the_tools_of_the_environment_and_nothing_else():
    text = (ROOT / ".pre-commit-config.yaml").read_text(encoding="utf-8")
    (local,) = yaml.safe_load(text)["repos"]
    assert local["repo"] == "local"
    tools = Path(sys.executable).parent
    for hook in local["hooks"]:
        assert hook["language"] == "system"
        assert (tools / hook["entry"].split()[0]).exists()
        checked = subprocess.run(
            [tools / hook["entry"].split()[0], "--help"], capture_output=True, check=False
        )
        assert checked.returncode == 0


@pytest.mark.parametrize("image", IMAGES, ids=lambda image: image.stem)
def test_an_image_installs_what_exists_and_serves_with_options_that_exist(image):
    names = {
        re.search(r'^name = "(.+)"$', file.read_text(encoding="utf-8"), re.MULTILINE)[1]
        for pattern in ("*/pyproject.toml", "plugins/*/pyproject.toml")
        for file in ROOT.glob(pattern)
    }
    lines = lines_of(image)
    (install,) = [rest for kind, rest in lines if rest.startswith("pip install")]
    asked = re.findall(r"headrace[\w-]*", install.partition("--find-links /wheels")[2])
    assert {*asked} <= names
    assert ("USER", "nobody") in lines
    assert any(kind == "HEALTHCHECK" for kind, _ in lines)
    (entry,) = [json.loads(rest) for kind, rest in lines if kind == "ENTRYPOINT"]
    command = Path(sys.executable).parent / entry[0]
    environ = {**os.environ, "COLUMNS": "200", "NO_COLOR": "1"}
    done = run_process([command, entry[1], "--help"], check=True, env=environ)
    for option in entry[2:]:
        assert option.partition("=")[0] in done.stdout


def test_the_lines_of_the_cpu_image_run_in_an_empty_environment(wheels, pip_environ, tmp_path):
    venv.create(tmp_path / "env", with_pip=True)
    programs = tmp_path / "env" / ("Scripts" if sys.platform == "win32" else "bin")
    path = os.pathsep.join([str(programs), os.environ["PATH"]])
    left_out = ("PYTHONPATH", "VIRTUAL_ENV")
    environ = {name: value for name, value in pip_environ.items() if name not in left_out}
    runs = [rest for kind, rest in lines_of(ROOT / "docker" / "cpu.Dockerfile") if kind == "RUN"]
    assert len(runs) == 2
    for line in runs:
        command = line.replace("/wheels", str(wheels["headrace"].parent))
        done = run_process(["bash", "-c", command], cwd=tmp_path, env={**environ, "PATH": path})
        assert done.returncode == 0, done.stdout + done.stderr
