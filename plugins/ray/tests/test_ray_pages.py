"""The README and the page: their programs run on the cluster, their configurations are valid."""

from __future__ import annotations

import re
from importlib.util import find_spec
from pathlib import Path

import pytest
from ray_programs import run_program

from headrace import PipelineConfig

HERE = Path(__file__).parents[1]
PAGE = HERE.parents[1] / "docs" / "machines.md"
TEXTS = [one.read_text(encoding="utf-8") for one in (HERE / "README.md", PAGE) if one.exists()]
# What stands before that on the page is run by tests/test_elsewhere_pages.py.
TEXTS[1:] = [one.partition("\n## On a Ray cluster\n")[2] for one in TEXTS[1:]]
PROGRAM = re.compile(r"```python\n(.*?)```", re.DOTALL)
TOML = re.compile(r"```toml\n(.*?)```", re.DOTALL)
# That of a simulated cluster is tried by headrace-observe.
CONFIGURATIONS = [
    one for text in TEXTS for one in TOML.findall(text) if not one.startswith("# cluster.toml")
]


@pytest.mark.parametrize("program", [one for text in TEXTS for one in PROGRAM.findall(text)])
def test_the_programs_run_and_print_what_they_say(program, tmp_path, cluster):
    if "serve" in program and not find_spec("starlette"):
        pytest.skip('pip install "ray[serve]"')
    path = tmp_path / "program.py"
    path.write_text(program)
    done = run_program(path, RAY_ADDRESS=cluster.address)
    assert done.returncode == 0, done.stderr
    said = re.findall(r"print\(.*\)  # (.*)$", program, re.MULTILINE)
    assert said
    assert [line for line in done.stdout.splitlines() if line in said] == said


@pytest.mark.parametrize("file", CONFIGURATIONS)
def test_the_configurations_are_valid(file, tmp_path):
    (tmp_path / "page.toml").write_text(file)
    assert PipelineConfig.load(tmp_path / "page.toml").to_dict()
