"""How much there is of core, and how much of it runs. A bound moves only in a commit that says why."""

from __future__ import annotations

import sys
import threading
from contextlib import ExitStack

import pytest
from counts import halves, lines_below
from distributions import ROOT, folders

import headrace
from headrace.hookspecs import attached

LINES = {"core": 13_610, "kernel": 6_935, "language": 6_675}
"""The most lines of code of core, and of its halves."""

TESTS_OF_CORE = 22_430
SOURCES = 89_575


def test_core_is_no_larger():
    lines = halves()
    lines["core"] = sum(lines.values())
    assert {name: lines[name] for name in LINES if lines[name] > LINES[name]} == {}


def test_its_tests_are_no_larger():
    assert lines_below(ROOT / "core" / "tests") <= TESTS_OF_CORE


def test_all_sources_are_no_larger():
    assert sum(lines_below(folder / "src") for folder in folders()) <= SOURCES


class Copy(headrace.Backend):
    """Give the data back."""

    def forward(self, batch):
        """Write data into result."""
        for request in batch:
            request["result"] = request["data"]


def calls_of(function):
    """Count the functions of Python that run until ``function`` has ended, in all threads."""
    counted = []

    def note(_frame, event, _):
        if event == "call":
            counted.append(None)

    threading.setprofile(note)
    sys.setprofile(note)
    try:
        function()
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    return len(counted) - 2  # `function` itself, and what it calls


def in_a_thread(function):
    """Call a function in a thread: the main thread hands its steps to another one."""
    found = []
    thread = threading.Thread(target=lambda: found.append(function()))
    thread.start()
    thread.join()
    return found[0]


CALLS = {
    "idle": (lambda pipe: pipe({"data": 1}), 4),  # with the backend's own `forward`
    "timeout": (lambda pipe: pipe({"data": 1}, timeout=5), 50),
    "submit": (lambda pipe: pipe.submit({"data": 1}).result(), 50),
}


class Failures:
    """A probe of failures alone."""

    def request_failed(self, node, request, error):
        """Hear of none."""


@pytest.mark.parametrize("probe", [None, Failures()])
@pytest.mark.parametrize("way", CALLS)
def test_a_call_runs_few_functions(way, probe):
    call, most = CALLS[way]
    headrace.register("Copy", Copy, replace=True)
    with headrace.pipe({"backend": "Copy"}) as pipe, ExitStack() as stack:
        if probe is not None:
            stack.enter_context(attached(pipe, probe))
        call(pipe)  # what is made once
        counts = [in_a_thread(lambda: calls_of(lambda: call(pipe))) for _ in range(5)]
    assert min(counts) <= most, counts


def test_a_file_of_two_nodes_is_loaded_by_few_functions(tmp_path):
    headrace.register("Copy", Copy, replace=True)
    file = tmp_path / "two.toml"
    file.write_text(
        '[a]\nbackend = "Copy"\nmax = 4\nnext = "b"\n[b]\nbackend = "S[Copy,Identity]"\n'
    )
    headrace.PipelineConfig.load(file)
    assert calls_of(lambda: headrace.PipelineConfig.load(file)) <= 1_500
