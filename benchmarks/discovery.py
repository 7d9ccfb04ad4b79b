"""The time that installed plugins add: ``headrace plugins list`` with 200 more plugins, beside none.

Each fake distribution has a module with five backends, a module with hooks, and a description of 200 lines, like a
README. The benchmark writes the distributions into a temporary folder on ``PYTHONPATH``, as pip would;
the command imports none of the backends. Both sides run in turn: the same command, with and without that folder.
The clock runs from the start of the process to its end; the difference of the two sides is reported.

    python -m benchmarks.discovery [--runs 31] [--plugins 200] [--json FILE] [--quick]
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.import_time import milliseconds
from benchmarks.load import arguments, environment, print_environment, save

BACKENDS = 5
ABOVE_MS = 300


BACKEND = '''
class B{number}(headrace.Backend):
    """Give back what came."""

    class Options(headrace.Options):
        factor: float = pydantic.Field(1.0, description="A factor (no unit).")

    def forward(self, batch):
        for request in batch:
            request["result"] = request["data"]
'''

HOOKS = """from headrace.hookspecs import hookimpl


@hookimpl
def headrace_probes():
    return {{"Probe{number}": "headrace_fake{number}.backend:B0"}}
"""


def install_plugins(folder: Path, plugins: int) -> None:
    """Write the plugins, metadata and code, into ``folder``."""
    module = "from __future__ import annotations\n\nimport headrace\nimport pydantic\n"
    module += "".join(BACKEND.format(number=k) for k in range(BACKENDS))
    for number in range(plugins):
        package = folder / f"headrace_fake{number}"
        package.mkdir()
        (package / "__init__.py").write_text("", encoding="utf-8")
        (package / "backend.py").write_text(module, encoding="utf-8")
        (package / "hooks.py").write_text(HOOKS.format(number=number), encoding="utf-8")
        info = folder / f"headrace_fake{number}-1.0.dist-info"
        info.mkdir()
        metadata = (
            f"Metadata-Version: 2.1\nName: headrace-fake{number}\nVersion: 1.0\n"
            "Requires-Dist: headrace<0.2,>=0.1\nRequires-Dist: numpy\n\n"
        ) + "A line of the README, of which there are many.\n" * 200
        (info / "METADATA").write_text(metadata, encoding="utf-8")
        lines = [f"Fake{number}x{k} = headrace_fake{number}.backend:B{k}" for k in range(BACKENDS)]
        lines += ["[headrace.plugins]", f"hooks = headrace_fake{number}.hooks"]
        entry_points = "[headrace.backends]\n" + "\n".join(lines) + "\n"
        (info / "entry_points.txt").write_text(entry_points, encoding="utf-8")
        (info / "RECORD").write_text("", encoding="utf-8")


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--runs", type=int, default=31, help="of each side, in turn")
    parser.add_argument("--plugins", type=int, default=200, help="how many are installed")
    chosen = parser.parse_args()
    runs = min(5, chosen.runs) if chosen.quick else chosen.runs
    about = environment(["headrace", "packaging", "typer"])
    print_environment(about)
    without = dict(os.environ)
    command = [sys.executable, "-m", "headrace", "plugins", "list"]
    with tempfile.TemporaryDirectory() as folder:
        install_plugins(Path(folder), chosen.plugins)
        paths = [folder, without.get("PYTHONPATH", "")]
        within = {**without, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
        listed = subprocess.run(
            [*command, "--json"], env=within, capture_output=True, text=True, check=True
        )
        fakes = [r for r in json.loads(listed.stdout) if "headrace-fake" in r["distribution"]]
        right = all(r["state"] == "ok" and len(r["backends"]) == BACKENDS for r in fakes)
        if len(fakes) != chosen.plugins or not right:
            raise SystemExit(f"the list is wrong:\n{listed.stdout}{listed.stderr}")
        for warm in (without, within):
            milliseconds(command, warm)
        pairs = [
            (milliseconds(command, without), milliseconds(command, within)) for _ in range(runs)
        ]
    base, whole = (statistics.median(side) for side in zip(*pairs, strict=True))
    above = statistics.median(pair[1] - pair[0] for pair in pairs)
    print(f"headrace plugins list          {base:8.1f} ms")
    print(f"with {chosen.plugins:4} plugins more         {whole:8.1f} ms; above it {above:.1f} ms")
    print(f"\nwanted: under {ABOVE_MS} ms above it with 200 plugins")
    figures = {"without_ms": base, "with_ms": whole, "above_ms": above, "runs": runs}
    save(chosen.json, about, {"plugins_list": figures, "plugins": chosen.plugins})


if __name__ == "__main__":
    main()
