"""The template of a plugin: rendered by `headrace new` and by cookiecutter, and what it holds."""

from __future__ import annotations

import ast
import errno
import json
import os
import re
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from distributions import tomllib
from packaging.requirements import Requirement
from processes import run_process
from typer.testing import CliRunner

import headrace
from headrace_cli.app import app

ROOT = Path(__file__).resolve().parents[1]
TEMPLATE = ROOT / "templates" / "backend"


def new(*arguments: object, cwd: Path) -> SimpleNamespace:
    """Run the command in this process; the fixture `made` runs it in one of its own."""
    before = Path.cwd()
    os.chdir(cwd)
    try:
        arguments = ("new", "backend", *map(str, arguments))
        done = CliRunner().invoke(app, list(arguments), prog_name="headrace")
    finally:
        os.chdir(before)
    return SimpleNamespace(returncode=done.exit_code, stdout=done.stdout, stderr=done.stderr)


def tree(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Path:
    """The distribution of a backend named GaussBlur."""
    folder = tmp_path_factory.mktemp("made")
    command = [sys.executable, "-m", "headrace", "new", "backend", "GaussBlur"]
    done = run_process(command, cwd=folder)
    assert (done.returncode, done.stdout) == (0, "headrace-gauss-blur\n"), done.stderr
    return folder / "headrace-gauss-blur"


@pytest.mark.parametrize("name", ["GaussBlur", "X", "Mat2Tensor2", "HTTPFetch", "B2B", "Field"])
def test_the_command_gives_what_cookiecutter_gives_byte_for_byte(name, tmp_path):
    from cookiecutter.main import cookiecutter

    settings = tmp_path / "settings.yaml"
    settings.write_text(
        json.dumps({name: str(tmp_path / name) for name in ("cookiecutters_dir", "replay_dir")})
    )
    baked = cookiecutter(
        str(TEMPLATE),
        no_input=True,
        extra_context={"backend": name},
        output_dir=str(tmp_path / "baked"),
        config_file=str(settings),
    )
    done = new(name, "--dir", tmp_path / "own", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    (own,) = (tmp_path / "own").iterdir()
    assert own.name == Path(baked).name
    assert tree(own) == tree(Path(baked))
    assert len(tree(own)) >= 10


def test_cookiecutter_refuses_a_name_that_no_class_can_have(tmp_path):
    from cookiecutter.exceptions import FailedHookException
    from cookiecutter.main import cookiecutter

    settings = tmp_path / "settings.yaml"
    settings.write_text(
        json.dumps({name: str(tmp_path / name) for name in ("cookiecutters_dir", "replay_dir")})
    )
    with pytest.raises(FailedHookException):
        cookiecutter(
            str(TEMPLATE),
            no_input=True,
            extra_context={"backend": "no class"},
            output_dir=str(tmp_path / "baked"),
            config_file=str(settings),
        )
    assert list((tmp_path / "baked").iterdir()) == []


@pytest.mark.first("write a backend of your own and certify it: the command writes a distribution")
@pytest.mark.parametrize(
    ("written", "backend", "distribution"),
    [
        ("gauss-blur", "GaussBlur", "headrace-gauss-blur"),
        ("gauss_blur", "GaussBlur", "headrace-gauss-blur"),
        ("headrace-gauss-blur", "GaussBlur", "headrace-gauss-blur"),
        ("blur", "Blur", "headrace-blur"),
        ("FFT", "FFT", "headrace-fft"),
    ],
)
def test_the_names_come_from_that_of_the_backend(written, backend, distribution, tmp_path):
    done = new(written, "--json", cwd=tmp_path)
    said = json.loads(done.stdout)
    assert said == {
        "backend": backend,
        "distribution": distribution,
        "package": distribution.replace("-", "_"),
        "path": distribution,
        "files": sorted(tree(tmp_path / distribution)),
    }


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("no class", "Did you mean 'NoClass'?"),
        ("Größe", "Did you mean 'Groe'?"),
        ("9lives", "no name"),
        ("", "no name"),
        ("Größe", "no name"),
        ("none", "no name"),
        ("../up", "no name"),
        ("S", "taken by headrace\n"),
        ("Benchmark", "taken by headrace-observe"),
        ("ResizeMat", "taken by headrace-cv"),
        ("TorchModule", "taken by headrace-torch"),
        ("Cv", "'headrace-cv'"),
        ("Trt", "'headrace-trt'"),
    ],
)
def test_a_name_that_cannot_be_is_refused_and_nothing_is_written(name, said, tmp_path):
    done = new(name, cwd=tmp_path)
    assert done.returncode == 2
    assert done.stdout == ""
    assert said in done.stderr
    assert "Traceback" not in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_what_exists_is_not_touched(tmp_path):
    mine = tmp_path / "headrace-blur" / "mine.txt"
    mine.parent.mkdir()
    mine.write_text("mine")
    done = new("Blur", cwd=tmp_path)
    assert done.returncode == 2
    assert "'headrace-blur' exists already" in done.stderr
    assert tree(tmp_path) == {"headrace-blur/mine.txt": b"mine"}


def test_a_folder_that_cannot_be_made_is_an_error(tmp_path):
    (tmp_path / "file").write_text("")
    done = new("Blur", "--dir", tmp_path / "file", cwd=tmp_path)
    assert done.returncode == 2
    assert "exists already" in done.stderr
    assert "Traceback" not in done.stderr


def test_the_template_holds_nothing_that_the_command_cannot_render():
    for path, content in tree(TEMPLATE).items():
        if not path.startswith("{{cookiecutter.distribution}}"):
            continue
        text = path + re.sub(r"{% raw %}.*?{% endraw %}", "", content.decode(), flags=re.DOTALL)
        left = re.sub(r"{{ ?cookiecutter\.(backend|distribution|package|_py|_needs) ?}}", "", text)
        assert not re.search(r"{{|}}|{%|%}", left), path


def test_nothing_of_the_template_is_left_in_what_is_made(made):
    for path, content in tree(made).items():
        assert "cookiecutter" not in path + content.decode()
        assert "{%" not in content.decode()


def test_it_requires_the_headrace_that_made_it(made):
    project = tomllib.loads((made / "pyproject.toml").read_text())["project"]
    major, minor, _ = headrace.__version__.split(".")
    (wanted,) = [text for text in project["dependencies"] if text.startswith("headrace")]
    assert wanted == f"headrace>={major}.{minor},<{major}.{int(minor) + 1}"
    assert Requirement(wanted).specifier.contains(headrace.__version__)


@pytest.mark.parametrize(
    ("module", "defined"), [("backend", r"[A-Z][A-Za-z0-9]*"), ("conformance", r"\w*Conformance")]
)
def test_no_name_of_a_backend_hides_what_its_module_imports(module, defined, made):
    tree = ast.parse((made / "src" / "headrace_gauss_blur" / f"{module}.py").read_text())
    imports = [one for one in ast.walk(tree) if isinstance(one, (ast.Import, ast.ImportFrom))]
    names = [alias.asname or alias.name for one in imports for alias in one.names]
    assert names
    assert [name for name in names if re.fullmatch(defined, name)] == []


@pytest.mark.slow
def test_it_keeps_the_rules_of_this_repository(made):
    cache = ROOT / ".pytest_cache" / "mypy" / "template"
    for command in (
        ["ruff", "format", "--check", "--config", ROOT / "pyproject.toml", made],
        ["ruff", "format", "--check", "--isolated", made],
        ["ruff", "check", "--config", ROOT / "pyproject.toml", made / "src"],
        ["ruff", "check", "--isolated", "--select", "E,F,I,B,UP,W", "--ignore", "E501", made],
        [
            "mypy",
            "--strict",
            "--config-file",
            ROOT / "pyproject.toml",
            f"--cache-dir={cache}",
            made / "src",
        ],
    ):
        done = run_process([sys.executable, "-m", *command], cwd=made)
        assert done.returncode == 0, done.stdout + done.stderr


def test_where_the_disk_is_full_no_half_of_it_stays(tmp_path, monkeypatch):
    written = []

    def full(path, content):
        written.append(path)
        if len(written) > 3:
            raise OSError(errno.ENOSPC, "No space left on device")
        path.touch()

    with monkeypatch.context() as patched:
        patched.setattr(Path, "write_bytes", full)
        done = new("Field", cwd=tmp_path)
    assert done.returncode == 2
    assert "'headrace-field' cannot be written: No space left on device" in done.stderr
    assert list(tmp_path.iterdir()) == []
