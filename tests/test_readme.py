"""The README: short, and everything in it runs, is checked, or is there."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path

import address
import pytest
from distributions import folders

from headrace import plugins

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCK = re.compile(r"```(\w+)\n(.*?)```", re.DOTALL)


def block(text: str, language: str, begins: str = "") -> str:
    """Return the one block of a language that begins so."""
    (found,) = (
        body
        for said, body in BLOCK.findall(text)
        if (said, True) == (language, body.startswith(begins))
    )
    return found


def section(text: str, title: str) -> str:
    return text.partition(f"\n## {title}\n")[2].partition("\n## ")[0]


FIRST_SCREEN = README.partition("\n## ")[0]


def test_it_is_short():
    assert len(README.splitlines()) <= 140
    assert len(README.split()) <= 1100


def test_the_first_screen_has_picture_commands_program_and_figures():
    assert len(FIRST_SCREEN.splitlines()) <= 60
    described, picture = re.search(r"!\[(.*?)\]\((.*?)\)", FIRST_SCREEN).groups()
    assert len(described.split()) > 10
    assert (ROOT / picture).stat().st_size < 300_000
    assert len(block(FIRST_SCREEN, "console").splitlines()) == 3
    program = [line for line in block(FIRST_SCREEN, "python").splitlines() if line.strip()]
    assert len(program) <= 6
    assert re.search(r"LitServe.*omniback", FIRST_SCREEN, re.DOTALL)
    assert FIRST_SCREEN.index(picture) < FIRST_SCREEN.index("```console")


@pytest.mark.skipif(
    not shutil.which("git") or not shutil.which("bash") or not (ROOT / ".git").exists(),
    reason="needs bash, and a checkout of git",
)
def test_the_first_commands_lead_to_every_command_that_it_names(tmp_path):
    cloning, entering, _ = block(FIRST_SCREEN, "console").replace("$ ", "").splitlines()
    # The address is answered by this checkout: git takes another address in its place.
    environ = {
        **os.environ,
        "GIT_CONFIG_COUNT": "1",
        "GIT_CONFIG_KEY_0": f"url.{ROOT}.insteadOf",
        "GIT_CONFIG_VALUE_0": address.CLONE,
    }
    done = subprocess.run(
        ["bash", "-ec", f"{cloning} --quiet\n{entering}\n./dev"],
        cwd=tmp_path,
        env=environ,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    commands = {*re.findall(r"\./dev (\w+)", README)}
    assert {"demo", "page", "install", "test"} <= commands
    assert [
        name for name in commands if not re.search(rf"^  {name} ", done.stdout, re.MULTILINE)
    ] == []


def test_what_it_clones_stands_in_one_place():
    assert address.cloned(README) == README, "run: python scripts/address.py"
    assert f"$ git clone {address.CLONE}\n" in README


def test_its_program_prints_the_text_that_it_shows(after_demo):
    command = [sys.executable, "-W", "error", "-c", block(README, "python")]
    done = subprocess.run(command, cwd=after_demo, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == block(FIRST_SCREEN, "text")


def test_the_file_that_it_shows_is_the_one_that_the_program_runs():
    shown = tomllib.loads(block(README, "toml"))
    text = (ROOT / "examples" / "ocr" / "line.toml").read_text(encoding="utf-8")
    assert shown == tomllib.loads(text)


def test_mistakes_in_that_file_are_reported_as_it_prints_them(after_demo):
    example = after_demo / "examples" / "ocr"
    wrong = block(README, "toml").replace("DecodeMat", "DecodMat")
    wrong = re.sub(r"^instance_num += (\S+).*", r"instances = \1", wrong, flags=re.MULTILINE)
    (example / "line.toml").write_text(wrong, encoding="utf-8")
    # A process of its own: in this one the modules of all plugins may be there already.
    command = [sys.executable, "-m", "headrace", "check", "line.toml"]
    done = subprocess.run(command, cwd=example, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (2, block(README, "text", "error:"))


def test_the_names_of_the_table_of_jobs_are_there():
    named = re.findall(r"`([A-Z]\w+)`", section(README, "What you can do with it"))
    backends = {one.name for one in entry_points(group="headrace.backends")}
    assert {*named} - backends - {*plugins.KNOWN_BACKENDS} == set()
    assert len(named) > 8


def test_the_extras_that_it_names_are_those_of_core():
    text = (ROOT / "core" / "pyproject.toml").read_text(encoding="utf-8")
    extras = tomllib.loads(text)["project"]["optional-dependencies"]
    named = {*re.findall(r"`(?:headrace)?\[(\w+)\]`", section(README, "Install"))}
    assert {"serve", "vision", "tensorrt", "torch"} <= named <= {*extras}


COMMANDS = sorted({*re.findall(r"`headrace ((?:new )?[a-z]+)", README)})


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_that_it_names_has_help(command):
    words = [sys.executable, "-m", "headrace", *command.split(), "--help"]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_the_table_of_distributions_has_each_of_them():
    table = section((ROOT / "docs" / "README.md").read_text(encoding="utf-8"), "Distributions")
    listed = re.findall(r"\[`(headrace[\w-]*)`\]\(\.\./([\w/]+)/README\.md\)", table)
    wanted = []
    for folder in folders():
        project = tomllib.loads((folder / "pyproject.toml").read_text(encoding="utf-8"))["project"]
        wanted.append((project["name"], folder.relative_to(ROOT).as_posix()))
    assert sorted(listed) == sorted(wanted)


def test_the_pipeline_for_a_gpu_of_headrace_trt_is_checked_where_there_is_none(tmp_path):
    readme = (ROOT / "plugins" / "trt" / "README.md").read_text(encoding="utf-8")
    (tmp_path / "classify.toml").write_text(block(readme, "toml", "# classify.toml"))
    (tmp_path / "net.onnx").touch()
    command = [sys.executable, "-m", "headrace", "check", "classify.toml", "--json"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    wanted = {"ok": True, "problems": [], "warnings": [], "nodes": ["decode", "classify"]}
    assert (done.returncode, json.loads(done.stdout)) == (0, wanted)
