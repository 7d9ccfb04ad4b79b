"""The command ``headrace``. To start fast, each command imports the modules that it needs when it runs."""

from __future__ import annotations

import os
import sys

__version__ = "0.1.0"

__all__ = ["__version__", "main"]


def main() -> None:
    """Run the command line."""
    # A descriptor that was closed before the process started must not become that of a file with results, to which
    # libraries would then print.
    while (opened := os.open(os.devnull, os.O_RDWR)) < 3:
        os.set_inheritable(opened, True)
    os.close(opened)
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # the stream was closed before the process started
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: PTH123, SIM115
    try:
        from headrace_cli.app import app
    except KeyboardInterrupt:  # `reporting`, which handles it later, is not imported yet
        sys.stderr.write("interrupted\n")
        sys.exit(130)
    app(prog_name="headrace")
