"""What the tests do with configurations and with programs."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

import headrace


def python(*args, path=None, **how):
    """Run another interpreter, which finds modules in ``path`` first; return how it ended and what it printed."""
    how["env"] = {**os.environ, "PYTHONPATH": path} if path else None
    command = [sys.executable, *map(str, args)]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=300, **how)


def problems(source, **arguments):
    """Return the problems of a configuration that is refused."""
    with pytest.raises(headrace.errors.ConfigError) as caught:
        headrace.PipelineConfig.load(source, **arguments)
    return caught.value.problems
