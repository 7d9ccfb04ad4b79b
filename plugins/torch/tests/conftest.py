"""An instance in which backends are started and run, as a pipeline does, and pictures for them."""

from __future__ import annotations

import contextlib
import importlib.util
import io
import os
import runpy
import sys
import warnings
from pathlib import Path

import pytest

import headrace

WITHOUT_TORCH = ["test_torch_light.py"]
"""What runs where torch is not installed; everything else is not even collected there."""

if importlib.util.find_spec("torch") is None:
    collect_ignore_glob = ["test_torch_[!l]*.py"]


class Bench:
    """One instance: backends started in it share its place, and its batches end."""

    def __init__(self, *, most=None, **context):
        self.ends = []
        batch = headrace.InitContext.Batch(max=most, at_end=self.ends.append)
        self.instance = headrace.InitContext().store.instance
        self.context = {"threads": 1, "batch": batch, **context}
        self.started = []

    def start(self, cls, *children, **options):
        backend = cls()
        store = headrace.InitContext.Stores(instance=self.instance)
        context = headrace.InitContext(store=store, children=children, **self.context)
        backend._start(cls.Options(**options), context)
        backend._warm()
        self.started.append(backend)
        return backend

    def outcomes(self, backend, *requests):
        found = backend(list(requests))
        for end in self.ends:
            end()
        return [None] * len(requests) if found is None else found

    def run(self, backend, *requests):
        """Run requests that are right, and give their results."""
        for outcome in self.outcomes(backend, *requests):
            if outcome is not None:
                raise outcome
        return [request["result"] for request in requests]

    def error(self, backend, request):
        (found,) = self.outcomes(backend, request)
        assert found is not None, "it is accepted"
        return found

    def close(self):
        for backend in reversed(self.started):
            backend._stop()
        self.instance.close()


@pytest.fixture
def bench():
    """Make benches that are closed at the end; called without arguments it computes on the CPU."""
    made = []

    def make(**context):
        made.append(Bench(**{"device": "cpu", **context}))
        return made[-1]

    yield make
    for one in made:
        one.close()


def run_here(script, *arguments, cwd, code=None):
    """Run a script, or a module by its name, as a program in this process; give what it prints.

    A process of its own would import torch, and torch.export, once more: half of a minute for all
    that are run so. Numbers of threads and the seed are put back.

    Args:
        script: A path relative to ``cwd``, or ``package.module``; the name of ``code``, if given.
        arguments: Its arguments.
        cwd: The working directory meanwhile; it, or the folder of the script, leads ``sys.path``.
        code: Source that is run in place of a script.
    """
    import cv2
    import torch

    before = Path.cwd(), sys.argv, list(sys.path), torch.get_num_threads(), cv2.getNumThreads()
    sys.argv = [script, *arguments]
    printed = io.StringIO()
    with (
        torch.random.fork_rng(devices=[]),
        warnings.catch_warnings(),
        contextlib.redirect_stdout(printed),
    ):
        warnings.simplefilter("ignore")  # pytest makes errors of them, a program does not
        try:
            os.chdir(cwd)
            sys.path.insert(0, str(Path(cwd, script).parent if script.endswith(".py") else cwd))
            if code is not None:
                exec(compile(code, script, "exec"), {"__name__": "__main__"})
            elif script.endswith(".py"):
                runpy.run_path(script, run_name="__main__")
            else:
                runpy.run_module(script, run_name="__main__", alter_sys=True)
        finally:
            os.chdir(before[0])
            sys.argv, sys.path[:] = before[1:3]
            torch.set_num_threads(before[3])
            cv2.setNumThreads(before[4])
    return printed.getvalue()


@pytest.fixture(name="run_here", scope="session")
def run_here_fixture():
    return run_here
