"""Versions of objects, with s3fs and a server of buckets by moto, in an environment of their own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import venv
from pathlib import Path

import pytest

import headrace
import headrace_models

HERE = Path(__file__).parent
NEEDS = ["s3fs", "moto[server]", "boto3", "pluggy", "pydantic>=2.7,<3", "typing-extensions"]


@pytest.fixture(scope="module")
def python(pytestconfig):
    """Return the interpreter of an environment that is made if need be."""
    home = pytestconfig.rootpath / ".pytest_cache" / "environments" / "models-bucket"
    made = home / "bin" / "python"
    if not (home / "complete").exists():
        venv.create(home, with_pip=True, clear=True)
        subprocess.run([made, "-m", "pip", "install", "-q", *NEEDS], check=True)
        (home / "complete").touch()
    return made


@pytest.mark.peers
@pytest.mark.skipif(sys.platform == "win32", reason="the program of an environment is elsewhere")
def test_an_address_with_a_version_gives_that_version(python, tmp_path):
    sources = [str(Path(one.__file__).parents[1]) for one in (headrace, headrace_models)]
    done = subprocess.run(
        [python, HERE / "bucket_program.py", tmp_path],
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join(sources),
            "HEADRACE_FETCH_TIMEOUT_S": "300",
        },
        stdout=subprocess.PIPE,
        check=True,
        text=True,
    )
    told = json.loads(done.stdout)
    first, second = told["made"]
    found = told["found"]
    kind, why = found.pop("nobody")
    assert found == {"": ["2", second], first: ["1", first], second: ["2", second]}
    assert kind == "SetupError"
    assert "s3://bucket/a/m" in why
