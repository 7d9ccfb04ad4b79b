"""Print the files of core through which a request with a deadline passes, on one node, in whichever thread.

python scripts/files_passed.py
"""

from __future__ import annotations

import _thread
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

import headrace

CORE = Path(headrace.__file__).parent


class Copy(headrace.Backend):
    """Give the data back."""

    def forward(self, batch: Sequence[dict[str, Any]]) -> None:
        """Write data into result."""
        for request in batch:
            request["result"] = request["data"]


def passed() -> dict[str, set[str]]:
    """Return the functions that were called, by file."""
    found: dict[str, set[str]] = {}

    def note(frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(str(CORE)):
            name = str(Path(code.co_filename).relative_to(CORE))
            found.setdefault(name, set()).add(code.co_name)

    def call() -> None:
        sys.setprofile(note)
        pipe({"data": 1}, timeout=5)
        sys.setprofile(None)

    def start(function: Callable[..., object], args: tuple[Any, ...] = ()) -> int:
        def noted() -> None:
            sys.setprofile(note)
            function(*args)

        return int(begin(noted, ()))

    headrace.register("Copy", Copy, replace=True)
    begin: Any = _thread.start_new_thread
    _thread.start_new_thread = start  # type: ignore[assignment] # for the thread that runs the batch
    try:
        with headrace.pipe({"backend": "Copy"}) as pipe:
            client = threading.Thread(target=call)
            client.start()
            client.join()
            # Without what its close passes.
            return {name: {*functions} for name, functions in found.items()}
    finally:
        _thread.start_new_thread = begin


def main() -> None:
    """Print a line per file, and their number."""
    found = passed()
    for name, functions in sorted(found.items()):
        print(f"{name}: {', '.join(sorted(functions))}")
    print(f"{len(found)} files")


if __name__ == "__main__":
    main()
