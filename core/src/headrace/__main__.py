"""The command ``headrace``, also ``python -m headrace``."""

from __future__ import annotations

import importlib.util
import os
import sys

__all__ = ["main"]

_NEEDED = ("typer", "rich")


def main() -> None:
    """Run the command line; without its libraries say what to install, with exit status 2."""
    missing = [name for name in _NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        sys.stderr.write(
            f"headrace: the command line needs {' and '.join(missing)}: "
            'pip install "headrace[cli]"\n'
        )
        raise SystemExit(2)
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # it was closed before the start
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: PTH123, SIM115
    from headrace._cli.app import app

    app(prog_name="headrace")


if __name__ == "__main__":
    main()
