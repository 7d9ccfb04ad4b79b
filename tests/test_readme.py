"""The README: short, and everything in it runs, is checked, or is there."""

from __future__ import annotations

import json
import re
import shutil
from importlib.metadata import entry_points

import address
import pytest
from distributions import folders, project, tomllib
from pages import ROOT, Page, run, run_program, shell

from headrace import plugins

PAGE = Page("README.md")
README = PAGE.text
FIRST_SCREEN = README.partition("\n## ")[0]
FIRST = Page("README.md", text=FIRST_SCREEN)


def test_it_is_short():
    assert len(README.splitlines()) <= 140
    assert len(README.split()) <= 1100


def test_the_first_screen_has_picture_commands_program_and_figures():
    assert len(FIRST_SCREEN.splitlines()) <= 60
    described, picture = re.search(r"!\[(.*?)\]\((.*?)\)", FIRST_SCREEN).groups()
    assert len(described.split()) > 10
    assert (ROOT / picture).stat().st_size < 300_000
    assert len(FIRST.commands) == 3
    program = [line for line in FIRST.block("python").splitlines() if line.strip()]
    assert len(program) <= 6
    assert re.search(r"LitServe.*omniback", FIRST_SCREEN, re.DOTALL)
    assert FIRST_SCREEN.index(picture) < FIRST_SCREEN.index("```console")


@pytest.mark.first("the main job: the first screen of the README")
@pytest.mark.skipif(
    not shutil.which("git") or not shutil.which("bash") or not (ROOT / ".git").exists(),
    reason="needs bash, and a checkout of git",
)
def test_the_first_commands_lead_to_every_command_that_it_names(tmp_path):
    cloning, entering, _ = FIRST.commands
    # The address is answered by this checkout: git takes another address in its place.
    environ = {
        "GIT_CONFIG_COUNT": "1",
        "GIT_CONFIG_KEY_0": f"url.{ROOT}.insteadOf",
        "GIT_CONFIG_VALUE_0": address.CLONE,
    }
    listed = run(f"{cloning} --quiet && {entering} && ./dev", tmp_path, **environ)
    commands = {*re.findall(r"\./dev (\w+)", README)}
    assert {"demo", "page", "install", "test"} <= commands
    assert [name for name in commands if not re.search(rf"^  {name} ", listed, re.MULTILINE)] == []


def test_what_it_clones_stands_in_one_place():
    assert address.cloned(README) == README, "run: python scripts/address.py"
    assert f"$ git clone {address.CLONE}\n" in README


@pytest.mark.first("the main job: the first screen of the README")
def test_its_program_prints_the_text_that_it_shows(after_demo):
    assert run_program(PAGE.block("python"), after_demo) == FIRST.block("text")


def test_the_file_that_it_shows_is_the_one_that_the_program_runs():
    shown = tomllib.loads(PAGE.block("toml"))
    text = (ROOT / "examples" / "ocr" / "line.toml").read_text(encoding="utf-8")
    assert shown == tomllib.loads(text)


@pytest.mark.first("the main job: the first screen of the README")
def test_mistakes_in_that_file_are_reported_as_it_prints_them(after_demo):
    example = after_demo / "examples" / "ocr"
    wrong = PAGE.block("toml").replace("DecodeMat", "DecodMat")
    wrong = re.sub(r"^instance_num += (\S+).*", r"instances = \1", wrong, flags=re.MULTILINE)
    (example / "line.toml").write_text(wrong, encoding="utf-8")
    # A process of its own: in this one the modules of all plugins may be there already.
    done = shell("headrace check line.toml", example)
    assert (done.returncode, done.stderr) == (2, PAGE.block("text", "error:"))


def test_the_names_of_the_table_of_jobs_are_there():
    named = re.findall(r"`([A-Z]\w+)`", Page("README.md", "What you can do with it").text)
    backends = {one.name for one in entry_points(group="headrace.backends")}
    assert {*named} - backends - {*plugins.KNOWN_BACKENDS} == set()
    assert len(named) > 8


def test_the_extras_that_it_names_are_those_of_core():
    text = (ROOT / "core" / "pyproject.toml").read_text(encoding="utf-8")
    extras = tomllib.loads(text)["project"]["optional-dependencies"]
    named = {*re.findall(r"`(?:headrace)?\[(\w+)\]`", Page("README.md", "Install").text)}
    assert {"serve", "vision", "tensorrt", "torch"} <= named <= {*extras}


COMMANDS = sorted({*re.findall(r"`headrace ((?:new )?[a-z]+)", README)})


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_that_it_names_has_help(command):
    assert run(f"headrace {command} --help", ROOT)


def test_the_table_of_distributions_has_each_of_them():
    table = Page("docs/README.md", "Distributions").text
    listed = re.findall(r"\[`(headrace[\w-]*)`\]\(\.\./([\w/]+)/README\.md\)", table)
    wanted = [(project(one)["name"], one.relative_to(ROOT).as_posix()) for one in folders()]
    assert sorted(listed) == sorted(wanted)


def test_the_pipeline_for_a_gpu_of_headrace_trt_is_checked_where_there_is_none(tmp_path):
    Page("plugins/trt/README.md").write(tmp_path, "classify.toml")
    (tmp_path / "net.onnx").touch()
    wanted = {"ok": True, "problems": [], "warnings": [], "nodes": ["decode", "classify"]}
    assert json.loads(run("headrace check classify.toml --json", tmp_path)) == wanted
