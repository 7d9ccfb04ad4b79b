"""What `headrace new` makes of each kind, and the service: it works as it is, and says nothing that is not so."""

from __future__ import annotations

import json
import os
import re
import shlex
import sys
from pathlib import Path

import pytest
from distributions import tomllib
from processes import run_process
from typer.testing import CliRunner

import headrace
from headrace_cli.app import app

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[1]


def new(*arguments: object) -> dict:
    """Run ``headrace new`` in this process, and return what it says with --json."""
    done = CliRunner().invoke(app, ["new", *map(str, arguments), "--json"], prog_name="headrace")
    assert done.exit_code == 0, done.stderr
    return json.loads(done.stdout)


def run(*command: object, cwd: Path, **environment: str):
    return run_process([sys.executable, *command], cwd=cwd, env={**os.environ, **environment})


@pytest.fixture(scope="module", params=["image", "text", "array"])
def made(request, tmp_path_factory) -> tuple[str, Path]:
    folder = tmp_path_factory.mktemp(request.param)
    said = new("backend", "GaussBlur", "--kind", request.param, "--dir", folder)
    return request.param, Path(said["path"])


def test_its_tests_pass_with_those_of_the_conformance_kit(made, tmp_path):
    _, folder = made
    told = tmp_path / "headrace_gauss_blur-0.1.0.dist-info"  # what pip would leave of it
    told.mkdir()
    project = tomllib.loads((folder / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    needs = "".join(f"Requires-Dist: {one}\n" for one in project["dependencies"])
    (told / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n{needs}"
    )
    groups = project["entry-points"].items()
    (told / "entry_points.txt").write_text(
        "".join(
            f"[{group}]\n" + "".join(f"{k} = {v}\n" for k, v in names.items())
            for group, names in groups
        )
    )
    paths = os.pathsep.join([str(folder / "src"), str(tmp_path)])
    done = run("-m", "pytest", "-q", "-p", "no:cacheprovider", cwd=folder, PYTHONPATH=paths)
    assert done.returncode == 0, done.stdout
    assert int(re.search(r"(\d+) passed", done.stdout)[1]) > 40


def test_it_is_formatted_and_typed(made):
    _, folder = made
    for command in (
        ("ruff", "format", "--check", "--isolated", "."),
        ("ruff", "check", "--isolated", "--select", "E,F,I,B,UP,W", "--ignore", "E501", "."),
        (
            "mypy",
            "--strict",
            "--config-file",
            ROOT / "pyproject.toml",
            f"--cache-dir={ROOT / '.pytest_cache' / 'mypy' / 'kinds'}",
            "src",
        ),
    ):
        done = run("-m", *command, cwd=folder)
        assert done.returncode == 0, done.stdout + done.stderr


def test_no_word_of_another_kind_is_left(made):
    kind, folder = made
    others = {
        "image": r"\btext\b.*\bline\b",
        "text": r"image|uint8|numpy|factor",
        "array": r"image|uint8",
    }
    for path in folder.rglob("*"):
        if path.suffix in {".py", ".md", ".toml"}:
            assert not re.search(others[kind], path.read_text(encoding="utf-8")), path


def test_it_is_not_said_to_be_on_an_index(made):
    _, folder = made
    readme = (folder / "README.md").read_text(encoding="utf-8")
    assert "pip install headrace-gauss-blur" not in readme


@pytest.fixture(scope="module")
def service(tmp_path_factory) -> Path:
    return Path(new("app", "word-count", "--dir", tmp_path_factory.mktemp("app"))["path"])


def test_the_tests_of_the_service_pass_and_one_calls_it(service):
    done = run("-m", "pytest", "-q", "-p", "no:cacheprovider", cwd=service)
    assert done.returncode == 0, done.stdout
    assert "3 passed" in done.stdout


def test_its_configuration_is_checked_and_formatted(service):
    assert run("-m", "headrace", "check", "--build", "word-count.toml", cwd=service).returncode == 0
    for command in (
        ("format", "--check", "--line-length", "100"),
        ("check", "--select", "E,F,I,B,UP,W", "--ignore", "E501"),
    ):
        done = run("-m", "ruff", command[0], "--isolated", *command[1:], ".", cwd=service)
        assert done.returncode == 0, done.stdout


def test_its_readme_shows_what_the_service_answers(service):
    readme = (service / "README.md").read_text(encoding="utf-8")
    sent, answer = re.search(r"-d '(.*?)'\n(.*?)\n", readme).groups()
    program = (
        "import sys, urllib.request, headrace_serve\n"
        "with headrace_serve.Server({'word-count': 'word-count.toml'}, port=0) as server:\n"
        "    request = urllib.request.Request(f'{server.url}/run/word-count', sys.argv[1].encode(), {'content-type': 'application/json'})\n"
        "    print(urllib.request.urlopen(request).read().decode())\n"
    )
    done = run("-W", "ignore", "-c", program, sent, cwd=service)
    assert done.stdout.strip() == answer, done.stderr
    for line in re.findall(r"^\$ headrace (.*)$", readme, re.MULTILINE):
        assert (service / shlex.split(line)[-1]).is_file()


def test_its_image_holds_what_the_service_needs(service):
    steps = (service / "Dockerfile").read_text(encoding="utf-8")
    for name in re.findall(r"^COPY (.*) \S+$", steps, re.MULTILINE):
        assert all(
            (service / one).exists() or one in ("wheels", "requirements.lock")
            for one in name.split()
        )
    assert "USER nobody" in steps
    (command,) = re.findall(r"^CMD (\[.*\])$", steps, re.MULTILINE)
    arguments = json.loads(command)
    assert arguments[:2] == ["headrace", "serve"]
    assert (
        run("-m", "headrace", "serve", "--help", cwd=service).stdout.count(
            arguments[4].partition("=")[0]
        )
        >= 1
    )
    assert headrace.PipelineConfig.load(service / arguments[2]).nodes


@pytest.mark.parametrize(
    ("name", "near"),
    [("Word Count", "word-count"), ("WordCount", "word-count"), ("9", None), ("../up", "up")],
)
def test_a_name_that_no_service_can_have_is_refused(name, near, tmp_path):
    done = CliRunner().invoke(
        app, ["new", "app", name, "--dir", str(tmp_path)], prog_name="headrace"
    )
    assert done.exit_code == 2
    assert "no name for a service" in done.stderr
    assert (f"Did you mean {near!r}?" in done.stderr) == (near is not None)
    assert list(tmp_path.iterdir()) == []
