"""Who has ended is let go of in many interleavings of threads; see ``flow_programs``."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import headrace_flow
from headrace_testing.interleavings import InterleavingError, explore, unsupported

pytestmark = pytest.mark.skipif(bool(unsupported()), reason=unsupported())

FILE = Path(__file__).with_name("flow_programs.py")
NEAR = {
    "concurrency": "limits.py",
    "concurrency_ends_as_called": "limits.py",
    "once": "caching/flights.py",
    "once_ends_as_called": "caching/flights.py",
}
"""Each program, and the file whose source lines are points."""
SCHEDULES = 32

FAULTS = {
    "who waits is not watched": (
        "concurrency",
        "where two wait",
        ("            self._watch(room, batch)\n", "            pass\n"),
    ),
    "who has ended stays": (
        "concurrency",
        "where two wait",
        ("if room.waits.pop(handle, None) is not None:", "if handle in room.waits:"),
    ),
    "a room where nobody waits any more stays in line": (
        "concurrency_ends_as_called",
        "program raised|thread died|deadlock|not over after|outcomes|at the end",
        ("                    self._line.remove(room)\n", "                    pass\n"),
    ),
    "who ends as it is called holds its place for ever": (
        "concurrency_ends_as_called",
        "deadlock|not over after|at the end",
        ("            if handle not in room.coming:\n", "            if True:\n"),
    ),
    "an equal request that has ended stays": (
        "once",
        "is kept",
        (
            "flight is None or flight.waits.pop(handle, None) is not None:",
            "flight is None or handle in flight.waits:",
        ),
    ),
    "nobody runs in place of the next that has ended": (
        "once_ends_as_called",
        "deadlock|not over after|at the end",
        ("            if flight.next != handle:\n", "            if True:\n"),
    ),
}


@pytest.mark.parametrize("part", ["a third", pytest.param("the rest", marks=pytest.mark.slow)])
@pytest.mark.parametrize("program", NEAR)
def test_who_has_ended_is_let_go_of(program, part):
    first = SCHEDULES // 3
    seed, schedules = (0, first) if part == "a third" else (first, SCHEDULES - first)
    lines = [str(Path(headrace_flow.__file__).parent / NEAR[program])]
    assert explore(f"{FILE}:{program}", schedules=schedules, seed=seed, lines=lines) >= schedules


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS)
def test_planted_fault_is_found(fault, tmp_path, monkeypatch):
    program, seen, (text, other) = FAULTS[fault]
    copy = tmp_path / "headrace_flow"
    shutil.copytree(Path(headrace_flow.__file__).parent, copy)
    monkeypatch.syspath_prepend(str(tmp_path))
    path = copy / NEAR[program]
    source = path.read_text(encoding="utf-8")
    assert source.count(text) == 1, f"{path.name} has changed: where is {text!r} now?"
    path.write_text(source.replace(text, other), encoding="utf-8")
    with pytest.raises(InterleavingError, match=seen):
        explore(f"{FILE}:{program}", schedules=400, lines=[str(path)], minimise_s=0)
