"""The time to import and start headrace: ``import headrace``, and ``headrace plugins list``.

- *import*: a fresh interpreter that runs ``import headrace`` beside one that runs nothing, in turn.
  The clock runs from the start of the process to its end; the difference is reported.
- *plugins list*: ``python -m headrace plugins list`` beside the empty interpreter, with eight more
  distributions installed that name twenty backends each. The benchmark writes their metadata, and no
  code, into a temporary folder on ``PYTHONPATH``, as pip would. The command imports nothing of them.

    python -m benchmarks.import_time [--runs 31] [--json FILE] [--quick]
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.figures import Figure, measure
from benchmarks.load import arguments, environment, print_environment, save

if TYPE_CHECKING:
    from collections.abc import Mapping

PLUGINS = 8
BACKENDS = 20
IMPORT_MS = 80
LIST_MS = 250


def install_plugins(folder: Path) -> None:
    """Write the metadata of the plugins, and no code, into ``folder``."""
    for number in range(PLUGINS):
        name = f"headrace-sample{number}"
        info = folder / f"headrace_sample{number}-1.0.dist-info"
        info.mkdir()
        metadata = (
            f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n"
            "Requires-Dist: headrace<0.2,>=0.1\nRequires-Dist: numpy\n"
        )
        (info / "METADATA").write_text(metadata, encoding="utf-8")
        lines = [f"Sample{number}x{k} = headrace_sample{number}.b{k}:B" for k in range(BACKENDS)]
        entry_points = "[headrace.backends]\n" + "\n".join(lines) + "\n"
        (info / "entry_points.txt").write_text(entry_points, encoding="utf-8")
        (info / "RECORD").write_text("", encoding="utf-8")


def milliseconds(command: list[str], environ: Mapping[str, str]) -> float:
    began = time.perf_counter()
    done = subprocess.run(command, env=environ, capture_output=True, text=True, check=False)
    spent = 1000 * (time.perf_counter() - began)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} failed:\n{done.stderr}")
    return spent


def beside_nothing(
    title: str, command: list[str], environ: Mapping[str, str], runs: int
) -> tuple[dict[str, Any], list[Figure]]:
    """Time ``command`` and the empty interpreter in turn; print and give the medians."""
    empty = [sys.executable, "-c", "pass"]
    for warm in (empty, command):
        milliseconds(warm, environ)
    pairs = [(milliseconds(empty, environ), milliseconds(command, environ)) for _ in range(runs)]
    base = statistics.median(pair[0] for pair in pairs)
    whole = statistics.median(pair[1] for pair in pairs)
    over = statistics.median(pair[1] - pair[0] for pair in pairs)
    print(f"{title:32}{whole:8.1f} ms; the empty interpreter {base:.1f}; over it {over:.1f} ms")
    more = [pair[1] - pair[0] for pair in pairs]
    kept = [measure(f"{title}: more than the empty interpreter", "ms", "lower", more)]
    return {"whole_ms": whole, "empty_ms": base, "over_ms": over, "runs": runs}, kept


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--runs", type=int, default=31, help="of each side, in turn")
    chosen = parser.parse_args()
    runs = min(5, chosen.runs) if chosen.quick else chosen.runs
    about = environment(["headrace", "pluggy", "pydantic", "typer", "rich"])
    print_environment(about)
    figures = {}
    environ = dict(os.environ)
    figures["import"], kept = beside_nothing(
        "import headrace", [sys.executable, "-c", "import headrace"], environ, runs
    )
    with tempfile.TemporaryDirectory() as folder:
        install_plugins(Path(folder))
        paths = [folder, environ.get("PYTHONPATH", "")]
        environ["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
        command = [sys.executable, "-m", "headrace", "plugins", "list"]
        listed = subprocess.run(command, env=environ, capture_output=True, text=True, check=False)
        missing = [n for n in range(PLUGINS) if f"headrace-sample{n}" not in listed.stdout]
        if missing:
            raise SystemExit(
                f"the list lacks {len(missing)} plugins:\n{listed.stdout}{listed.stderr}"
            )
        figures["plugins_list"], more = beside_nothing(
            "headrace plugins list", command, environ, runs
        )
    print(
        f"\nwanted: import under {IMPORT_MS} ms over the empty interpreter;"
        f" the list under {LIST_MS} ms in all"
    )
    save(chosen.json, about, figures, [*kept, *more])


if __name__ == "__main__":
    main()
