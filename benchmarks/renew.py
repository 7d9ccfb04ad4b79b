"""Make the figures of ``benchmarks/results`` anew, each by the command that its file names.

    python -m benchmarks.renew cpu [ray gpu] --machine TEXT [--only NAME ...] [--list] [--quick] [--raw FOLDER]

The part of a result is where it was measured: ``gpu`` on a device of NVIDIA, ``ray`` in an environment with Ray, ``cpu``
all others. A script writes all that it measured to ``--raw`` (default: ``build/bench``). The figures that it keeps replace
those in the file of results. A script that keeps none is named at the end: take its figures from the raw file by hand.

``--list`` names each result and its command, and runs nothing. ``--quick`` runs one short round and replaces nothing.
Exit status 1 if a command fails. The others run nevertheless.
"""

from __future__ import annotations

import argparse
import json
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

from benchmarks.figures import RESULTS

PARTS = ("cpu", "ray", "gpu")
QUICK = {"benchmarks.serve.peers": ["--peer"]}
"""What a script takes with ``--quick``: pip is to make no environments of other servers."""


def part_of(result: dict[str, Any]) -> str:
    """Return where a result was measured."""
    if "NVIDIA" in result["environment"]["machine"]:
        return "gpu"
    script = result["run"]["script"] or ""
    return "ray" if script.startswith("benchmarks/ray/") else "cpu"


def words_of(result: dict[str, Any]) -> list[str] | None:
    """Return module and arguments of the command that makes a result; None where no script does."""
    words = shlex.split(result["run"]["command"] or "")
    return words[2:] if words[:2] == ["python", "-m"] else None


def run(name: str, words: list[str], asked: argparse.Namespace) -> str:
    """Run the command of a result; say what became of it."""
    raw = asked.raw / f"{name}.json"
    asked.raw.mkdir(parents=True, exist_ok=True)
    raw.unlink(missing_ok=True)
    quick = ["--quick", *QUICK.get(words[0], [])] if asked.quick else []
    command = [sys.executable, "-m", *words, *quick, "--json", str(raw)]
    print(f"\n== {name}: python {shlex.join(command[1:])}", flush=True)
    if subprocess.run(command, check=False).returncode or not raw.is_file():
        return "failed"
    if not json.loads(raw.read_text(encoding="utf-8"))["kept"]:
        return f"by hand, from {raw}"
    if asked.quick:
        return "ran"
    keep = ["-m", "benchmarks.figures", str(raw), name, "--machine", asked.machine]
    subprocess.run([sys.executable, *keep], check=True)
    return "new"


def main() -> None:
    """Run the commands of the parts that are asked for."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("parts", nargs="+", choices=PARTS)
    parser.add_argument("--machine", help="what it runs on, and beside what")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="of files in benchmarks/results")
    parser.add_argument("--list", action="store_true", help="name results and commands")
    parser.add_argument("--quick", action="store_true", help="one short round, nothing replaced")
    parser.add_argument("--raw", type=Path, default=Path("build/bench"), help="folder of raw files")
    asked = parser.parse_args()
    if not (asked.machine or asked.list or asked.quick):
        parser.error("--machine says what it runs on, and beside what")
    files = {path.stem: path for path in sorted(RESULTS.glob("*.json"))}
    if unknown := set(asked.only or ()) - set(files):
        parser.error(f"no file in {RESULTS} is named {', '.join(sorted(unknown))}")
    became: dict[str, str] = {}
    for name in asked.only or files:
        result = json.loads(files[name].read_text(encoding="utf-8"))
        words = words_of(result)
        if part_of(result) not in asked.parts:
            continue
        if asked.list:
            print(f"{name:20} {result['run']['command'] or 'no command'}")
        else:
            became[name] = run(name, words, asked) if words else "by hand: no script makes it"
    if became:
        print("\n" + "\n".join(f"{name:20} {how}" for name, how in became.items()))
    sys.exit("failed" in became.values())


if __name__ == "__main__":
    main()
