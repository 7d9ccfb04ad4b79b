"""What several files of tests of servers say."""

from __future__ import annotations

import threading

from typer.testing import CliRunner

from headrace_cli.app import app


def until(condition):
    """Wait until it is so."""
    poll = threading.Event()
    while not condition():
        poll.wait(0.002)


def refused(*args):
    """Run ``headrace`` in this process with arguments that it refuses before it serves. Return what it says."""
    done = CliRunner().invoke(app, list(args))
    assert (done.exit_code, done.stdout) == (2, ""), done.output
    assert "serving http" not in done.stderr
    return done.stderr
