"""The page about interleavings: its files fail as it says, and pass once mended."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from headrace_testing.interleavings import unsupported

PAGE = Path(__file__).resolve().parents[1] / "docs" / "interleavings.md"

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(bool(unsupported()), reason=unsupported()),
]


def blocks(language):
    return re.findall(rf"```{language}\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)


@pytest.fixture
def folder(tmp_path):
    """Return the folder ``work`` with the files of the page."""
    made = tmp_path / "work"
    made.mkdir()
    for text in blocks("python"):
        (made / re.match(r"# (\S+)\n", text)[1]).write_text(text, encoding="utf-8")
    return made


def run(command, folder):
    """Run a command of the page; return its status and what it printed."""
    words = command.removeprefix("$ ").split()
    words = [sys.executable, *(words[1:] if words[0] == "python" else ["-m", *words])]
    done = subprocess.run(words, cwd=folder, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout + done.stderr


def test_the_fault_is_found_as_printed_and_the_mended_backend_passes(folder):
    commands = [line for block in blocks("console") for line in block.splitlines()]
    (printed,) = blocks("text")
    for command in commands:
        status, told = run(command, folder)
        assert status == 1, told
        lines = [re.sub(r"^E? *", "", line) for line in told.splitlines()]
        # Which schedule fails first is another one after any change.
        varies = re.compile(r"seed|\.\.\.$|T\d")
        wanted = [line.strip() for line in printed.splitlines() if not varies.search(line)]
        assert [line for line in wanted if line not in lines] == []
        assert "broken promise, seed" in told
    backend = folder / "numbers_backend.py"
    text = backend.read_text(encoding="utf-8")
    body = re.search(r"        number = .*?return number\n", text, re.DOTALL)[0]
    locked = "        with lock:\n" + re.sub("^", "    ", body, flags=re.MULTILINE).rstrip() + "\n"
    mended = text.replace(body, locked).replace(
        "import headrace\n", "import threading\n\nimport headrace\n\nlock = threading.Lock()\n"
    )
    backend.write_text(mended, encoding="utf-8")
    for command in commands:
        status, told = run(command, folder)
        assert status == 0, told
