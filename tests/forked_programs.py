"""Run programs, each in a fork of this process, which has loaded headrace and nothing else.

Each line of the input is JSON: the ``program``, and the ``folder`` it runs in. What it prints goes into
the files ``stdout`` and ``stderr`` there; how it ended is written to the output.
"""

from __future__ import annotations

import json
import os
import sys
from types import ModuleType

import headrace


def next_program() -> dict[str, str] | None:
    """Return the program to run, in the fork that is made for it; None in this process, at the end."""
    for line in sys.stdin:
        pid = os.fork()
        if not pid:
            return json.loads(line)
        sys.stdout.write(f"{os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])}\n")
        sys.stdout.flush()
    return None


if __name__ == "__main__":
    headrace.pipe({"backend": "Identity"}).close()
    asked = next_program()
    if asked is not None:
        os.chdir(asked["folder"])
        for number, name in enumerate((os.devnull, "stdout", "stderr")):
            os.dup2(os.open(name, os.O_RDWR | os.O_CREAT), number)
        sys.argv, sys.path[0] = ["-c"], ""
        main = sys.modules["__main__"] = ModuleType("__main__")
        exec(compile(asked["program"], "<string>", "exec", dont_inherit=True), vars(main))
