"""The wheels, as a user gets them: installed into an empty environment, used. What each must be is in test_packaging_rules."""

from __future__ import annotations

import json
import re
import sys
import zipfile
from pathlib import Path

import pytest
from pages import Page, succeed
from processes import run_process

ROOT = Path(__file__).resolve().parents[1]


def test_the_template_is_in_the_wheel_of_the_command_and_in_a_wheel_made_of_its_sdist(
    wheels, tmp_path
):
    folder = ROOT / "cli" / "src"
    template = folder / "headrace_cli" / "_templates"
    files = {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in template.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert len(files) >= 10
    # Without --wheel and --sdist the wheel is made of the sdist.
    succeed(sys.executable, "-m", "build", "--no-isolation", "-o", tmp_path, ROOT / "cli")
    (of_sdist,) = tmp_path.glob("*.whl")
    for wheel in (wheels["headrace_cli"], of_sdist):
        archive = zipfile.ZipFile(wheel)
        inside = [name for name in archive.namelist() if "/_templates/" in name]
        assert {name: archive.read(name) for name in inside} == files


FOLDERS = [
    path.parent.relative_to(ROOT).as_posix()
    for pattern in ("*/pyproject.toml", "libs/*/pyproject.toml", "plugins/*/pyproject.toml")
    for path in ROOT.glob(pattern)
]


def test_dev_builds_the_wheels_with_which_every_install_works_as_it_is_written(wheels):
    names = [
        re.search(r'^name = "(.+)"$', (ROOT / folder / "pyproject.toml").read_text(), re.MULTILINE)
        for folder in FOLDERS
    ]
    assert sorted(wheels) == sorted(name[1].replace("-", "_") for name in names if name)
    install = ("-m", "pip", "install", "--dry-run", "--no-deps", "--ignore-installed", "--no-index")
    links = ("--find-links", wheels["headrace"].parent)
    printed = succeed(
        sys.executable, *install, *links, *(name.replace("_", "-") for name in wheels)
    )
    (would,) = [line for line in printed.splitlines() if line.startswith("Would install ")]
    assert len(would.split()) == 2 + len(wheels)


@pytest.mark.slow
def test_the_installed_distributions_find_each_other(environment, tmp_path):
    headrace = environment / "bin" / "headrace"
    plugins = json.loads(succeed(headrace, "plugins", "list", "--json", cwd=tmp_path))
    text = json.dumps(plugins)
    for name in ("headrace-cv", "headrace-ort", "DecodeMat", "OnnxTensor"):
        assert name in text


def test_the_program_of_the_readme_runs_in_that_environment(environment, after_demo):
    page = Page("README.md")
    printed = succeed(environment / "bin" / "python", "-c", page.block("python"), cwd=after_demo)
    assert printed == page.blocks("text")[0]


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
    printed = succeed(
        environment / "bin" / "headrace", "run", "upper.toml", "a.txt", "b.txt", cwd=tmp_path
    )
    assert printed == "a.txt\tTEXT A\nb.txt\tTEXT B\n"


@pytest.fixture(scope="session")
def made(environment, pip_environ, tmp_path_factory) -> Path:
    """A distribution made by the installed command, built, and installed from its wheel."""
    folder = tmp_path_factory.mktemp("made")
    succeed(environment / "bin" / "headrace", "new", "backend", "Scale", cwd=folder)
    python = environment / "bin" / "python"
    source = folder / "headrace-scale"
    build = (python, "-m", "pip", "wheel", "--quiet", "--no-deps", "-w", folder, source)
    succeed(*build, env=pip_environ)
    (wheel,) = folder.glob("headrace_scale-*.whl")
    install = (python, "-m", "pip", "install", "--quiet", "headrace-testing", wheel)
    succeed(*install, env=pip_environ)
    return source


@pytest.mark.slow
def test_what_the_template_makes_passes_its_tests_there(made, environment):
    """Its tests are the rules of the kit, too; the page about publishing asks for a certificate."""
    done = succeed(environment / "bin" / "python", "-m", "pytest", "-q", cwd=made)
    assert " passed" in done
    assert "skipped" not in done


def test_what_the_template_makes_runs_together_with_cv_and_ort(made, environment, tmp_path):
    import cv2
    import numpy as np
    import onnx
    from onnx import TensorProto, helper

    graph = helper.make_graph(
        [helper.make_node("GlobalAveragePool", ["image"], ["mean"])],
        "mean",
        [helper.make_tensor_value_info("image", TensorProto.FLOAT, ["n", 3, 8, 8])],
        [helper.make_tensor_value_info("mean", TensorProto.FLOAT, ["n", 3, 1, 1])],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
    onnx.save(model, tmp_path / "mean.onnx")
    (tmp_path / "mean.toml").write_text(
        'backend = "S[DecodeMat,Scale,ResizeMat(8,8),Mat2Tensor,OnnxTensor]"\n'
        'factor = 0.5\nmodel = "mean.onnx"\nmax = 4\ninstance_num = 2\n',
        encoding="utf-8",
    )
    for value in (40, 200):
        cv2.imwrite(str(tmp_path / f"{value}.png"), np.full((16, 24, 3), value, np.uint8))
    (tmp_path / "wrong.png").write_bytes(b"no picture")
    command = environment / "bin" / "headrace"
    succeed(command, "check", "mean.toml", cwd=tmp_path)
    done = run_process(
        [command, "run", "--json", "mean.toml", "40.png", "200.png", "wrong.png"], cwd=tmp_path
    )
    first, second, wrong = map(json.loads, done.stdout.splitlines())
    assert done.returncode == 1
    assert np.ravel(first["result"]).tolist() == [20.0, 20.0, 20.0]
    assert np.ravel(second["result"]).tolist() == [100.0, 100.0, 100.0]
    assert wrong["error"]["code"] == "input"
