"""What many modules of tests do with configurations: write them, load them, and look at what is wrong with them."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

import headrace
from headrace.words import Bracket, run_child, select

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


class Divides(headrace.Backend):
    """Gives the items with a key to its first child and the others to its last."""

    class Options(headrace.Options):
        positional = ("key",)
        key: str

    takes = (1, 2)
    bracket = Bracket(divides=True)
    reads = ()

    def init(self, options, context):
        self.key, self.children = options.key, context.children

    def forward(self, batch):
        outcomes, places = [None] * len(batch), range(len(batch))
        chosen = select(batch, places, lambda request: self.key in request, outcomes)
        run_child(self.children[0], batch, chosen, outcomes, pad=False)
        others = [i for i in places if i not in chosen]
        run_child(self.children[-1], batch, others, outcomes, pad=False)
        return outcomes
