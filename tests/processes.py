"""Programs that tests run to their ends."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence


def run_process(command: Sequence[object], **options: Any) -> subprocess.CompletedProcess[str]:
    """Run a command to its end, and return its status, its output and its errors.

    Args:
        command: Its words.
        options: Those of `subprocess.run`.
    """
    words = [str(word) for word in command]
    settings = {"capture_output": True, "text": True, "check": False}
    return subprocess.run(words, **(settings | options))


def run_python(
    program: str, *arguments: object, **options: Any
) -> subprocess.CompletedProcess[str]:
    """Run a program of Python as `run_process` does, with every warning an error."""
    return run_process([sys.executable, "-W", "error", "-c", program, *arguments], **options)
