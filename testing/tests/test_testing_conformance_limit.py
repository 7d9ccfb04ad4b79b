"""The limit of time: a rule whose backend never ends is broken, and the rules after it are judged."""

from __future__ import annotations

import math
import os
import re
import sys
import threading
from pathlib import Path

import pytest
from processes import run_process

import headrace
from headrace.errors import InputError
from headrace_testing import BackendConformance
from headrace_testing.conformance import ConformanceRun, rules


class TestALimitOfTime:
    def judged(self, name, forward, monkeypatch):
        """Judge the rule `outcomes` with a `forward`; the rules before it have no limit."""
        cls = type(name, (headrace.Backend,), {"forward": forward})
        headrace.register(name, cls, replace=True)
        kit = {"expression": name, "make_item": lambda self, k: {"data": k}, "limit_s": math.inf}
        with ConformanceRun(type("Kit", (BackendConformance,), kit)) as run:
            run.exits = None
            for identifier in rules()["outcomes"].needs:
                assert run.verdict(identifier).outcome == "passed"
            monkeypatch.setattr(run.subject.kit, "limit_s", 0.2)
            return run.verdict("outcomes")

    def waits(self, batch):
        threading.Event().wait()

    def swallows(self, batch):
        try:
            threading.Event().wait()
        except BaseException:
            return [InputError("interrupted") for _ in batch]

    def computes(self, batch):
        while True:
            pass

    @pytest.mark.parametrize("name", ["waits", "swallows", "computes"])
    def test_breaks_the_rule_that_does_not_end(self, name, monkeypatch):
        found = self.judged(name.title(), getattr(TestALimitOfTime, name), monkeypatch)
        assert found.outcome == "failed"
        assert re.match(
            rf"it did not end within 0\.2 s: it is in {name}, .*limit\.py:\d+", found.detail
        )

    def test_ends_the_process_where_no_python_runs_any_more(self):
        program = (
            "import ctypes; from headrace_testing.conformance import limit; limit._GRACE_S = 0.1\n"
            "def forward():\n"
            "    ctypes.PyDLL(None).pause()\n"
            "with limit.Limit(0.1, '', 2)(): forward()\n"
        )
        ended = run_process([sys.executable, "-c", program], timeout=120)
        assert (ended.returncode, ended.stdout) == (1, "")
        assert "in forward" in ended.stderr


def test_what_the_backend_has_changed_for_its_host_is_put_back(tmp_path, monkeypatch):
    class Elsewhere(headrace.Backend):
        def init(self, options, context):
            os.chdir("/")
            sys.stdout = sys.stderr

        def forward(self, batch):
            for request in batch:
                request["result"] = 1

    headrace.register("Elsewhere", Elsewhere, replace=True)
    monkeypatch.chdir(tmp_path)
    printed = sys.stdout
    kit = {"expression": "Elsewhere", "make_item": lambda self, k: {"data": k}}
    with ConformanceRun(type("Kit", (BackendConformance,), kit)) as run:
        assert run.verdict("runs").outcome == "passed"
    assert (Path.cwd(), sys.stdout) == (tmp_path, printed)
