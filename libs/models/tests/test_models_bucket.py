"""Versions of objects, with s3fs and a server of buckets by moto, in an environment of their own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from environments import environment_with

import headrace
import headrace_formats
import headrace_models

HERE = Path(__file__).parent
NEEDS = ["s3fs", "moto[server]", "boto3", "pluggy", "pydantic>=2.7,<3", "typing-extensions"]


@pytest.mark.peers
@pytest.mark.skipif(sys.platform == "win32", reason="the program of an environment is elsewhere")
def test_an_address_with_a_version_gives_that_version(tmp_path):
    packages = (headrace, headrace_formats, headrace_models)
    sources = [str(Path(package.__file__).parents[1]) for package in packages]
    done = subprocess.run(
        [environment_with(*NEEDS) / "python", HERE / "bucket_program.py", tmp_path],
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
