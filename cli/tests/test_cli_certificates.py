"""Certificates in the metadata of installed plugins: who certified a plugin, and whether that holds here."""

from __future__ import annotations

import hashlib
import json

import pytest
from typer.testing import CliRunner

import headrace
from headrace_cli.app import app

CODE = """
import headrace

class Echo(headrace.Backend):
    def forward(self, batch):
        pass

class Twice(Echo):
    pass
"""
PATH = "hrt_space/echo/backend.py"  # `hrt_space` is a namespace, which other distributions share
FILES = {PATH: CODE, "hrt_space/echo/__init__.py": "", "hrt_space/echo/inner/more.py": "x = 1\n"}


def said(*arguments):
    headrace.plugins.refresh()
    return CliRunner().invoke(app, ["plugins", *arguments], prog_name="headrace")


@pytest.fixture
def echo(site, monkeypatch):
    """A plugin with two backends and the library `hrt-library` 2.5; its certificate."""
    points = "[headrace.backends]\nEcho = hrt_space.echo.backend:Echo\nTwice = hrt_space.echo.backend:Twice\n"
    site.add("headrace-echo", points, requires=("headrace>=0.1", "hrt-library>=1"))
    site.add("hrt-library", version="2.5")
    for path, code in {**FILES, "hrt_space/other.py": "of another distribution"}.items():
        (site.folder / path).parent.mkdir(parents=True, exist_ok=True)
        (site.folder / path).write_text(code)
    monkeypatch.setenv("HEADRACE_PLUGINS", "echo")
    return {
        "headrace": "0.1.0",
        "kit": "0.1.3",
        "python": "3.12.1",
        "platform": "Linux riscv64",
        "date": "2031-02-03",
        "distributions": {
            "headrace-echo": {
                "modules": {
                    path: hashlib.sha256(code.encode()).hexdigest() for path, code in FILES.items()
                },
                "libraries": {"hrt-library": "2.0", "hrt-gone": "1.0"},
            }
        },
        "certificates": [
            {"backend": "Echo", "certified": True},
            {"backend": "Twice", "certified": True},
        ],
    }


def carry(site, certificate):
    folder = site.folder / "headrace_echo-1.0.dist-info" / "extra_metadata"
    folder.mkdir(exist_ok=True)
    text = certificate if isinstance(certificate, str) else json.dumps(certificate)
    (folder / "certificate.json").write_text(text)


def about_echo():
    """Return the row of the plugin and the findings about it."""
    done = said("list", "--check", "--json")
    whole = json.loads(done.stdout)
    (row,) = [one for one in whole["plugins"] if one["plugin"] == "echo"]
    rows = json.loads(said("--json").stdout)["plugins"]
    (listed,) = [other for other in rows if other["plugin"] == "echo"]
    assert listed == row
    found = [one for one in whole["findings"] if one["plugin"] == "echo"]
    kinds = [one["kind"] for one in found]
    assert kinds in ([], ["modified"], ["outdated_certificate"])
    # What another one installs beside a plugin is no fault of the plugin; another module is not the plugin.
    assert done.exit_code == (kinds == ["modified"])
    assert whole["ok"] is (done.exit_code == 0)
    assert row["state"] == (kinds[0] if found else "ok")
    return row, [one["reason"] for one in found]


def test_without_one_nothing_is_said(echo):
    row, reasons = about_echo()
    assert (row["certificate"], reasons) == (None, [])
    assert "certified" not in said().stdout


def test_list_says_who_certified_a_plugin(echo, site):
    carry(site, echo)
    row, reasons = about_echo()
    ran = {key: echo[key] for key in ("kit", "headrace", "python", "platform", "date")}
    assert (row["certificate"], reasons) == ({**ran, "backends": ["Echo", "Twice"]}, [])
    words = "certified by headrace-testing 0.1.3 on 2031-02-03 (Python 3.12.1, Linux riscv64)"
    assert f"\n    {words}\n" in said().stdout


def test_list_says_how_many_backends_were_certified(echo, site):
    echo["certificates"][0]["certified"] = False
    carry(site, echo)
    row, _ = about_echo()
    assert row["certificate"]["backends"] == ["Twice"]
    assert "    1 of 2 backends certified by headrace-testing" in said().stdout


@pytest.mark.parametrize("change", ["other", "gone", "new"])
def test_it_does_not_hold_once_a_module_changed(echo, site, change):
    carry(site, echo)
    path = "hrt_space/echo/inner/" + ("added.py" if change == "new" else "more.py")
    if change == "gone":
        (site.folder / path).unlink()
    else:
        (site.folder / path).write_text("x = 2\n")
    row, reasons = about_echo()
    assert reasons == [f"{path} changed after it was certified"]
    assert (row["state"], row["certificate"]) == ("modified", None)
    assert row["remedy"] == "Install it again: pip install --force-reinstall headrace-echo"
    assert "certified by" not in said().stdout


def test_whoever_develops_a_plugin_may_change_it(echo, site):
    carry(site, echo)
    (site.folder / PATH).write_text("import headrace\n" + CODE)
    origin = '{"url": "file:///echo", "dir_info": {"editable": true}}'
    (site.folder / "headrace_echo-1.0.dist-info" / "direct_url.json").write_text(origin)
    row, reasons = about_echo()
    assert (row["state"], len(reasons)) == ("outdated_certificate", 1)
    assert row["remedy"] == "Certify it as it is here: headrace conformance headrace-echo"


def test_of_many_changed_modules_it_names_the_first(echo, site):
    carry(site, echo)
    for path in FILES:
        (site.folder / path).write_text("import headrace\n" + FILES[path])
    first = "hrt_space/echo/__init__.py"
    assert about_echo()[1] == [f"{first} and 2 more modules changed after it was certified"]


@pytest.mark.parametrize(("was", "holds"), [("2.0", True), ("2.9rc1", True), ("1.9", False)])
def test_it_holds_with_the_same_major_version_of_a_library(echo, site, was, holds):
    echo["distributions"]["headrace-echo"]["libraries"]["hrt-library"] = was
    carry(site, echo)
    reason = f"it was certified with hrt-library {was}, installed is 2.5"
    row, reasons = about_echo()
    assert (row["state"], reasons) == (("ok", []) if holds else ("outdated_certificate", [reason]))


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"distributions": {"headrace-echo": 1}}'])
def test_an_unreadable_one_is_told_and_stops_nothing(echo, site, text):
    carry(site, text)
    row, (reason,) = about_echo()
    assert (row["state"], row["certificate"]) == ("outdated_certificate", None)
    assert reason.startswith("its certificate cannot be read: ")
    assert "headrace-echo" in said().stdout
