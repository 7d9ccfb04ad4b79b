"""Backends that are judged in a process of their own: whatever ends it is a verdict about one of them."""

from __future__ import annotations

import faulthandler
import os
import signal
import sys
from pathlib import Path

import pytest

import headrace
from headrace_testing import BackendConformance
from headrace_testing.conformance import certify_apart, rules
from headrace_testing.conformance.own_process import _Judged

pytestmark = pytest.mark.skipif(
    not hasattr(os, "fork") or sys.platform == "darwin", reason="judged in this process there"
)


def kit(name, forward, **attributes):
    """Return the conformance class of a backend that has nothing but a ``forward``."""
    headrace.register(name, type(name, (headrace.Backend,), {"forward": forward}), replace=True)
    items = {"make_item": lambda self, k: {"data": k}}
    return type(f"Kit{name}", (BackendConformance,), {"expression": name, **items, **attributes})


def crashes(self, batch):
    faulthandler.disable()  # its stacks would look like those of a crash of the tests
    os.kill(os.getpid(), signal.SIGSEGV)


def leaves(self, batch):
    os._exit(3)


def answers(self, batch):
    os.chdir("/")
    for request in batch:
        request["result"] = 1


def test_what_ends_the_process_fails_the_rule_that_was_judged_and_the_next_are_judged_all_the_same():
    here = Path.cwd()
    jobs = [
        kit("Crashes", crashes),
        kit("Leaves", leaves),
        kit("Refused", answers, expected_failures={"runs": ""}),
        kit("Answers", answers),
    ]
    crashed, left, refused, whole = certify_apart([(cls, None) for cls in jobs])
    for found, how in ((crashed, "crashed (SIGSEGV)"), (left, "ended with status 3")):
        assert list(rules()) == [verdict.id for verdict in found.rules]
        verdicts = {verdict.id: verdict for verdict in found.rules}
        assert verdicts["resolves"].outcome == "passed"
        assert verdicts["outcomes"].outcome == "failed"
        assert f"the process {how}: no backend may end its process" in verdicts["outcomes"].detail
        assert verdicts["runs"].detail == "the process ended at 'outcomes'"
        assert not found.certified
    assert isinstance(refused, ValueError)
    assert {v.id: v.outcome for v in whole.rules}["runs"] == "passed"
    assert Path.cwd() == here


def test_a_timer_of_faulthandler_does_not_hold_the_judging_process():
    faulthandler.dump_traceback_later(3600.0)  # as pytest's faulthandler_timeout
    (judged,) = certify_apart([(kit("Answers", answers), None)])
    assert {verdict.id: verdict.outcome for verdict in judged.rules}["runs"] == "passed"


def test_who_goes_away_meanwhile_ends_the_process(monkeypatch):
    forked, fork = [], os.fork
    monkeypatch.setattr(os, "fork", lambda: forked.append(fork()) or forked[-1])
    judged = certify_apart(
        [(kit("AnswersFirst", answers), None), (kit("AnswersLater", answers), None)]
    )
    assert next(judged).backend == "AnswersFirst"
    judged.close()
    with pytest.raises(ChildProcessError):
        os.waitpid(forked[0], os.WNOHANG)


def test_what_nothing_could_interrupt_is_told_as_such():
    judged = _Judged()
    judged.hear("begun", next(certify_apart([(kit("AnswersAlone", answers), None)])))
    judged.hear("rule", "runs")
    verdicts = {verdict.id: verdict.detail for verdict in judged.ended(1).rules}
    assert verdicts["runs"].startswith("it did not end within 0 s, and nothing could interrupt it")
