"""A trace is opened in a real Chromium, by the code of its tracing page, which TensorBoard has as well.

That code is in the package torch-tb-profiler; only its model is used, which reads and judges a trace. The test is
skipped where Chromium or that package is not installed.
"""

from __future__ import annotations

import base64
import importlib.util
import json
import re
import shutil
import subprocess
import time
from collections import Counter
from pathlib import Path

import pytest

import headrace

CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)
VIEWER = importlib.util.find_spec("torch_tb_profiler")

pytestmark = [
    pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed"),
    pytest.mark.skipif(VIEWER is None, reason="torch-tb-profiler is not installed"),
]

# The tracing page draws with elements that browsers no longer have; reading a trace needs none of them.
STUBS = """
document._currentScript = {ownerDocument: document};
document.registerElement = name => function () { return document.createElement(name); };
window.Polymer = () => function () {};
Polymer.DomModule = {import() { return {querySelector() { return null; }}; }};
Polymer.dom = one => one;
Polymer.Base = {};
Polymer.Class = () => function () {};
"""

READ = """
document.addEventListener("DOMContentLoaded", () => {
  const options = new tr.importer.ImportOptions();
  options.showImportWarnings = false;
  const model = new tr.Model();
  const text = document.getElementById("trace").textContent;
  new tr.importer.Import(model, options).importTraces([text]);
  const slices = [];
  for (const process of model.getAllProcesses())
    for (const thread of Object.values(process.threads))
      for (const one of thread.sliceGroup.slices)
        slices.push([one.category, one.title, one.parentSlice ? one.parentSlice.category : null]);
  const found = {
    slices,
    processes: model.getAllProcesses().map(one => one.name),
    arrows: model.flowEvents.map(one => [one.startSlice.category, one.endSlice.category]),
    warnings: model.importWarnings.map(one => one.message),
  };
  document.body.textContent = "FOUND" + btoa(JSON.stringify(found)) + "END";
});
"""


def opened(trace: Path, folder: Path) -> dict:
    """Give what Chromium's tracing page reads in a trace."""
    viewer = Path(VIEWER.origin).parent / "static" / "trace_viewer_full.html"
    text = viewer.read_text(encoding="utf-8")
    somewhere = text.index("exportTo")
    start, end = text.rindex("'use strict';", 0, somewhere), text.index("</script>", somewhere)
    data = trace.read_text(encoding="utf-8").replace("<", "\\u003c")
    page = folder / "page.html"
    page.write_text(
        '<!DOCTYPE html><meta charset="utf-8">'
        f'<script id="trace" type="application/json">{data}</script>'
        f"<script>{STUBS}</script><script>{text[start:end]}</script><script>{READ}</script>",
        encoding="utf-8",
    )
    command = [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
    more = [f"--user-data-dir={folder / 'profile'}", "--virtual-time-budget=60000", "--dump-dom"]
    shown = subprocess.run(
        [*command, *more, page.as_uri()], capture_output=True, text=True, check=True, timeout=100
    ).stdout
    found = re.search(r"FOUND([\w+/=]+)END", shown)
    assert found, "the tracing page could not read the trace"
    return json.loads(base64.b64decode(found[1]))


class Reporting(headrace.Backend):
    """Reports a span of a device."""

    max = 4

    def init(self, options, context):
        self.span = context.span

    def forward(self, batch):
        now = time.monotonic()
        self.span("copy in", now, now + 1e-6, "cuda:0")
        for request in batch:
            request["result"] = request["data"]


def test_chromium_reads_a_trace_whole_and_without_a_warning(tmp_path):
    headrace.register("Reporting", Reporting, replace=True)
    path = tmp_path / "trace.json"
    config = {
        "a": {"backend": "S[Identity,Reporting]", "max": 4, "instance_num": 2, "next": "b"},
        "b": {"backend": "BackgroundThread[Identity]", "max": 4},
        "global": {"probes": [f'Trace("{path}")']},
    }
    with headrace.pipe(config) as pipe:
        pipe([{"data": k} for k in range(40)])
    events = json.loads(path.read_text(encoding="utf-8"))["traceEvents"]
    found = opened(path, tmp_path)
    assert found["warnings"] == []
    assert sorted(found["processes"]) == ["devices", "requests of a", "requests of b", "threads"]
    written = Counter(one["cat"] for one in events if one["ph"] == "X")
    assert Counter(kind for kind, _, _ in found["slices"]) == written
    parents = {(kind, parent) for kind, _, parent in found["slices"]}
    assert parents <= {
        *(("request", None), ("queue", "request"), ("run", "request"), ("batch", None)),
        *(("element", "batch"), ("element", "element"), ("element", None), ("device", None)),
    }
    assert len(found["arrows"]) == 80
    assert {end for _, end in found["arrows"]} <= {"batch", "element"}
