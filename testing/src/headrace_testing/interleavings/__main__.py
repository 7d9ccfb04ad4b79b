"""Explore the interleavings of programs: python -m headrace_testing.interleavings FILE.py:FUNCTION ...

A program is a function without arguments. Each schedule runs in a process of its own. Status 1: a program has failed.
"""

from __future__ import annotations

import argparse
import faulthandler
import gc
import json
import os
import sys
from dataclasses import fields
from pathlib import Path

from headrace_testing.interleavings import loading, search, standins


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m headrace_testing.interleavings",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("program", nargs="+", metavar="FILE.py:FUNCTION")
    add("--schedules", type=int, default=10**9, help="how many schedules to run")
    add("--seconds", type=float, default=30.0, help="how long to search (default 30)")
    add(
        "--seed",
        type=int,
        default=0,
        help="the seed of the first schedule; each further one has the next",
    )
    strategies = "mix (the default), pct:DEPTH, walk:PROBABILITY or bounded:PREEMPTIONS"
    add("--strategy", default="mix", help=strategies)
    lines = "modules and packages, with commas: in most schedules the lines of one of their files are points"
    add(
        "--lines",
        type=lambda text: text.split(","),
        default=[],
        metavar="MODULE[:FUNCTION],...",
        help=lines,
    )
    add("--opcodes", action="store_true", help="each instruction of these lines is a point")
    add("--jumps", type=int, default=1, help="how often time may jump although threads can run")
    add("--jobs", type=int, default=1, help="how many schedules run at a time")
    add("--all", action="store_true", help="go on after the first fault")
    add(
        "--minimise",
        type=float,
        default=20.0,
        help="seconds to look for fewer choices (default 20)",
    )
    add("--report", type=Path, help="a file into which all that was found is written, as JSON")
    add("--replay", type=Path, help="such a file, whose faults are run again")
    return parser.parse_args()


def main() -> int:
    """Explore the programs that the command names; return the exit status."""
    given = _arguments()
    names = [one.name for one in fields(search.Settings)]
    found = []
    for address in given.program:
        program = loading.load(address)
        settings = search.Settings(**{name: getattr(given, name) for name in names})
        gc.collect()
        gc.freeze()
        name = search.name_of(*address.rsplit(":", 1))
        if given.replay is None:
            found.append(search.explore_here(program, name, settings))
        else:
            for noted in json.loads(given.replay.read_text(encoding="utf-8")):
                for fault in noted["faults"] if noted["program"] == name else ():
                    again = search.Fault.of(fault)
                    found.append(search.replay(program, name, settings, again))
        _print(found[-1:])
    if given.report is not None:
        text = json.dumps([one.as_dict() for one in found])
        given.report.write_text(text, encoding="utf-8")
    return int(any(one.faults for one in found))


def _print(found: list[search.Explored]) -> None:
    for one in found:
        rate = one.schedules / max(one.seconds, 0.001)
        faults = f"{len(one.faults)} fault" + ("" if len(one.faults) == 1 else "s")
        print(
            f"{one.program}: {one.schedules} schedules, {rate:.0f} a second, {faults}", flush=True
        )
        for fault in one.faults:
            print(f"\n{one.program} fails in {fault.times} schedules: {fault.text}\n", flush=True)


if __name__ == "__main__":
    if why := loading.unsupported():
        sys.exit(f"unsupported: {why}")
    if os.environ.get("PYTHONHASHSEED") != "0":  # the order of sets is part of a schedule
        command = [sys.executable, "-m", "headrace_testing.interleavings", *sys.argv[1:]]
        os.execve(sys.executable, command, {**os.environ, "PYTHONHASHSEED": "0"})  # noqa: S606
    faulthandler.enable()
    standins.install()
    gc.disable()  # when it comes is no choice
    try:
        status = main()
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        status = 2
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)  # what the programs would do at exit needs threads
