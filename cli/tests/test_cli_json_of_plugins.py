"""What a distribution says of a type of a library: how `headrace run` writes it."""

from __future__ import annotations

import json
import os
import sys

from processes import run_process

LIBRARY = """
from dataclasses import dataclass

@dataclass
class Pair:
    left: int
    right: int
"""

PLUGIN = """
def write(pair):
    if pair.left == pair.right:
        raise ValueError("these are equal")
    return {"sum": pair.left + pair.right}
"""

WORDS = """
import headrace, pair_library

@headrace.register("PairOf")
def pair_of(data):
    return [pair_library.Pair(1, len(data)), {"inner": pair_library.Pair(2, 2)}]
"""


def test_a_type_is_written_by_the_function_that_an_entry_point_names(tmp_path):
    info = tmp_path / "site" / "pair_plugin-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: pair-plugin\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "[headrace.json]\npair_library.Pair = pair_plugin:write\n"
    )
    (tmp_path / "site" / "pair_library.py").write_text(LIBRARY)
    (tmp_path / "site" / "pair_plugin.py").write_text(PLUGIN)
    (tmp_path / "words.py").write_text(WORDS)
    (tmp_path / "p.toml").write_text('import = ["words.py"]\nbackend = "PairOf"\n')
    (tmp_path / "a.bin").write_bytes(b"four")
    environment = {**os.environ, "PYTHONPATH": str(tmp_path / "site")}
    printed = [
        run_process([sys.executable, "-m", "headrace_cli", "run", "p.toml", "a.bin", *more], cwd=tmp_path, env=environment, timeout=300, check=True).stdout
        for more in (["--json"], [])
    ]  # fmt: skip
    # Where the function raises, the value is written as any other dataclass.
    expected = [{"sum": 5}, {"inner": {"left": 2, "right": 2}}]
    assert json.loads(printed[0]) == {"path": "a.bin", "result": expected}
    assert json.loads(printed[1].split("\t")[1]) == expected
