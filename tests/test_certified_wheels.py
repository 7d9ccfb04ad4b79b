"""The wheels of this repository's plugins carry a certificate of the modules that are in them, or none."""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import certify
import distributions
import pytest
import wheels as script

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="module")
def certified(tmp_path_factory) -> Path:
    """A copy of a plugin's folder with its certificate, as ``./dev build`` writes it."""
    folder = tmp_path_factory.mktemp("certified") / "ort"
    shutil.copytree(ROOT / "plugins" / "ort", folder)
    (folder / ".gitignore").write_text("certificate.json\n")
    assert certify.certify(folder) is True
    return folder


@pytest.fixture
def ort(certified, tmp_path) -> Path:
    return shutil.copytree(certified, tmp_path / "ort")


def carried(wheel: Path) -> dict | None:
    """Return the certificate in a wheel."""
    with zipfile.ZipFile(wheel) as archive:
        found = [one for one in archive.namelist() if one.endswith("/certificate.json")]
        assert all(one.split("/")[0].endswith(".dist-info") for one in found)
        return json.loads(archive.read(found[0])) if found else None


def built(folder: Path, monkeypatch) -> dict | None:
    """Return the certificate in the wheel that ``./dev wheels`` builds of a folder."""
    monkeypatch.setattr(script, "folders", lambda: [folder])
    (wheel,) = script.build(folder.parent / "dist")
    return carried(wheel)


def test_a_release_carries_the_certificate_from_its_sdist_into_its_wheel(ort, tmp_path):
    build = [sys.executable, "-m", "build", "--no-isolation", "-o", tmp_path / "out", ort]
    subprocess.run(build, capture_output=True, check=True)
    (wheel,) = (tmp_path / "out").glob("*.whl")
    told = carried(wheel)
    assert [(one["backend"], one["certified"]) for one in told["certificates"]] == [
        ("OnnxTensor", True)
    ]
    with zipfile.ZipFile(wheel) as archive:
        modules = {
            name: hashlib.sha256(archive.read(name)).hexdigest()
            for name in archive.namelist()
            if name.endswith(".py")
        }
    assert told["distributions"]["headrace-ort"]["modules"] == modules
    assert told["certificates"][0]["options"] == {"model": "headrace_ort/conformance.onnx"}
    assert str(ROOT) not in json.dumps(told)


def test_dev_wheels_takes_a_certificate_of_the_same_modules(ort, monkeypatch):
    assert built(ort, monkeypatch)["certified"] is True


@pytest.mark.parametrize("change", ["module", "certificate"])
def test_dev_wheels_leaves_out_a_certificate_that_does_not_hold(ort, monkeypatch, change):
    changed = ort / ("certificate.json" if change == "certificate" else "src/headrace_ort/tools.py")
    assert (change == "certificate") is changed.exists()
    changed.write_text("{" if change == "certificate" else "x = 1\n")
    assert built(ort, monkeypatch) is None


@pytest.mark.parametrize(
    "outcome", ["failed", "blocked", "unexpected_pass", "not_judged", "passed"]
)
def test_a_missing_device_stops_no_release_and_a_broken_rule_does(outcome):
    rules = [{"outcome": "not_judged"}, {"outcome": outcome}]
    told = {"certified": False, "unavailable": "no CUDA device", "rules": rules}
    assert certify.is_good(told) is (outcome in ("not_judged", "passed"))
    assert certify.is_good({**told, "unavailable": None}) is False


def test_every_distribution_with_conformance_classes_of_its_own_is_built_with_its_certificate():
    own = {}
    for folder in distributions.folders():
        points = distributions.project(folder).get("entry-points", {})
        if {"headrace.backends", "headrace.conformance"} <= {*points}:
            text = (folder / "pyproject.toml").read_text(encoding="utf-8")
            own[folder.name] = (
                '\n"certificate.json" = "certificate.json"\n' in text,
                '\nartifacts = ["/certificate.json"]\n' in text,
            )
    assert len(own) >= 10
    assert set(own.values()) == {(True, True)}
