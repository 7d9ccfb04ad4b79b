"""A broken ``entry_points.txt`` of a stranger stops nobody: pydantic would read it, for plugins of its own."""

from __future__ import annotations

import os
import sys

import pytest
from processes import run_process

PROGRAM = """
import logging
logging.basicConfig()
import headrace
with headrace.pipe({"backend": "Identity"}) as pipe:
    print(pipe({"data": 1})["result"])
"""


@pytest.fixture(params=[b"[console_scripts]\nhalf\n", b"[console_scripts]\na = b:c\n\xff\xfe"])
def environment(request, tmp_path):
    """Return an environment in which an unrelated distribution is installed whose entry points nobody can read."""
    info = tmp_path / "unrelated-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: unrelated\nVersion: 1.0\n")
    (info / "entry_points.txt").write_bytes(request.param)
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    environment.pop("PYDANTIC_DISABLE_PLUGINS", None)
    return environment


def run(environment, *command):
    done = run_process([sys.executable, *command], env=environment)
    return done.returncode, done.stdout, done.stderr


def test_a_pipeline_runs(environment):
    status, printed, told = run(environment, "-c", PROGRAM)
    assert (status, printed) == (0, "1\n")
    assert "pydantic runs without its plugins" in told


def test_the_check_reports_what_it_always_does(environment):
    command = ("-m", "headrace", "plugins", "list", "--check")
    usual = run({**environment, "PYTHONPATH": ""}, *command)
    assert run(environment, *command)[:2] == usual[:2]
