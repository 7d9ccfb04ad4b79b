"""The benchmarks with torch run, in their smallest form, and write what they say; no time is looked at."""

import json
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]


def test_a_hunt_looks_at_every_answer(tmp_path, run_here):
    hunt = ("benchmarks.gpu_hunt", "--device", "cpu", "--clients", "2", "--plugin", "torch")
    printed = run_here(*hunt, "--requests", "80", cwd=ROOT)
    assert re.findall(r"(\d+) of \d\d wrong", printed) == ["0"] * 4
    printed = run_here(*hunt, "--requests", "40", "--compile", "false", cwd=ROOT)
    assert re.search(r"compile = false, 1 instance\(s\): 0 of 4\d wrong", printed)


def test_clients_of_a_gpu_have_rates_and_latencies_of_all_sides(tmp_path, run_here):
    pytest.importorskip("torchvision")
    pytest.importorskip("onnx")
    file = tmp_path / "figures.json"
    clients = ("benchmarks.gpu_clients", "--device", "cpu", "--load", "4x2", "--quick")
    run_here(*clients, "--json", str(file), cwd=ROOT)
    figures = json.loads(file.read_text(encoding="utf-8"))
    assert set(figures) == {"environment", "run", "kept"}
    rates = [figure for figure in figures["kept"] if figure["unit"] == "1/s"]
    ours = {figure["what"].split(": ")[0].split(", ")[-1] for figure in rates}
    decode = {"clients decode", "four words decode", "one word decodes"}
    assert ours == {"pipe()", "list", "rows", "submit", *decode}
    assert all(figure["ratio"] > 0 for figure in rates)
    named = "pipe(): 99th percentile of the latency"
    late = [figure for figure in figures["kept"] if figure["what"].endswith(named)]
    beside = ["queue by hand, an event per request", "queue by hand"]
    assert [figure.get("beside") for figure in late] == [None, *beside] * 2
    for alone, *compared in (late[:3], late[3:]):
        for figure in compared:
            assert figure["value"] == alone["value"]
            assert figure["ratio"] == pytest.approx(figure["value"] / figure["other"], rel=1e-2)
