"""The lines for pandas and Ray Data that the page of functions shows."""

from __future__ import annotations

import re

import pytest
from pages import Page
from ray_programs import run_program

SHOWN = next(iter(Page("docs/functions.md", "A data frame").blocks("text")))
PANDAS, RAY = (
    re.search(rf"# {name}.*\n((?:.+\n|\n    )+)", SHOWN)[1] for name in ("pandas", "Ray")
)
PROGRAM = """
import headrace, pandas, ray

frame = pandas.DataFrame({{"text": ["a", "bcd", "ef", ""]}})
with headrace.pipe({config!r}) as pipe:
    {pandas}
print(frame["length"].tolist())
{ray}
ray.init()
table = ray.data.from_pandas(frame[["text"]]).map_batches(Lengths, batch_size=2, concurrency=1)
print(sorted(row["length"] for row in table.take_all()))
"""


def test_a_frame_and_a_dataset_have_the_length_of_each_text(tmp_path, cluster):
    pytest.importorskip("pyarrow")
    config = tmp_path / "count.toml"
    config.write_text('backend = "Call(builtins:len)"\nmax = 8\n', encoding="utf-8")
    program = tmp_path / "program.py"
    ray = RAY.replace('"count.toml"', repr(str(config)))
    program.write_text(PROGRAM.format(config=str(config), pandas=PANDAS, ray=ray), encoding="utf-8")
    done = run_program(program, RAY_ADDRESS=cluster.address)
    assert done.returncode == 0, done.stderr
    assert [line for line in done.stdout.splitlines() if line.startswith("[")] == [
        "[1, 3, 2, 0]",
        "[0, 1, 2, 3]",
    ]
