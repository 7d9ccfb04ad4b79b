"""The notebook: nbclient runs its cells in order, in a kernel, and they show what they say."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

NOTEBOOK = Path(__file__).resolve().parents[1] / "examples" / "notebook.ipynb"


def cells() -> list[dict]:
    return json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]


@pytest.fixture(scope="module")
def shown(tmp_path_factory) -> list[dict[str, str]]:
    """What each code cell showed, by the type of it (what was printed: ``text``); last what the histogram is."""
    nbclient = pytest.importorskip("nbclient", reason="needs nbclient and ipykernel")
    pytest.importorskip("ipykernel", reason="needs nbclient and ipykernel")
    import nbformat

    notebook = nbformat.read(NOTEBOOK, as_version=4)
    notebook.cells.append(nbformat.v4.new_code_cell("print([*histogram.items()])"))
    folder = tmp_path_factory.mktemp("notebook")
    nbclient.NotebookClient(
        notebook,
        timeout=None,
        startup_timeout=600,
        kernel_name="python3",
        resources={"metadata": {"path": str(folder)}},
    ).execute()
    found = []
    for cell in notebook.cells:
        if cell.cell_type == "code":
            seen: dict[str, str] = {}
            for output in cell.outputs:
                parts = {"text": output["text"]} if "text" in output else output["data"]
                for kind, text in parts.items():
                    seen[kind] = seen.get(kind, "") + text
            found.append(seen)
    return found


def test_it_is_kept_without_outputs_and_each_cell_has_a_name():
    assert [cell for cell in cells() if cell.get("outputs") or cell.get("execution_count")] == []
    names = [cell["id"] for cell in cells()]
    assert len({*names}) == len(names)


def test_each_thread_gets_the_answer_to_its_own_picture(shown):
    assert shown[2]["text"] == "400 (3, 224, 224) True\n"


def rows(html: str) -> list[list[str]]:
    found = [
        re.findall(r"<t[hd]>(.*?)</t[hd]>", row) for row in re.findall(r"<tr>(.*?)</tr>", html)
    ]
    return [row for row in found if row]


def test_pipeline_and_configuration_show_their_graph(shown):
    for cell in shown[:2]:
        assert "flowchart LR" in cell["text/html"]
        assert "main (2 instances)" in cell["text/html"]
        assert not re.search(r"<script|(?:href|src)=", cell["text/html"])


def test_the_tables_count_the_requests(shown):
    heading, node, instances, *each = rows(shown[3]["text/html"])
    counts = dict(zip(heading, node, strict=False))
    assert (counts["submitted"], counts["ok"], counts["failed"]) == ("400", "400", "0")
    batches = instances.index("batches")
    assert sum(int(row[batches]) for row in each) == int(counts["batches"]) < 400


def test_the_plot_is_drawn_of_every_request(shown):
    assert "image/png" in shown[4]
    bars = re.findall(r"\((\d+), (\d+)\)", shown[-1]["text"])
    assert sum(int(size) * int(batches) for size, batches in bars) == 400


def test_the_wrong_request_fails_alone_and_is_told_why(shown):
    error, kept = shown[5]["text"].rsplit("\n", 2)[:2]
    assert "DecodeMat" in error
    assert kept == "True"
