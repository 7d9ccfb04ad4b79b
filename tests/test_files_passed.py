"""How far a newcomer has to read to follow one request."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[1] / "scripts" / "files_passed.py"
MOST = 14


def test_a_request_with_a_deadline_passes_few_files_of_core():
    run = subprocess.run(
        [sys.executable, str(SCRIPT)], capture_output=True, text=True, timeout=120, check=True
    )
    (count,) = re.findall(r"^(\d+) files$", run.stdout, re.MULTILINE)
    assert "_run/node.py" in run.stdout
    assert int(count) <= MOST, run.stdout
