"""What many modules of tests do with configurations: write them, load them, and look at what is wrong with them."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

import headrace

load = headrace.PipelineConfig.load


def write(path, content):
    """Write a text or bytes into a file, whose folder is made; give its path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def python(*args, path=None, **how):
    """Run another interpreter, which finds modules in ``path`` first; give how it ended and what it printed."""
    how["env"] = {**os.environ, "PYTHONPATH": path} if path else None
    command = [sys.executable, *map(str, args)]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=300, **how)


def refused(call, *args, **more):
    """Return the ConfigError that a call raises."""
    with pytest.raises(headrace.errors.ConfigError) as caught:
        call(*args, **more)
    return caught.value


def problems(source, **arguments):
    """Return the problems of a configuration that is refused."""
    return refused(headrace.PipelineConfig.load, source, **arguments).problems


def problem(source, **arguments):
    """Return the only problem of a configuration that is refused."""
    (only,) = problems(source, **arguments)
    return only
