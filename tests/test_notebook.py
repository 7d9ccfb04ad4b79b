"""The notebook: its cells run in order, and show what they say."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

NOTEBOOK = Path(__file__).resolve().parents[1] / "examples" / "notebook.ipynb"

RUN = """
import ast, json, sys
import matplotlib
matplotlib.use("Agg")
import matplotlib.pyplot as plt
bars = []
plt.show = lambda: bars.append([(float(bar.get_x() + bar.get_width() / 2), float(bar.get_height())) for bar in plt.gca().patches])
names = {"__name__": "__main__"}
for number, cell in enumerate(json.load(open(sys.argv[1], encoding="utf-8"))["cells"]):
    if cell["cell_type"] == "code":
        print(f"== {number}")
        tree = ast.parse("".join(cell["source"]), f"cell {number}")
        last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
        exec(compile(tree, f"cell {number}", "exec"), names)
        if last is not None:  # what it is worth is shown, as a notebook does
            shown = eval(compile(ast.Expression(last.value), f"cell {number}", "eval"), names)
            print(shown._repr_html_() if hasattr(shown, "_repr_html_") else "", end="")
print("== bars")
print(json.dumps(bars))
"""


def cells() -> list[dict]:
    return json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]


@pytest.fixture(scope="module")
def printed(tmp_path_factory) -> list[str]:
    """What each code cell printed, and last the bars of the plot."""
    done = subprocess.run(
        [sys.executable, "-c", RUN, str(NOTEBOOK)],
        cwd=tmp_path_factory.mktemp("notebook"),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return [part.partition("\n")[2] for part in done.stdout.split("== ")[1:]]


def test_it_is_kept_without_outputs_and_each_cell_has_a_name():
    assert [cell for cell in cells() if cell.get("outputs") or cell.get("execution_count")] == []
    names = [cell["id"] for cell in cells()]
    assert len({*names}) == len(names)


def test_each_thread_gets_the_answer_to_its_own_picture(printed):
    assert printed[2] == "400 (3, 224, 224) True\n"


def rows(html: str) -> list[list[str]]:
    found = [
        re.findall(r"<t[hd]>(.*?)</t[hd]>", row) for row in re.findall(r"<tr>(.*?)</tr>", html)
    ]
    return [row for row in found if row]


def test_the_pipeline_shows_its_graph(printed):
    assert "<svg" in printed[0]
    assert "main (2 instances)" in printed[0]


def test_the_tables_count_the_requests(printed):
    heading, node, instances, *each = rows(printed[3])
    counts = dict(zip(heading, node, strict=False))
    assert (counts["submitted"], counts["ok"], counts["failed"]) == ("400", "400", "0")
    batches = instances.index("batches")
    assert sum(int(row[batches]) for row in each) == int(counts["batches"]) < 400


def test_the_plot_shows_every_request_once(printed):
    (bars,) = json.loads(printed[-1])
    assert sum(size * batches for size, batches in bars) == pytest.approx(400)


def test_the_wrong_request_fails_alone_and_is_told_why(printed):
    error, kept = printed[5].rsplit("\n", 2)[:2]
    assert "DecodeMat" in error
    assert kept == "True"
