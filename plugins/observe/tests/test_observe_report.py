"""``headrace observe report``: whole by itself, with every figure, and nothing that is no figure of ours."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest
from typer.testing import CliRunner

from headrace_cli.app import app


def run(*args):
    return CliRunner().invoke(app, [str(arg) for arg in args])


class Texts(HTMLParser):
    """The cells of all tables, and what a browser would fetch."""

    def __init__(self):
        super().__init__()
        self.cells, self.fetched, self.open = [], [], []

    def handle_starttag(self, tag, attrs):
        self.open.append(tag)
        self.fetched += [v for k, v in attrs if k in ("src", "href") and not v.startswith("#")]
        self.fetched += [tag] if tag in ("script", "link", "iframe") else []

    def handle_data(self, data):
        if self.open and self.open[-1] == "td":
            self.cells.append(data)


def test_a_report_holds_graph_figures_frontier_and_environment(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    short = ["--data", "uint8:4", "--clients", "2", "--seconds", "0.1", "--warm-up", "0", "--json"]
    (tmp_path / "bench.json").write_text(run("bench", "S[Identity,Identity]", *short).stdout)
    args = ["--goal", "max throughput", "--range", "max=1,2", "--trials", "2"]
    (tmp_path / "tune.json").write_text(run("tune", "Identity", *args, *short).stdout)
    events = [
        {"ph": "M", "name": "process_name", "pid": 1, "tid": 0, "args": {"name": "threads"}},
        *({"ph": "X", "cat": "batch", "name": "b<1>", "pid": 1, "tid": 1, "ts": k, "dur": 2000 * k}
          for k in (1, 2, 3)),
    ]  # fmt: skip
    (tmp_path / "trace.json").write_text(json.dumps({"traceEvents": events}))
    done = run(
        "observe", "report", "bench.json", "tune.json", "trace.json", "-o", "r.html", "--json"
    )
    assert done.exit_code == 0, done.output
    size = (tmp_path / "r.html").stat().st_size
    assert json.loads(done.stdout) == {"report": "r.html", "bytes": size}
    page = (tmp_path / "r.html").read_text()
    read = Texts()
    read.feed(page)
    assert read.fetched == []
    (bench,) = json.loads((tmp_path / "bench.json").read_text())["configurations"]
    assert f"{bench['points'][0]['throughput_rps']:.1f}" in read.cells
    # Two graphs; of bench the latencies and the load; of tune the frontier.
    assert page.count("<svg") == 2 + 2 + 1
    assert "S[Identity,Identity]" in page
    assert "headrace-observe" in read.cells
    row = read.cells[read.cells.index("b<1>") :][:6]
    assert row == ["b<1>", "3", "0.012", "4.000", "4.000", "6.000"]
    for clock in (r"from the call of pipe\(request\)", "each slice of the trace"):
        assert re.search(f"The clock: {clock}", page)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "it is no JSON"),
        ("[" * 100_000, "it is no JSON"),
        ('{"a": 1}', "no report can be made of it"),
        ('{"trace": "/t.json"}', "Name the trace itself: /t.json"),
        ('{"kind": "bench"}', "it is incomplete"),
    ],
)
def test_what_is_no_result_is_refused_and_nothing_is_written(tmp_path, text, message):
    file = tmp_path / "x.json"
    file.write_text(text)
    done = run("observe", "report", file, "-o", tmp_path / "r.html")
    assert done.exit_code == 2
    assert message in done.stderr
    assert [one.name for one in tmp_path.iterdir()] == ["x.json"]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_a_page_on_a_full_disk_is_one_line_with_its_name_even_if_stdout_is_there_too(tmp_path):
    (tmp_path / "trace.json").write_text('{"traceEvents": []}')
    args = ("observe", "report", tmp_path / "trace.json", "-o", "/dev/full", "--json")
    with Path("/dev/full").open("w", encoding="utf-8") as full:
        done = subprocess.run(
            [sys.executable, "-m", "headrace", *args],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    said = "error: reading or writing failed: No space left on device: /dev/full\n"
    assert (done.returncode, done.stderr) == (1, said)
