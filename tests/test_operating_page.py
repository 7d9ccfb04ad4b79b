"""What docs/operating.md says of services around a pipeline: its files are read as these read them, its alarms compared with a scrape."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import signal
import subprocess
import sys
import urllib.request
from importlib.metadata import metadata
from pathlib import Path

import pytest
import yaml
from pages import ROOT, Page
from processes import run_process
from prometheus_client.parser import text_string_to_metric_families

from headrace_serve import Server

pytestmark = pytest.mark.slow

PAGE = Page("docs/operating.md")
FILES = PAGE.files


SERVICE = """
import os, signal, sys
from pathlib import Path
import headrace
from headrace_models import Models

class Weigh(headrace.Backend):
    class Options(headrace.Options):
        model: headrace.FilePath

    def init(self, options, context):
        self.weights = options.model.read_text()

    def forward(self, batch):
        for request in batch:
            request["result"] = self.weights

headrace.register(Weigh)
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGHUP])
with Models({"weigh": {"backend": "Weigh", "model": "models/net.onnx"}}) as models:
    Path("server.pid").write_text(str(os.getpid()))
    print(models("weigh", {"data": 0})["result"], flush=True)
    signal.sigwait([signal.SIGHUP])
    before = models("weigh", {"data": 0})["result"]
    models.update("weigh")
    print(before, models("weigh", {"data": 0})["result"])
"""


@pytest.mark.skipif(not hasattr(signal, "SIGHUP"), reason="the system has no SIGHUP")
def test_weights_that_are_exchanged_as_the_page_says_serve_after_the_update_and_not_before(
    tmp_path,
):
    steps = PAGE.block("sh", "kill -HUP")
    (tmp_path / "models").mkdir()
    (tmp_path / "trained").mkdir()
    (tmp_path / "models" / "net.onnx").write_text("old")
    (tmp_path / "trained" / "net.onnx").write_text("new")
    process = subprocess.Popen(
        [sys.executable, "-c", SERVICE], cwd=tmp_path, stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "old\n"
        subprocess.run(
            ["sh", "-ec", steps.replace("/mnt/trained", "trained")], cwd=tmp_path, check=True
        )
        assert process.communicate(timeout=300)[0] == "old new\n"
    finally:
        process.kill()
        process.wait()
    assert [path.name for path in (tmp_path / "models").iterdir()] == ["net.onnx"]


BOARD = (ROOT / "docs" / "grafana" / "headrace.json").read_text(encoding="utf-8")


@pytest.mark.parametrize("text", [BOARD, "".join(PAGE.blocks("yaml"))], ids=["dashboard", "alarms"])
def test_nodes_of_one_name_in_several_models_of_a_server_are_told_apart(text):
    models = {"a": {"backend": "Identity"}, "b:3": {"backend": "Identity"}}
    with (
        Server(models, port=0) as server,
        urllib.request.urlopen(f"{server.url}/metrics", timeout=60) as answer,
    ):
        found = text_string_to_metric_families(answer.read().decode())
        samples = [sample for family in found for sample in family.samples]
    assert set(re.findall(r"headrace_\w+", FILES["alarms.yml"])) <= {s.name for s in samples}
    one, other = (s.labels for s in samples if s.name == "headrace_requests_waiting")
    apart = {name for name in one if one[name] != other[name]}
    assert one["node"] == other["node"]
    groups = [
        *re.findall(r"(?:by|on) \(([^)]*)\)", text),
        *(
            " ".join(re.findall(r"{{(\w+)}}", legend))
            for legend in re.findall(r"legendFormat.*", text)
        ),
    ]
    assert len(groups) >= 4
    assert [group for group in groups if not apart <= set(re.findall(r"\w+", group))] == []


def test_prometheus_finds_what_it_is_told_to_scrape_and_its_alarms(tmp_path):
    text = FILES["prometheus.yml"].replace("# authorization", "authorization")
    told = yaml.safe_load(text)
    assert [name for name in told["rule_files"] if name in FILES] == ["alarms.yml"]
    (scraped,) = told["scrape_configs"]
    assert set(scraped) == {"job_name", "static_configs", "authorization"}  # all else as by default
    (port,) = re.findall(r"METRICS_PORT:-(\d+)", FILES["thumbs.toml"])
    assert scraped["static_configs"] == [{"targets": [f"127.0.0.1:{port}"]}]
    (tmp_path / scraped["authorization"]["credentials_file"]).write_text("secret")
    digest = hashlib.sha256(b"secret").hexdigest()
    keys = tmp_path / "keys.toml"
    keys.write_text(f'[scraper]\nsha256 = "{digest}"\nrights = ["describe"]\n')
    with Server({"m": {"backend": "Identity"}}, port=0, keys=keys) as server:
        asked = urllib.request.Request(
            f"{server.url}/metrics", headers={"Authorization": "Bearer secret"}
        )
        with urllib.request.urlopen(asked, timeout=60) as answer:
            assert b"\nheadrace_ready{" in answer.read()
    if promtool := shutil.which("promtool"):
        (tmp_path / "prometheus.yml").write_text(text)
        (tmp_path / "alarms.yml").write_text(FILES["alarms.yml"])
        check = [promtool, "check", "config", tmp_path / "prometheus.yml"]
        done = run_process(check)
        assert done.returncode == 0, done.stdout + done.stderr


def test_grafana_is_told_of_a_source_that_the_dashboard_takes():
    (source,), (provider,) = (
        yaml.safe_load(FILES[f"/etc/grafana/provisioning/{kind}/headrace.yml"])[given]
        for kind, given in (("datasources", "datasources"), ("dashboards", "providers"))
    )
    wanted = [
        one["query"]
        for one in json.loads(BOARD)["templating"]["list"]
        if one["type"] == "datasource"
    ]
    assert wanted == [source["type"]]
    assert provider["type"] == "file"
    assert Path(provider["options"]["path"]).is_absolute()


def test_the_extras_that_it_names_are_there_and_enough():
    head = PAGE.text.partition("\n## ")[0]
    installed = set(re.search(r"headrace-observe\[([\w,]+)\]", head)[1].split(","))
    others = re.search(r"`(\w+)` and `(\w+)` are two more extras", head).groups()
    assert installed.union(others) == {*metadata("headrace-observe").get_all("Provides-Extra")}
    assert {"plot", "simulate"} <= installed  # of --plot and of simulate, which follow
