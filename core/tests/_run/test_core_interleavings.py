"""Every promise of the kernel holds in many interleavings of threads; see the programs in ``interleavings``."""

from __future__ import annotations

import os
import random
import sys

import pytest
from interleavings_of_core import ALONE, FOLDER, NEAR, lines_near, programs
from loading import python

from headrace_testing.interleavings import explore, unsupported

pytestmark = pytest.mark.skipif(bool(unsupported()), reason=unsupported())

STRESS_S = 3600
"""How long all programs run with ``--stress``, together."""

SCHEDULES = 32
MORE = {"graphs.py:diamond_fails": 64, "pending.py:finish": 64, "closing.py:outcomes_first": 64}
"""How many schedules a program runs, a third of them among the quick tests; those find most that are short."""


def test_every_file_of_programs_has_its_place():
    assert {path.stem for path in FOLDER.glob("*.py")} == {*NEAR, "shared", "composed"}


def test_the_kernel_is_explored_without_the_language():
    names = ", ".join(ALONE)
    code = f"import sys, {names}\nprint([n for n in sys.modules if n.startswith(('headrace._language', 'pydantic'))])"
    ended = python("-c", code, path=os.pathsep.join([str(FOLDER), *sys.path]))
    assert (ended.stdout, ended.stderr) == ("[]\n", "")


@pytest.mark.parametrize("part", ["a third", pytest.param("the rest", marks=pytest.mark.slow)])
@pytest.mark.parametrize("program", programs())
def test_promise_holds(program, part):
    count = MORE.get(program, SCHEDULES)
    first = count // 3
    seed, schedules = (0, first) if part == "a third" else (first, count - first)
    explore(f"{FOLDER / program}", schedules=schedules, seed=seed, lines=lines_near(program))


@pytest.mark.stress
@pytest.mark.parametrize("program", programs())
def test_promise_holds_for_long(program, request):
    if not request.config.getoption("--stress"):
        pytest.skip("an hour, with --stress")
    seconds = STRESS_S / len(programs()) / 2
    for lines in (lines_near(program), ["headrace"]):
        seed = random.randrange(10**9)
        explore(f"{FOLDER / program}", schedules=10**9, seconds=seconds, seed=seed, lines=lines)
