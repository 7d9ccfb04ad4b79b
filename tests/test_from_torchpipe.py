"""The page for users of torchpipe: its file has the problems that are listed, its tables name what there is."""

from __future__ import annotations

import re
import subprocess
import sys
import venv
from pathlib import Path

import pytest

import headrace
from headrace._config.sections import NodeKeys
from headrace._registry.discovery import CORE_BACKENDS, KNOWN_ELSEWHERE
from headrace.errors import ConfigError

PAGE = Path(__file__).resolve().parents[1] / "docs" / "from_torchpipe.md"
TEXT = PAGE.read_text(encoding="utf-8")
BEFORE, AFTER = re.findall(r"```toml\n(.*?)```", TEXT, re.DOTALL)
NAME = re.compile(r"[A-Z]\w+")


def rows(heading: str) -> list[list[str]]:
    """Return the cells of the first table below a heading, without its head."""
    lines = TEXT.partition(f"## {heading}\n")[2].partition("\n## ")[0].splitlines()
    table = [line for line in lines if line.startswith("|")]
    return [[cell.strip() for cell in line.split("|")[1:-1]] for line in table[2:]]


@pytest.fixture
def load(tmp_path):
    (tmp_path / "resnet50.onnx").touch()

    def load(text):
        (tmp_path / "a.toml").write_text(text, encoding="utf-8")
        return headrace.PipelineConfig.load(tmp_path / "a.toml")

    return load


def test_a_file_of_torchpipe_has_the_problems_that_the_page_lists(load):
    pytest.importorskip("headrace_trt")
    with pytest.raises(ConfigError) as caught:
        load(BEFORE)
    found = {f"{one.path}: {one.message}": one.suggestion for one in caught.value.problems}
    listed = {said.strip("`"): write for said, write in rows("A file, before and after")}
    assert len(found) == len(listed)
    for said, write in listed.items():
        (suggestion,) = [near for whole, near in found.items() if whole.startswith(said)]
        assert ("as it says" in write) == (suggestion is not None)
        assert suggestion is None or f"{suggestion}`" in write


def test_the_file_that_it_becomes_is_accepted(load):
    pytest.importorskip("headrace_trt")
    assert load(AFTER).nodes == ("decode", "classify")


def test_the_names_that_the_page_gives_in_place_of_others_are_there():
    onnx2tensorrt = pytest.importorskip("headrace_trt.onnx2tensorrt").Onnx2Tensorrt
    letterbox = pytest.importorskip("headrace_cv.letterbox").LetterBoxMat
    words = {*CORE_BACKENDS, *KNOWN_ELSEWHERE}
    given = [cell for row in rows("Backends") for cell in NAME.findall(row[1])]
    kept = NAME.findall(TEXT.partition("## Backends\n")[2].partition("are here")[0])
    assert len(given) > 20
    assert len(kept) > 15
    assert {*given, *kept} - words == set()
    keys = {*NodeKeys.model_fields, *onnx2tensorrt.Options.model_fields}
    named = {key for row in rows("Keys of a node") for key in re.findall(r"`(\w+)`", row[1])}
    assert len(named) >= 8
    assert named - {*keys, *letterbox.Options.model_fields} == set()


def test_names_of_torchpipe_that_the_page_replaces_mean_nothing_here():
    words = {*CORE_BACKENDS, *KNOWN_ELSEWHERE}
    replaced = {cell for row in rows("Backends") for cell in re.findall(r"`([A-Z]\w*)`", row[0])}
    assert len(replaced) > 30
    assert replaced & words == {"Benchmark"}


PROGRAMS = {
    re.match(r"# (\S+)\n", block)[1]: block
    for block in re.findall(r"```python\n(# with_.*?)```", TEXT, re.DOTALL)
}
PRINTED = "[10.0, 3.0, 26.75]"
"""Worked out by hand: each row less its mean, by (0, 2, 4, 6)."""


def last_line(python: Path | str, program: str, folder: Path) -> str:
    (folder / program).write_text(PROGRAMS[program], encoding="utf-8")
    done = subprocess.run(
        [python, program], cwd=folder, capture_output=True, text=True, check=False, timeout=600
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip().splitlines()[-1]


def test_our_program_prints_what_the_page_says(tmp_path):
    assert f"Both print `{PRINTED}`" in TEXT
    assert last_line(sys.executable, "with_headrace.py", tmp_path) == PRINTED


@pytest.mark.peers
def test_their_program_prints_the_same(tmp_path, pytestconfig):
    version = re.search(r"omniback \((\d[\d.]*\d)", TEXT)[1]
    name = f"omniback-{sys.version_info[1]}"
    home = pytestconfig.rootpath / ".pytest_cache" / "environments" / name
    if not (home / "complete").exists():
        venv.create(home, with_pip=True, clear=True)
        install = [home / "bin" / "python", "-m", "pip", "install", "-q", "--retries", "3"]
        done = subprocess.run(
            [*install, f"omniback=={version}"], capture_output=True, text=True, check=False
        )
        if done.returncode:
            said = done.stderr.strip().splitlines()[-1]
            pytest.skip(f"omniback cannot be installed here: {said}")
        (home / "complete").touch()
    assert last_line(home / "bin" / "python", "with_omniback.py", tmp_path) == PRINTED
