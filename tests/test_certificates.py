"""A certificate travels in the wheel of a plugin made from the template, and is told once it no longer holds."""

from __future__ import annotations

import json
import os
import shutil
import sys
from datetime import datetime, timezone
from pathlib import Path

import pytest
from processes import run_process

pytestmark = pytest.mark.slow

NAME = "headrace-gauss-blur"
OFFLINE = ("--quiet", "--no-deps", "--no-build-isolation", "--no-index")


def run(*command: object, status: int = 0, **environ: str) -> str:
    """Run a module in a process of its own. Give its output, or its message if it fails."""
    done = run_process([sys.executable, "-m", *command], env={**os.environ, **environ})
    assert done.returncode == status, done.stdout + done.stderr
    return done.stdout or done.stderr


def headrace(site: Path, *command: object, status: int = 0) -> str:
    return run(
        "headrace", *command, status=status, PYTHONPATH=str(site), HEADRACE_PLUGINS="gauss-blur"
    )


def wheel_of(source: Path, folder: Path) -> Path:
    """Return a wheel that is made of the sdist."""
    run("build", "--no-isolation", "-o", folder, source)
    (wheel,) = folder.glob("*.whl")
    return wheel


@pytest.fixture(scope="module")
def source(tmp_path_factory) -> Path:
    """The source folder of a plugin, with the certificate that the command wrote there."""
    top = tmp_path_factory.mktemp("source")
    run("headrace", "new", "backend", "GaussBlur", "--dir", top)
    run("pip", "install", *OFFLINE, "--target", top / "site", top / NAME)
    assert "certified by" not in headrace(top / "site", "plugins", "list")
    headrace(top / "site", "conformance", NAME, "--write")
    return top / NAME


@pytest.fixture(scope="module")
def wheel(source, tmp_path_factory) -> Path:
    return wheel_of(source, tmp_path_factory.mktemp("wheel"))


@pytest.fixture
def site(wheel, tmp_path) -> Path:
    """A fresh folder with the plugin, installed from its wheel."""
    run("pip", "install", *OFFLINE, "--target", tmp_path / "site", wheel)
    return tmp_path / "site"


def checked(site: Path, status: int = 0) -> tuple[dict, list[str]]:
    """Return the row of the plugin, and what is wrong with it."""
    whole = json.loads(headrace(site, "plugins", "list", "--check", "--json", status=status))
    (row,) = [one for one in whole["plugins"] if one["distribution"] == NAME]
    return row, [one["reason"] for one in whole["findings"] if one["distribution"] == NAME]


def test_the_wheel_of_a_certified_plugin_says_so(site):
    row, reasons = checked(site)
    assert (row["state"], reasons) == ("ok", [])
    assert row["certificate"]["backends"] == ["GaussBlur"]
    assert row["certificate"]["python"] == ".".join(map(str, sys.version_info[:3]))
    today = datetime.now(timezone.utc).date()
    assert 0 <= (today - datetime.fromisoformat(row["certificate"]["date"]).date()).days <= 1
    assert "    certified by headrace-testing " in headrace(site, "plugins", "list")


def test_one_changed_byte_of_a_module_is_told(site):
    module = site / "headrace_gauss_blur" / "compute.py"
    code = bytearray(module.read_bytes())
    code[code.index(b".")] = ord("!")  # in its docstring
    module.write_bytes(code)
    changed = "headrace_gauss_blur/compute.py changed after it was certified"
    row, reasons = checked(site, status=1)
    assert (row["state"], row["certificate"], reasons) == ("modified", None, [changed])
    assert "certified by" not in headrace(site, "plugins", "list")


def test_another_major_version_of_a_library_is_told(site):
    file = site / "headrace_gauss_blur-0.1.0.dist-info" / "extra_metadata" / "certificate.json"
    certificate = json.loads(file.read_text(encoding="utf-8"))
    libraries = certificate["distributions"][NAME]["libraries"]
    have = libraries["numpy"]
    libraries["numpy"] = "1.26.4" if not have.startswith("1.") else "2.0"
    file.write_text(json.dumps(certificate), encoding="utf-8")
    reason = f"it was certified with numpy {libraries['numpy']}, installed is {have}"
    assert checked(site)[1] == [reason]


def test_without_the_file_the_wheel_is_built_all_the_same(source, tmp_path):
    plain = shutil.copytree(source, tmp_path / "plain")
    (plain / "certificate.json").unlink()
    (tmp_path / "out").mkdir()
    assert wheel_of(plain, tmp_path / "out").suffix == ".whl"


def test_the_file_is_written_where_the_source_is_known(site):
    """It is refused before anything is judged, so nothing is printed."""
    refused = headrace(site, "conformance", NAME, "--write", status=2)
    assert f"--write: {NAME} is not installed from its source folder" in refused
    two = headrace(site, "conformance", NAME, "Identity", "--write", status=2)
    assert f"--write: name one distribution, not headrace and {NAME}" in two
