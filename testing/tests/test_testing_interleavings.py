"""Interleavings: faults of threads are found, shown and run again; what is right passes."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from processes import run_process

import headrace_testing.interleavings
from headrace_testing.interleavings import InterleavingError, check, explore, settle, unsupported

FILE = Path(__file__).with_name("interleaved.py")

pytestmark = pytest.mark.skipif(bool(unsupported()), reason=unsupported())


def explored(name, **settings):
    return explore(f"{FILE}:{name}", **settings)


def failure(name, **settings):
    with pytest.raises(InterleavingError) as caught:
        explored(name, **settings)
    return caught.value


RIGHT = ["locked_update", "virtual_time", "standard_library", "coroutines"]


@pytest.mark.parametrize("name", RIGHT)
def test_what_is_right_passes_all_schedules(name):
    assert explored(name, schedules=40, lines=["interleaved"]) >= 40


WRONG = {
    "two_orders": ("deadlock", "no thread can run"),
    "waits_too_long": ("hang", "virtual seconds"),
    "dies": ("thread died", "ZeroDivisionError"),
    "raises": ("program raised", "LookupError: nothing is there"),
    "asserts": ("program raised", "AssertionError: seven"),
    "late_or_not": ("broken promise", "the answer came late"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_is_found_and_named(name):
    error = failure(name)
    verdict, reason = WRONG[name]
    assert error.verdict == verdict
    assert reason in error.reason
    assert reason in str(error)


def test_a_lost_update_is_found_where_source_lines_are_points_and_only_there():
    assert explored("lost_update")
    error = failure("lost_update", lines=["interleaved"])
    assert error.reason == "number is 1"
    lines = [
        line for line in error.interleaving.splitlines() if "number[0]" in line or "--" in line
    ]
    reads, other_reads = (n for n, line in enumerate(lines) if "old = number[0]" in line)
    writes = [n for n, line in enumerate(lines) if "number[0] = old + 1" in line]
    # One writes what it read before the other one has written; one line may be shown before it runs.
    assert min(reads, other_reads) < min(writes) < max(writes)
    assert any("another goes on" in line for line in lines)


def test_the_functions_that_count_can_be_named():
    assert explored("lost_update", lines=["interleaved:settle"])
    assert failure("lost_update", lines=["interleaved:add"]).reason == "number is 1"


def test_a_seed_gives_the_same_schedule_again():
    first = failure("lost_update", lines=["interleaved"], seed=100)
    second = failure("lost_update", lines=["interleaved"], seed=100)
    assert first.seed >= 100
    assert str(first) == str(second)
    assert str(failure("lost_update", lines=["interleaved"], seed=first.seed)) == str(first)


def test_a_failure_is_run_again():
    error = failure("lost_update", lines=["interleaved"])
    replay = json.loads(json.dumps(error.replay))
    again = failure("lost_update", replay=replay)
    assert (again.reason, again.interleaving) == (error.reason, error.interleaving)
    assert explored("locked_update", replay=replay) == 1


@pytest.mark.parametrize("strategy", ["pct:2", "walk:0.3"])
def test_each_strategy_finds_a_deadlock(strategy):
    assert failure("two_orders", strategy=strategy).verdict == "deadlock"


def test_ctrl_c_comes_between_lines():
    error = failure("interrupted", lines=["interleaved"])
    assert error.reason in ("done []", "done [1]")


def run_command(*given):
    command = [sys.executable, "-m", "headrace_testing.interleavings", *map(str, given)]
    return run_process(command)


def test_the_command_explores_reports_and_runs_again(tmp_path):
    program, report = f"{FILE}:lost_update", tmp_path / "report.json"
    lines = ["--lines", "interleaved"]
    found = run_command(
        program, f"{FILE}:locked_update", *lines, "--schedules", 100, "--report", report
    )
    assert found.returncode == 1
    assert "lost_update fails" in found.stdout
    assert "number is 1" in found.stdout
    assert "locked_update: 104 schedules" in found.stdout
    again = run_command(program, "--replay", report)
    assert again.returncode == 1
    assert "number is 1" in again.stdout
    assert run_command(f"{FILE}:locked_update", "--schedules", 10, "--jobs", 2).returncode == 0


def test_instructions_are_points_where_that_is_wanted():
    program, some = (
        f"{FILE}:lost_update_in_a_line",
        ["--schedules", 200, "--lines", "interleaved:add"],
    )
    assert run_command(program, *some).returncode == 0
    assert run_command(program, *some, "--opcodes").returncode == 1


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (["nothing.py:program"], "names no file"),
        ([f"{FILE}:locked"], "has no function 'locked'"),
        ([f"{FILE}:locked_update", "--strategy", "best"], "no strategy is called 'best'"),
        ([f"{FILE}:locked_update", "--lines", "nowhere"], "no module is called 'nowhere'"),
    ],
)
def test_what_the_command_cannot_do_it_says(given, told):
    done = run_command(*given)
    assert done.returncode == 2
    assert told in done.stderr


def test_a_program_is_a_function_that_another_process_finds():
    def inner():
        pass

    with pytest.raises(ValueError, match="no function at the top of a module"):
        explore(inner)
    with pytest.raises(RuntimeError, match="names no file"):
        explore("nowhere.py:program")


def test_a_function_is_explored_though_its_modules_are_imported_here():
    assert explore(_asks_a_pipeline, schedules=5) >= 5


def _asks_a_pipeline():
    import headrace

    with headrace.pipe({"backend": "Identity"}) as pipe:
        check(pipe({"data": 1})["result"] == 1, "another answer")


def test_outside_of_a_schedule_a_check_is_an_assertion():
    check(True, "right")
    settle()
    with pytest.raises(AssertionError, match="wrong"):
        check(False, lambda: "wrong")


def test_other_interpreters_are_refused(monkeypatch):
    monkeypatch.setattr(sys, "version_info", (3, 99, 0))
    assert "3.99" in unsupported()
    with pytest.raises(RuntimeError, match="unsupported"):
        explored("locked_update")


def test_public_names_are_there():
    for name in headrace_testing.interleavings.__all__:
        assert getattr(headrace_testing.interleavings, name).__doc__
