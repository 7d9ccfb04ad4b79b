"""A command of a document, run as a reader types it, with a limit of time."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

HERE = (
    f'python() {{ "{sys.executable}" "$@"; }}; headrace() {{ python -m headrace "$@"; }}; '
    'polygraphy() { python -c "import polygraphy.tools as p, sys; sys.exit(p.main())" "$@"; }; '
)
"""What the commands mean, also where the packages are not installed but on PYTHONPATH."""


def shell(
    command: str, folder: Path, limit_s: float = 400, **environ: str
) -> subprocess.CompletedProcess[str]:
    """Run a command in a folder and give what it printed.

    Raises:
        AssertionError: It ran for longer than its limit; with what it had printed until then, and
            where each of its threads was.
    """
    with subprocess.Popen(
        ["bash", "-c", HERE + command],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONFAULTHANDLER": "1", **environ},
        start_new_session=True,
    ) as process:
        try:
            out, err = process.communicate(timeout=limit_s)
        except subprocess.TimeoutExpired:
            for end in (signal.SIGABRT, signal.SIGKILL):  # the first lets Python print its stacks
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, end)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    out, err = process.communicate(timeout=300)
                    break
            raise AssertionError(
                f"more than {limit_s:g} s: {command}\n{out[-3000:]}\n{err[-6000:]}"
            ) from None
        except BaseException:
            os.killpg(process.pid, signal.SIGKILL)
            raise
    return subprocess.CompletedProcess(command, process.returncode, out, err)
