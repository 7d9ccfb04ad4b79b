"""An environment with this repository's wheels, beside the other libraries of the running interpreter's environment.

python scripts/installed.py WHEELS FOLDER     make the environment FOLDER of the wheels in the folder WHEELS

It takes seconds and no network: the other libraries are links to those that are installed here.
"""

from __future__ import annotations

import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

__all__ = ["make"]


def make(wheels: Path, folder: Path) -> Path:
    """Make the environment; give the folder of its programs."""
    builder = venv.EnvBuilder(with_pip=False, symlinks=True)
    builder.create(folder)
    paths = builder.ensure_directories(folder)
    programs = Path(paths.bin_path)
    python = str(paths.env_exe)
    ask = "import sysconfig; print(sysconfig.get_path('purelib'))"
    site = subprocess.check_output([python, "-c", ask], text=True).strip()
    _link_libraries(Path(site))
    install = ["install", "--quiet", "--no-index", "--no-deps", "--no-compile"]
    built = sorted(map(str, wheels.glob("headrace*.whl")))
    subprocess.run([sys.executable, "-m", "pip", "--python", python, *install, *built], check=True)
    return programs


def _link_libraries(site: Path) -> None:
    """Link what is installed here, but nothing of this repository, whose editable installations would hide faults."""
    for here in {sysconfig.get_path(name) for name in ("purelib", "platlib")}:
        for one in Path(here).iterdir():
            link = site / one.name
            if "headrace" not in one.name and not link.exists():
                link.symlink_to(one.resolve())


if __name__ == "__main__":
    make(Path(sys.argv[1]), Path(sys.argv[2]))
