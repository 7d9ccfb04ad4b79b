"""The OpenAPI document and the server agree: schemathesis asks what the schema allows, and what it forbids."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from environments import environment_with

HERE = Path(__file__).resolve().parent
TOOL = "schemathesis==4.32.5"
PATHS = (
    "^(?!.*/generate).*("
    "simple(_identity)?/|same_(bool|u?int|fp32|fp64|bytes)|/v2$|/run/|stats|index|health)"
)
"""Not those of FP16 and BF16, which travel as binary data behind the JSON, nor the model that fails on text; nor
``generate``, whose inputs may also lie in ``parameters`` and must fill a shape, which its schema does not say."""


@pytest.mark.peers
@pytest.mark.stress
def test_schemathesis_finds_the_document_and_the_server_at_one(tmp_path, request):
    examples = "20" if request.config.getoption("--stress") else "3"
    schemathesis = environment_with(TOOL) / "schemathesis"
    served = [sys.executable, HERE / "served_examples.py", "0", "0"]
    with subprocess.Popen(served, stdout=subprocess.PIPE, text=True, cwd=HERE) as server:
        try:
            assert server.stdout is not None
            port = server.stdout.readline().split()[0]
            done = subprocess.run(
                [schemathesis, "run", f"http://127.0.0.1:{port}/openapi.json",
                 "--phases", "fuzzing,stateful",
                 "--max-examples", examples, "--seed", "1", "--include-path-regex", PATHS],
                env={**os.environ, "PYTHONPATH": str(HERE), "SCHEMATHESIS_HOOKS": "schema_hooks"},
                capture_output=True, text=True, check=False, cwd=tmp_path,
            )  # fmt: skip
        finally:
            server.terminate()
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]
