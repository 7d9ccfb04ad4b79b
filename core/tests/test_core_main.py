"""``python -m headrace``, with and without the distribution that brings the command."""

from __future__ import annotations

import subprocess
import sys

import pytest

WITHOUT = "import sys; sys.modules['headrace_cli'] = None; import headrace.__main__ as m; m.main()"


def test_without_the_command_line_it_says_what_to_install():
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        "headrace: the command line is a distribution of its own, which is not installed. "
        'Install it: pip install "headrace[cli]", or in a clone of Headrace: pip install ./cli\n'
    )


def test_with_it_the_command_runs():
    pytest.importorskip("headrace_cli")
    done = subprocess.run(
        [sys.executable, "-m", "headrace", "--version"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0
    assert done.stdout.startswith("headrace ")


def test_python_that_drops_docstrings_runs_a_pipeline():
    code = (
        "import headrace; print(headrace.pipe({'backend': 'S[Identity]'})({'data': 1})['result'])"
    )
    done = subprocess.run(
        [sys.executable, "-OO", "-c", code], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "1\n", "")
