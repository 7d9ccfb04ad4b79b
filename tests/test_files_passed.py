"""How far a newcomer has to read to follow one request."""

from __future__ import annotations

import re
import sys
from pathlib import Path

from processes import run_process

SCRIPT = Path(__file__).parents[1] / "scripts" / "files_passed.py"
MOST = 14


def test_a_request_with_a_deadline_passes_few_files_of_core():
    run = run_process([sys.executable, str(SCRIPT)], timeout=120, check=True)
    (count,) = re.findall(r"^(\d+) files$", run.stdout, re.MULTILINE)
    assert "_run/node.py" in run.stdout
    assert int(count) <= MOST, run.stdout
