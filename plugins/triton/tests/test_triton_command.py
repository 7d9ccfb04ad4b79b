"""headrace triton: the files that it writes serve as the repository does."""

from __future__ import annotations

import re

import numpy as np
import pytest
from distributions import tomllib
from typer.testing import CliRunner

from headrace_cli.app import app
from headrace_models import Models
from headrace_serve.models.entries import read_entries, read_models
from headrace_triton.repository import tables_of

ONNX = """name: "add"
backend: "onnxruntime"
max_batch_size: 8
input [ { name: "A" data_type: TYPE_FP32 dims: [4] }, { name: "B" data_type: TYPE_FP32 dims: [4] } ]
output { name: "SUM" data_type: TYPE_FP32 dims: [4] label_filename: "names.txt" }
instance_group { kind: KIND_CPU count: 2 }
dynamic_batching { max_queue_delay_microseconds: 500 preferred_batch_size: 4 }
"""
BOTH = """platform: "ensemble"
max_batch_size: 8
input { name: "X" data_type: TYPE_FP32 dims: [4] }
output { name: "Y" data_type: TYPE_FP32 dims: [4] }
ensemble_scheduling { step { model_name: "add" model_version: -1
  input_map { key: "A" value: "X" } input_map { key: "B" value: "X" } output_map { key: "SUM" value: "Y" } } }
"""


def run(*arguments):
    return CliRunner().invoke(app, ["triton", *map(str, arguments)])


@pytest.fixture
def written(repository, tmp_path):
    repository.write("add", ONNX)
    (repository.folder / "add" / "names.txt").write_text("a\nb\nc\nd\n")
    repository.configure("both", BOTH, "1")
    found = run(repository.folder, "-o", tmp_path / "served")
    assert (found.exit_code, found.stdout) == (0, f"{tmp_path / 'served' / 'serving.toml'}\n")
    assert re.search(r"warning: .*add/config\.pbtxt:7:\d+: `preferred_batch_size`", found.stderr)
    return tmp_path / "served"


@pytest.mark.first("a repository of Triton is served as it is")
def test_the_files_hold_what_the_repository_stands_for(written, repository):
    theirs = tables_of(repository.folder)["models"]
    ours = read_models([], str(written / "serving.toml"))
    assert {*ours} == {*theirs} == {"add:1", "both:1"}
    for name, entry in theirs.items():
        pipeline = tomllib.loads(
            (written / name.replace(":", "/")).with_suffix(".toml").read_text()
        )
        model = pipeline.pop("model", None)
        assert pipeline == {key: one for key, one in entry["config"].items() if key != "model"}
        if model is not None:
            there = written / name.partition(":")[0] / model
            assert there.resolve() == repository.folder / "add" / "1" / "model.onnx"
        for key in ("inputs", "outputs", "decoupled"):
            assert ours[name].get(key) == entry.get(key)
    entries, _ = read_entries(ours)
    assert entries["add", "1"].labels == {"SUM": ["a", "b", "c", "d"]}


@pytest.mark.first("a repository of Triton is served as it is")
def test_the_files_run(written):
    config = {"add": str(written / "add" / "1.toml"), "both": str(written / "both" / "1.toml")}
    given = np.ones((2, 4), np.float32)
    with Models(config) as models:
        found = models("both", {"X": given, "request_size": 2})["result"]
    np.testing.assert_array_equal(found["Y"], 2 * given)


def test_each_line_names_the_line_that_it_comes_from(written):
    origin = {
        "backend": 2,
        "max": 3,
        "inputs": 4,
        "outputs": 5,
        "instance_num": 6,
        "device": 6,
        "batching_timeout": 7,
    }
    lines = (written / "add" / "1.toml").read_text().splitlines()
    for key, number in origin.items():
        (line,) = [one for one in lines if one.startswith(f"{key} = ")]
        assert line.endswith(f"  # add/config.pbtxt:{number}")


def test_nothing_is_written_over_or_for_nothing(written, repository, tmp_path):
    def refused(*arguments):
        found = run(*arguments)
        assert found.exit_code == 2
        return found.stderr

    new = tmp_path / "new"
    assert "it is there already" in refused(repository.folder, "-o", written)
    assert "there is no such folder" in refused(tmp_path / "nothing", "-o", new)
    (tmp_path / "empty").mkdir()
    assert "there is no model in it" in refused(tmp_path / "empty", "-o", new)
    repository.write("wrong", "x: 1")
    assert "wrong/config.pbtxt:1:1" in refused(repository.folder, "-o", new)
    assert not new.exists()
