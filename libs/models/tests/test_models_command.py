"""The command ``headrace models``."""

from __future__ import annotations

import json
import signal
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from headrace_cli.app import app


@pytest.fixture
def served(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "served"
    (folder / "read").mkdir(parents=True)
    (folder / "detect.toml").write_text('backend = "Identity"\n')
    (folder / "read" / "3.toml").write_text('backend = "Identity"\ndevice = "cpu"\n')
    (folder / "aliases.toml").write_text('live = {"read:3" = 3, "detect" = 1}\n')
    return folder


def test_it_shows_every_version_and_alias(served):
    done = CliRunner().invoke(app, ["models", "served"])
    assert done.exit_code == 0
    assert [line.split() for line in done.stdout.splitlines()] == [
        ["model", "state", "device", "reason"],
        ["detect:1", "ready", "cpu"],
        ["read:3", "ready", "cpu"],
        ["live", "ready", "read:3", "75%,", "detect", "25%"],
    ]


def test_a_folder_without_models_is_told(served):
    (served / "empty").mkdir()
    done = CliRunner().invoke(app, ["models", "served/empty"])
    assert done.exit_code == 0
    assert "there is no model in 'served/empty'" in done.stderr


def test_its_json_is_the_status(served):
    done = CliRunner().invoke(app, ["models", "served", "--json"])
    found = json.loads(done.stdout)
    assert found["read"]["versions"]["3"]["state"] == "ready"
    assert found["live"]["shares"] == {"read:3": 0.75, "detect": 0.25}


def test_a_wrong_configuration_ends_it_with_the_problems(served):
    (served / "bad.toml").write_text('backend = "Identitee"\n')
    done = subprocess.run(
        [sys.executable, "-m", "headrace", "models", "served"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 2
    assert "Did you mean 'Identity'?" in done.stderr
    assert "bad.toml" in done.stderr


@pytest.mark.skipif(sys.platform == "win32", reason="there is no SIGINT for one process")
def test_it_prints_what_changes_until_ctrl_c(served):
    command = [sys.executable, "-u", "-m", "headrace", "models", "served", "--watch", "--json"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert json.loads(process.stdout.readline())["detect"]["state"] == "ready"
        assert "watching" in process.stderr.readline()
        (served / "detect.toml").write_text('backend = "Identity"\nmax = 2\n')
        said = [json.loads(process.stdout.readline()) for _ in range(4)]
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=120)
    assert process.returncode == 130
    assert [(one["version"], one["state"]) for one in said] == [
        ("2", "loading"), ("2", "ready"), ("1", "draining"), ("1", "unloaded"),
    ]  # fmt: skip
