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
from pathlib import Path
from time import perf_counter
from typing import Any

from headrace_testing.interleavings import loading, search, standins, strategies


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
    add("--seed", type=int, default=0, help="of the first schedule; each further one has the next")
    add("--strategy", default="mix", help="pct:DEPTH, walk:PROBABILITY, or mix of both (default)")
    help_text = "modules and packages: in most schedules the lines of one of their files are points"
    listed = "MODULE[:FUNCTION],..."
    add("--lines", type=lambda text: text.split(","), default=[], metavar=listed, help=help_text)
    add("--opcodes", action="store_true", help="each instruction of these lines is a point")
    add("--jobs", type=int, default=1, help="how many schedules run at a time")
    add("--all", action="store_true", help="go on after the first fault")
    add("--minimise", type=float, default=20.0, help="seconds to look for fewer choices")
    add("--report", type=Path, help="a file for all that is found, as JSON")
    add("--replay", type=Path, help="such a file, whose faults are run again")
    return parser.parse_args()


def main() -> int:
    """Explore the programs that the command names; return the exit status."""
    args = _arguments()
    strategies.drawn(args.strategy, 0, strategies.Sizes())
    noted = json.loads(args.replay.read_text(encoding="utf-8")) if args.replay else {}
    reports: dict[str, Any] = {}
    for address in args.program:
        program, began_s = loading.load(address), perf_counter()
        gc.collect()
        gc.freeze()
        name = Path(address).name
        if args.replay is None:
            count, faults = search.search(program, args)
        else:
            again = [search.Fault.of(dumped) for dumped in noted.get(name, {}).get("faults", ())]
            faults = [candidate for candidate in again if search.replay(program, args, candidate)]
            count = len(again)
        a_second = count / (perf_counter() - began_s)
        texts = search.counted(count, "schedule"), search.counted(len(faults), "fault")
        print(f"{name}: {texts[0]}, {a_second:.0f} a second, {texts[1]}", flush=True)
        for fault in faults:
            print(f"\n{name} fails ({fault.times} times): {fault.text}\n", flush=True)
        reports[name] = {"schedules": count, "faults": [fault.as_dict() for fault in faults]}
    if args.report is not None:
        args.report.write_text(json.dumps(reports), encoding="utf-8")
    return int(any(report["faults"] for report in reports.values()))


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
