"""The page for users of Triton: its client gets equal answers from both, and each name of its tables is one."""

from __future__ import annotations

import json
import re
from pathlib import Path
from urllib.request import urlopen

import numpy as np
import pytest
from pages import Page, run

from headrace_models import Models
from headrace_serve import Server
from headrace_serve.models.entries import read_models

ROOT = Path(__file__).resolve().parents[1]
PAGE = Page("docs/from_triton.md")
TEXT = PAGE.text
ANSWER = "[[10.0, 10.0], [3.0, 3.0]]\n"
"""Worked out by hand: (-1.5, -0.5, 0.5, 1.5) and (-0.25, -0.25, -0.25, 0.75) by (0, 2, 4, 6) and (1, 3, 5, 7)."""


@pytest.fixture
def folder(tmp_path) -> Path:
    PAGE.write(tmp_path)
    (tmp_path / "repository" / "scores" / "1").mkdir()
    return tmp_path


def asked(folder: Path, port: int) -> str:
    """Return what the client of the page prints."""
    return run(PAGE.command("client.py").replace("8000", str(port)), folder)


def rows(heading: str) -> list[list[str]]:
    return Page("docs/from_triton.md", heading).rows()


def test_the_files_that_the_command_writes_serve_the_same(folder, monkeypatch):
    pytest.importorskip("tritonclient.http")
    monkeypatch.chdir(folder)
    words = "headrace triton repository -o served"
    assert f"`{words}`" in TEXT
    run(words, folder)
    with Server(read_models([], "served/serving.toml"), port=0) as server:
        assert asked(folder, int(server.url.rpartition(":")[2])) == ANSWER


def test_the_models_run_in_a_program_too(folder, monkeypatch):
    monkeypatch.chdir(folder)
    rows = np.array([[1, 2, 3, 4], [0, 0, 0, 1]], np.float32)
    assert '`headrace_models.Models("repository")`' in TEXT
    with Models("repository") as models:
        found = models("scores", {"FEATURES": rows, "request_size": 2})["result"]["SCORES"]
    assert f"{found.tolist()}\n" == ANSWER


def test_the_configuration_is_that_of_the_repository(folder, monkeypatch):
    monkeypatch.chdir(folder)
    with (
        Server("repository", port=0) as server,
        urlopen(f"{server.url}/v2/models/scores/config", timeout=300) as answer,
    ):
        ours = json.load(answer)
    theirs = PAGE.files["repository/scores/config.pbtxt"]
    assert f"max_batch_size: {ours['max_batch_size']}\n" in theirs
    for port in (*ours["input"], *ours["output"]):
        assert (
            f'name: "{port["name"]}" data_type: {port["data_type"]} dims: {port["dims"]}' in theirs
        )


def fields_of_triton() -> tuple[set[str], set[str]]:
    """Return the keys of config.pbtxt, and those below one of them, as Triton's own messages have them."""
    messages = pytest.importorskip("tritonclient.grpc.model_config_pb2")
    fields = messages.ModelConfig.DESCRIPTOR.fields
    below = {
        f"{one.name}.{inner.name}"
        for one in fields
        if one.message_type is not None
        for inner in one.message_type.fields
    }
    return {one.name for one in fields}, below


def obeyed(kind: str) -> set[str]:
    """Return the fields of a message that mean something here."""
    from headrace_triton.schema import MESSAGES

    return {name for name, one in MESSAGES[kind].items() if one.row.mark == "obeyed"}


def test_every_key_that_is_obeyed_has_a_row_and_every_row_is_of_a_key():
    top, below = fields_of_triton()
    named = [
        name for row in rows("Keys of config.pbtxt") for name in re.findall(r"`([\w.]+)`", row[0])
    ]
    assert sorted({*named}) == sorted(named)
    assert {*named} - top - below == set()
    assert obeyed("ModelConfig") - {*named} == set()
    for whole, kind in (
        ("dynamic_batching", "DynamicBatching"),
        ("instance_group", "InstanceGroup"),
    ):
        assert {f"{whole}.{one}" for one in obeyed(kind)} - {*named} == set()


def schema() -> tuple[set[str], set[str]]:
    """Return the properties of a node and the words that are installed, as `headrace` tells them."""
    node = json.loads(run("headrace schema", ROOT))["$defs"]["node"]["properties"]
    from headrace._language.registry.discovery import CORE_BACKENDS, KNOWN_ELSEWHERE

    return {*node}, {*CORE_BACKENDS, *KNOWN_ELSEWHERE}


def test_every_key_and_word_of_ours_is_in_the_schema():
    from headrace_serve.models.entries import InputEntry, ModelEntry, OutputEntry

    for plugin in ("headrace_trt", "headrace_ort", "headrace_flow"):
        pytest.importorskip(plugin)
    node, words = schema()
    serving = {*InputEntry.model_fields, *OutputEntry.model_fields, *ModelEntry.model_fields}
    others = {"next", "map", "import", "priority"}
    said = []
    for _, ours, _ in rows("Keys of config.pbtxt"):
        for name in re.findall(r"`(\[?\w+\]?)`", ours):
            said.append(name)
            known = serving if name.startswith("[") else node | words | others
            assert name.strip("[]") in known, name
    assert len(said) > 25


def test_metrics_of_ours_are_those_of_the_probe():
    observe = ROOT / "plugins" / "observe" / "README.md"
    table = observe.read_text(encoding="utf-8").partition("| metric | labels |")[2]
    ours = re.findall(r"`(headrace_\w+)`", TEXT.partition("| metric of Triton |")[2])
    assert len(ours) >= 7
    assert [name for name in ours if f"`{name}`" not in table.partition("\n\n")[0]] == []


@pytest.mark.peers
def test_the_client_gets_the_same_from_triton(folder, triton_of):
    pytest.importorskip("tritonclient.http")
    with triton_of(folder) as (http, _, metrics):
        assert asked(folder, http) == ANSWER
        with urlopen(f"http://127.0.0.1:{metrics}/metrics", timeout=300) as answer:
            shown = answer.read().decode()
        theirs = re.findall(r"`(nv_inference_\w+)`", TEXT)
        assert [name for name in theirs if name not in shown] == []


NAMES = """
import json
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def initialize(self, args):
        found = {}
        for name in dir(pb_utils):
            one = getattr(pb_utils, name)
            found[name] = [*dir(one)] if isinstance(one, type) else []
        with open("FILE", "w") as file:
            json.dump(found, file)
    def execute(self, requests):
        return None
"""


@pytest.mark.peers
def test_each_name_that_triton_gives_to_a_model_is_here_or_refused_by_name(tmp_path, triton_of):
    from headrace_triton.python import interface
    from headrace_triton.python.source import NOT_HERE

    folder, written = tmp_path / "repository" / "names" / "1", tmp_path / "names.json"
    folder.mkdir(parents=True)
    (folder / "model.py").write_text(NAMES.replace("FILE", str(written)), encoding="utf-8")
    ports = 'input [{ name: "A" data_type: TYPE_FP32 dims: [1] }]'
    config = f'backend: "python"\n{ports}\n{ports.replace("input", "output")}\n'
    (folder.parent / "config.pbtxt").write_text(config, encoding="utf-8")
    with triton_of(tmp_path):
        theirs = json.loads(written.read_text(encoding="utf-8"))
    names = [one for one in theirs if not one.startswith("_") and one not in NOT_HERE]
    assert {"InferenceRequest", "is_model_ready"} <= {*names}
    missing = [
        f"{name}.{inner}"
        for name in names
        for inner in theirs[name]
        if not inner.startswith("_") and not hasattr(getattr(interface, name), inner)
    ]
    assert [one for one in missing if not one.startswith("TritonModelException.")] == []
