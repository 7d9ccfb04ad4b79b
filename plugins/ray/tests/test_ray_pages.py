"""The README and the page: their programs run on the cluster, their configurations are valid."""

from __future__ import annotations

import re
from importlib.util import find_spec

import pytest
from pages import Page
from ray_programs import run_program

from headrace import PipelineConfig

README, CLUSTER = Page("plugins/ray/README.md"), Page("docs/machines.md", "On a Ray cluster")
# That of a simulated cluster is tried by headrace-observe.
CONFIGURATIONS = [
    block
    for block in [*README.blocks("toml"), *CLUSTER.blocks("toml")]
    if "cluster.toml" not in block
]


@pytest.mark.parametrize("program", [*README.blocks("python"), *CLUSTER.blocks("python")])
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
