"""``python -m headrace``: the command line of the distribution headrace-cli."""

from __future__ import annotations

import importlib
import importlib.util
import sys

__all__ = ["main"]


def main() -> None:
    """Run the command line; where it is not installed say what to install, with exit status 2."""
    if importlib.util.find_spec("headrace_cli") is None:
        sys.stderr.write(
            "headrace: the command line is a distribution of its own, which is not installed. "
            'Install it: pip install "headrace[cli]", '
            "or in a clone of Headrace: pip install ./cli\n"
        )
        raise SystemExit(2)
    importlib.import_module("headrace_cli").main()


if __name__ == "__main__":
    main()
