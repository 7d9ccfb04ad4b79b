"""Type checkers know what the public names are: those of users find what is wrong in their code."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import pytest
from processes import run_process

pytestmark = pytest.mark.slow

PROGRAM = Path(__file__).with_name("typed_consumer.py")


def test_mypy_finds_in_a_program_what_is_wrong_and_nothing_else(pytestconfig):
    cache = pytestconfig.rootpath / ".pytest_cache" / "mypy" / "typing"
    check = [sys.executable, "-m", "mypy", "--strict", "--config-file=", f"--cache-dir={cache}"]
    done = run_process([*check, PROGRAM])
    assert (done.returncode, done.stdout.splitlines()[-1]) == (
        0,
        "Success: no issues found in 1 source file",
    )


def test_pyright_finds_in_a_program_what_is_wrong_and_nothing_else(tmp_path):
    pytest.importorskip("pyright")
    settings = {
        "include": [PROGRAM.name],  # pyright ignores absolute paths here
        "typeCheckingMode": "strict",
        "enableTypeIgnoreComments": False,  # those are for mypy
        "reportUnnecessaryTypeIgnoreComment": True,
    }
    project = tmp_path / "pyrightconfig.json"
    project.write_text(json.dumps(settings), encoding="utf-8")
    shutil.copy(PROGRAM, tmp_path)
    check = [sys.executable, "-m", "pyright", "--outputjson", "--pythonpath", sys.executable, "-p"]
    done = run_process([*check, project])
    assert json.loads(done.stdout)["summary"]["filesAnalyzed"] == 1
    assert done.returncode == 0, done.stdout
