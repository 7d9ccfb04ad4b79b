"""The tiers of tests: marks decide them, `./dev test all` goes on after a part that failed, and CONTRIBUTING says what they take."""

from __future__ import annotations

import os
import re
import shutil
import sys
from pathlib import Path

import check_gpu
import pytest
from distributions import tomllib
from processes import run_process

ROOT = Path(__file__).resolve().parents[1]
SETTINGS = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
LINES = SETTINGS["tool"]["pytest"]["ini_options"]["markers"]
MARKS = [name for name in (line.partition(":")[0] for line in LINES) if name != "first"]
"""Those of the tests that are not quick."""
DEV = (ROOT / "dev").read_text(encoding="utf-8")
PARTS = re.search(r"^PARTS=\((.*)\)$", DEV, re.MULTILINE)[1].split()


@pytest.fixture
def chosen(tmp_path):
    """Return a function that gives the tests of modules which ``-m`` chooses, with the ``conftest.py`` of the root."""
    names = ["first", *MARKS]
    settings = "[pytest]\nmarkers =\n" + "".join(f"    {mark}: one\n" for mark in names)
    (tmp_path / "pytest.ini").write_text(settings)
    shutil.copy(ROOT / "conftest.py", tmp_path)

    def choose(marks: str, **modules: str) -> list[str]:
        for name, text in modules.items():
            (tmp_path / f"test_{name}.py").write_text(f"import pytest\n{text}")
        collect = ["-q", "--collect-only", "-p", "no:cacheprovider", "-p", "no:xdist", "-m", marks]
        done = run_process([sys.executable, "-m", "pytest", *collect], cwd=tmp_path)
        assert done.returncode in (0, 5), done.stdout + done.stderr
        return re.findall(r"^test_\w+\.py::(\w+)$", done.stdout, re.MULTILINE)

    return choose


def test_the_quick_tests_are_those_without_a_mark(chosen):
    modules = {
        mark: f"@pytest.mark.{mark}\ndef test_{mark}(): pass\ndef test_plain(): pass\n"
        for mark in MARKS
    }
    assert chosen("not slow", **modules) == ["test_plain"] * len(MARKS)
    assert chosen("gpu or peers", **modules) == ["test_gpu", "test_peers"]


@pytest.mark.parametrize(
    "line",
    [
        "pytestmark = pytest.mark.{}",
        "pytestmark = [pytest.mark.{}, pytest.mark.usefixtures('x')]",
        "pytestmark = [\n    pytest.mark.usefixtures('x'),\n    pytest.mark.{},\n]",
    ],
)
def test_a_module_that_is_left_out_is_not_imported(chosen, line):
    fails = {mark: f"{line.format(mark)}\nraise RuntimeError('imported')\n" for mark in MARKS}
    assert chosen("not slow", **fails, other="def test_plain(): pass\n") == ["test_plain"]


def test_a_mark_that_is_no_tier_leaves_nothing_out(chosen):
    line = "pytestmark = pytest.mark.skipif(False, reason='not slow')\n"
    assert chosen("not slow", some=f"{line}def test_plain(): pass\n") == ["test_plain"]


def test_a_first_test_is_quick_as_well(chosen):
    text = "@pytest.mark.first('it matters')\ndef test_first(): pass\ndef test_plain(): pass\n"
    text += "@pytest.mark.first('it is long')\n@pytest.mark.slow\ndef test_slow(): pass\n"
    assert chosen("not slow", some=text) == ["test_first", "test_plain"]
    assert chosen("first and not slow") == ["test_first"]


def clone(folder, python):
    """Lay out what `./dev test` needs, with an environment of stand-ins, and return a function that runs it."""
    for name, lines in {
        "scripts/check": 'echo "checked $*"',
        ".venv/bin/uv": "true",
        ".venv/bin/python": f'case "$*" in {python} esac',
    }.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"#!/bin/sh\n{lines}\n")
        path.chmod(0o755)
    shutil.copytree(ROOT / "requirements", folder / "requirements")
    for name in ("core", "libs/one", "plugins/one", "examples/ocr"):
        (folder / name).mkdir(parents=True)
        (folder / name / "pyproject.toml").touch()
        (folder / name / "requirements.txt").touch()
    (folder / ".venv" / ".headrace-environment").write_text(str(folder / ".venv"))
    shutil.copy(ROOT / "dev", folder)
    names = ("HEADRACE_ENV", "PYTHON")
    environ = {name: value for name, value in os.environ.items() if name not in names}

    def run(*arguments: str):
        command = [folder / "dev", "test", *arguments]
        return run_process(command, env=environ)

    return run


@pytest.mark.parametrize(
    ("changes", "arguments", "checked"),
    [
        ("", [], "first"),
        ("a.py", [], ""),
        ("", ["-k", "close"], "-k close"),
        ("", ["quick"], "quick"),
    ],
)
def test_without_a_change_and_without_arguments_the_first_tests_run(
    tmp_path, changes, arguments, checked
):
    done = clone(tmp_path, f'*reach.py*) printf "%s" "{changes}" ;;')(*arguments)
    assert done.returncode == 0, done.stderr
    assert re.findall(r"^checked ?(.*)$", done.stdout, re.MULTILINE) == [checked]
    assert ("./dev test all" in done.stdout) == (checked == "first")


@pytest.mark.parametrize("status", [0, 2])
def test_pip_installs_what_uv_cannot_and_nothing_is_installed_twice(tmp_path, status):
    python = f'*uv_install*) exit {status} ;; *" install "*) echo "pip: $*" ;;'
    run = clone(tmp_path, python)
    done = run()
    assert done.returncode == 0, done.stderr
    by_pip = re.findall(r"^pip: .* install (.*)$", done.stdout, re.MULTILINE)
    files = ["-r requirements/first.txt", "--no-deps -r requirements/first-light.txt"]
    assert by_pip == (files if status else [])
    assert not (tmp_path / ".venv" / ".headrace-unfinished").exists()
    assert "installing" not in run().stderr


def all_parts(tmp_path, failing, *arguments):
    """Run `./dev test all` where each part only notes what it was called with; return its end, and the notes."""
    shutil.copy(ROOT / "dev", tmp_path / "all")
    (tmp_path / "dev").write_text(
        f'#!/bin/sh\necho "$*" >> notes\ncase "$2" in {failing}) exit 3 ;; esac\n'
    )
    (tmp_path / "dev").chmod(0o755)
    done = run_process(["bash", tmp_path / "all", "test", "all", *arguments])
    notes = tmp_path / "notes"
    return done, [line.split() for line in notes.read_text().splitlines()] if notes.exists() else []


def test_every_part_runs_and_those_that_failed_are_named_at_the_end(tmp_path):
    done, calls = all_parts(tmp_path, "peers | torch")
    assert [call[:2] for call in calls] == [["test", part] for part in PARTS]
    assert done.returncode == 1
    assert done.stdout.splitlines()[-1] == "== failed: peers torch"


def test_stress_goes_to_the_parts_that_have_such_tests(tmp_path):
    done, calls = all_parts(tmp_path, "nothing", "--stress")
    assert done.returncode == 0
    assert [call[1] for call in calls if "--stress" in call] == ["slow", "peers"]


def test_what_all_does_not_take_is_refused_before_anything_runs(tmp_path):
    done, calls = all_parts(tmp_path, "nothing", "--strss")
    assert (done.returncode, calls) == (2, [])
    assert "--stress or nothing" in done.stderr


def test_the_table_of_tiers_says_what_dev_says_and_names_every_part():
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    rows = dict(re.findall(r"^\| `\./dev test ?([\w ]*?)` \|.*\| (.*) \|$", text, re.MULTILINE))
    assert {*PARTS} <= {*rows}
    says = dict(re.findall(r"\b((?:FIRST|QUICK|ALL)_(?:MB|GB|MINUTES))=(\d+)", DEV))
    assert rows[""] == f"{says['FIRST_MB']} MB, {says['FIRST_MINUTES']} minutes"
    usage = re.search(r"^  test  .*?(?=^  test quick)", DEV, re.MULTILINE | re.DOTALL)[0]
    readme = (ROOT / "README.md").read_text(encoding="utf-8").replace("\n", " ")
    for text in (usage, readme[readme.index("`./dev test` checks") :]):
        assert f"{says['FIRST_MB']} MB" in text
        assert f"{says['FIRST_MINUTES']} minutes" in text
    assert rows["quick"] == f"{says['QUICK_MB']} MB, {says['QUICK_MINUTES']} minutes"
    assert rows["all"] == f"{says['ALL_GB']} GB, {says['ALL_MINUTES']} minutes"


def test_ci_begins_as_a_stranger_does_and_runs_all_tiers_and_no_stress():
    runs = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    assert re.findall(r"^\./dev test.*$", runs, re.MULTILINE) == [
        "./dev test || failed=1",
        "./dev test quick || failed=1",
        "./dev test all || failed=1",
    ]


@pytest.mark.parametrize(
    ("fails", "status", "counts"),
    [
        ("together", 1, "2 failed, 1 passed"),
        ("alone", 1, "2 passed, 1 failed"),
        ("neither", 0, "3 passed"),
    ],
)
def test_tests_that_need_the_whole_device_follow_the_parallel_ones(
    tmp_path, monkeypatch, capfd, fails, status, counts
):
    """Both runs are made, and what failed in either is named at the end."""
    module, order = tmp_path / "test_device.py", tmp_path / "order"
    module.write_text(
        f"""
import os
import pathlib
import pytest
pytestmark = pytest.mark.gpu

def note(name):
    with pathlib.Path({str(order)!r}).open("a") as file:
        print(name, os.environ.get("PYTEST_XDIST_WORKER"), file=file)
    assert name != {fails!r}

@pytest.mark.whole_device
def test_alone():
    note("alone")

@pytest.mark.parametrize("k", range(2))
def test_together(k):
    note("together")
"""
    )
    monkeypatch.setattr(check_gpu, "chosen", lambda: [str(module)])
    for name in ("PYTEST_ADDOPTS", "PYTEST_XDIST_WORKER"):
        monkeypatch.delenv(name, raising=False)
    assert check_gpu.main(["--parallel", "1", "-q"]) == status
    assert order.read_text().splitlines() == ["together gw0", "together gw0", "alone None"]
    lines = capfd.readouterr().out.splitlines()
    assert lines[-1].startswith(f"cuda:0: {counts} in ")
    named = [line for line in lines if line.startswith("FAILED ")]
    # Each run names its own as well.
    assert len(named) == {"together": 4, "alone": 2, "neither": 0}[fails]
    assert all(f"::test_{fails}" in line for line in named)


def test_all_plugins_are_judged_on_the_device_that_is_asked_for(tmp_path, monkeypatch):
    module, told = tmp_path / "test_device.py", tmp_path / "told"
    module.write_text(
        f"""
import pathlib
import pytest
from headrace_trt.conformance import TensorrtTensorConformance

@pytest.mark.gpu
def test_device(request):
    pathlib.Path({str(told)!r}).write_text(TensorrtTensorConformance.options["device"])
"""
    )
    monkeypatch.setattr(check_gpu, "chosen", lambda: [str(module)])
    monkeypatch.delenv("PYTEST_ADDOPTS", raising=False)
    monkeypatch.delenv("HEADRACE_TORCH_DEVICE", raising=False)
    for arguments, device in (([], "cuda:0"), (["--device", "cuda:1"], "cuda:1")):
        assert check_gpu.main([*arguments, "-q"]) == 0
        assert told.read_text() == device
