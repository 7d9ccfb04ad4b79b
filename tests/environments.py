"""Environments with other packages than the tests' own: other frameworks, their clients, other versions."""

from __future__ import annotations

import hashlib
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

from filelock import FileLock

HOME = Path(__file__).resolve().parents[1] / ".pytest_cache" / "environments"


def environment_with(*requirements: str, beside: bool = False) -> Path:
    """Return the folder of programs of an environment in which pip has installed ``requirements``.

    It is made once, however many processes ask for it, and lies in pytest's cache, where the next run finds it. With
    ``beside`` it also finds the packages of this environment, and nothing is installed that ``requirements`` need.

    Raises:
        subprocess.CalledProcessError: If pip cannot install them.
    """
    asked = repr((sys.version, sys.prefix, requirements, beside)).encode()
    folder = HOME / hashlib.sha256(asked).hexdigest()[:16]
    programs = folder / ("Scripts" if sys.platform == "win32" else "bin")
    HOME.mkdir(parents=True, exist_ok=True)
    with FileLock(f"{folder}.lock"):
        if (folder / "complete").exists():
            return programs
        venv.create(folder, clear=True)
        # A package index that is slow, or away for a moment, fails no test.
        options = ["-q", "--no-compile", "--retries", "10", "--timeout", "60"]
        if beside:
            (packages(programs) / "beside.pth").write_text(sysconfig.get_path("purelib"))
            options.append("--no-deps")
        pip = [sys.executable, "-m", "pip", "--python", programs / "python"]
        subprocess.run([*pip, "install", *options, *requirements], check=True)
        (folder / "complete").touch()
    return programs


def packages(programs: Path) -> Path:
    """Return the folder of packages of the environment that has this folder of programs."""
    base = str(programs.parent)
    return Path(sysconfig.get_path("purelib", vars={"base": base, "platbase": base}))
