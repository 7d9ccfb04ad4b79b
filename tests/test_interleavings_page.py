"""The page about interleavings: its files fail as it says, and pass once mended."""

from __future__ import annotations

import re

import pytest
from pages import Page, run, shell

from headrace_testing.interleavings import unsupported

PAGE = Page("docs/interleavings.md")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(bool(unsupported()), reason=unsupported()),
]


def test_the_fault_is_found_as_printed_and_the_mended_backend_passes(tmp_path):
    folder = PAGE.write(tmp_path / "work")
    for command in PAGE.commands:
        done = shell(command, folder)
        told = done.stdout + done.stderr
        assert done.returncode == 1, told
        lines = [re.sub(r"^E? *", "", line) for line in told.splitlines()]
        # Which schedule fails first is another one after any change.
        varies = re.compile(r"seed|\.\.\.$|T\d")
        wanted = [
            line.strip() for line in PAGE.block("text").splitlines() if not varies.search(line)
        ]
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
    for command in PAGE.commands:
        run(command, folder)
