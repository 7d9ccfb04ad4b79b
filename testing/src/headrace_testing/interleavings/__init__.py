"""Tests of threads without a sleep: a program is run in many interleavings of its threads, each of which can be run again.

`explore` runs a program, a function without arguments, in schedules that a seed decides. Locks, queues, threads and clocks of
the standard library are replaced in a process of its own, so that one thread runs at a time and time is virtual. What the
program says to that world is `check`, `settle`, `sleep`, `ctrl_c` and `run_async`.

The same from a shell: ``python -m headrace_testing.interleavings FILE.py:FUNCTION``.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace_testing.interleavings.loading import address_of, unsupported
from headrace_testing.interleavings.standins import sleep
from headrace_testing.interleavings.steering import check, ctrl_c, run_async, settle

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

__all__ = [
    "InterleavingError",
    "check",
    "ctrl_c",
    "explore",
    "run_async",
    "settle",
    "sleep",
    "unsupported",
]


class InterleavingError(AssertionError):
    """A program fails in an interleaving. The text shows it.

    Attributes:
        verdict: ``broken promise``, ``deadlock``, ``hang``, ``thread died``, ``program raised``, ``no end`` or ``stuck``.
        reason: What was wrong, as a traceback where something was raised.
        seed: The seed of the schedule. None where it was not drawn.
        stacks: The stacks of all threads at that moment.
        interleaving: What each thread did, in order.
        replay: What `explore` needs to run the same interleaving again, as JSON holds it.
    """

    def __init__(self, address: str, fault: dict[str, Any]) -> None:
        self.verdict: str = fault["verdict"]
        self.reason: str = fault["reason"]
        self.seed: int | None = fault["seed"]
        self.stacks: str = fault["stacks"]
        self.interleaving: str = fault["interleaving"]
        self.replay = {key: fault[key] for key in ("verdict", "reason", "seed", "choices", "files")}
        super().__init__(f"{address}: {fault['text']}")


def explore(
    program: Callable[[], object] | str,
    *,
    schedules: int = 200,
    seconds: float | None = None,
    seed: int = 0,
    strategy: str = "mix",
    minimise_s: float = 20.0,
    lines: Sequence[str] = (),
    replay: Mapping[str, Any] | None = None,
) -> int:
    """Run a program in many interleavings of its threads.

    Args:
        program: A function without arguments at the top of a module, or ``FILE.py:FUNCTION``. Its module is loaded anew in another
            process, with the paths of this one.
        schedules: How many schedules to run.
        seconds: How long to search at most, in real seconds. None for as long as the schedules take.
        seed: The seed of the first schedule. Each further one has the next.
        strategy: ``pct:DEPTH``, ``walk:PROBABILITY``, or ``mix`` of these.
        minimise_s: How long to look for a smaller interleaving of an error. 0 for none.
        lines: Modules and packages, as ``MODULE`` or ``MODULE:FUNCTION``. In most schedules another thread may go on at each
            source line of one of their files, else it may at operations alone, on locks, queues, threads and clocks.
        replay: The ``replay`` of an error: the program runs once, in the interleaving of that error.

    Returns:
        How many schedules have run.

    Raises:
        InterleavingError: The program failed. It has the smallest interleaving that was found.
        RuntimeError: Interleavings cannot be explored here, see `unsupported`, or the program cannot be loaded.
    """
    __tracebackhide__ = True  # pytest shows the text of the error alone
    if why := unsupported():
        raise RuntimeError(f"unsupported: {why}")
    address = address_of(program)
    name = Path(address).name
    args = ["--lines", ",".join(lines)] if lines else []
    with tempfile.TemporaryDirectory() as folder:
        report, again = Path(folder, "report.json"), Path(folder, "again.json")
        if replay is not None:
            again.write_text(json.dumps({name: {"faults": [replay]}}), encoding="utf-8")
            args += ["--replay", str(again)]
        args += ["--seed", str(seed), "--schedules", str(schedules), "--strategy", strategy]
        args += ["--seconds", str(seconds or 1e9), "--report", str(report)]
        args += ["--minimise", str(minimise_s)]
        paths = os.pathsep.join(filter(None, sys.path))
        done = subprocess.run(  # noqa: S603 - this module, on a file of the caller's
            [sys.executable, "-m", __name__, address, *args],
            env={**os.environ, "PYTHONPATH": paths, "PYTHONHASHSEED": "0"},
            capture_output=True,
            text=True,
            check=False,
        )
        if not report.exists():
            raise RuntimeError(f"{address} cannot be explored: {done.stderr or done.stdout}")
        searched = json.loads(report.read_text(encoding="utf-8"))[name]
    for fault in searched["faults"]:
        if fault["verdict"] == "stuck":  # the stacks that faulthandler has printed
            fault["text"] += done.stderr
        raise InterleavingError(address, fault)
    number: int = searched["schedules"]
    return number
