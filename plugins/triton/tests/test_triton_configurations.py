"""A folder of configurations as people write them: each is served, or refused for the reason in its first line."""

from __future__ import annotations

from pathlib import Path

import pytest

import headrace
from headrace.errors import ConfigError
from headrace_triton.repository import read_repository, tables_of

FILES = sorted((Path(__file__).parent / "configurations").glob("*.pbtxt"))
MODELS = ("model.onnx", "second.onnx", "model.plan", "model.pt", "model.py")


def write(folder, path):
    (folder / path.stem / "1").mkdir(parents=True)
    for file in MODELS:
        (folder / path.stem / "1" / file).write_bytes(b"")
    (folder / path.stem / "labels.txt").write_text("".join(f"{n}\n" for n in range(10)))
    (folder / path.stem / "config.pbtxt").write_text(path.read_text(encoding="utf-8"))


@pytest.mark.parametrize("path", FILES, ids=[one.stem for one in FILES])
def test_a_configuration_is_served_or_refused_for_a_true_reason(tmp_path, path):
    said = path.read_text(encoding="utf-8").partition("\n")[0].removeprefix("# ")
    for one in {path, Path(__file__).parent / "configurations" / "image_classifier.pbtxt"}:
        write(tmp_path, one)
    if said != "served":
        with pytest.raises(ConfigError) as caught:
            tables_of(tmp_path)
        assert said.removeprefix("refused: ") in str(caught.value)
        (problem, *_) = caught.value.problems
        assert problem.file == str(tmp_path / path.stem / "config.pbtxt")
        assert problem.line is not None
        return
    entry = tables_of(tmp_path)["models"][f"{path.stem}:1"]
    word = entry["config"]["backend"]
    known = {name for one in headrace.plugins.installed() for name in one.backends}
    if {*word.replace("]", "[").split("[")} - {""} <= {*known, "StateFul(sequence_id)"}:
        headrace.PipelineConfig.load(entry["config"])


def test_most_of_them_are_served():
    served = [one for one in FILES if one.read_text(encoding="utf-8").startswith("# served\n")]
    assert len(served) / len(FILES) > 0.6
    assert len(FILES) > 25


@pytest.mark.parametrize(
    ("name", "node"),
    [
        (
            "image_classifier",
            {"max": 16, "instance_num": 2, "device": "cpu", "batching_timeout": 0.2},
        ),
        (
            "detector_on_gpus",
            {
                "device": ["cuda:0", "cuda:0", "cuda:1", "cuda:1"],
                "instance_num": 4,
                "queue_size": 64,
                "queue_full": "reject",
                "timeout_ms": 50,
            },
        ),
        ("without_batches", {"max": 1, "unbatched": "all"}),
        ("another_file", {"backend": "OnnxTensor"}),
        ("reshaped", {"backend": "TritonTensors[OnnxTensor]"}),
        (
            "sequence_with_state",
            {"idle_s": 5, "keep": {"after": "before"}, "outputs": ["y", "after"]},
        ),
        ("python_plain", {"backend": "Process[TritonPython]", "max": None}),
    ],
)
def test_each_field_becomes_its_key(tmp_path, name, node):
    write(tmp_path, Path(__file__).parent / "configurations" / f"{name}.pbtxt")
    entry = tables_of(tmp_path)["models"][f"{name}:1"]
    found = {key: entry["config"].get(key) for key in node}
    assert found == node
    file = Path(entry["config"]["model"])
    assert (file.parent.name, file.parent.parent) == ("1", tmp_path / name)


@pytest.mark.parametrize(
    ("name", "field"),
    [
        ("tokens_of_any_length", "`optimization` is left out"),
        ("tokens_of_any_length", "'intra_op_thread_count' is left out"),
        ("detector_on_gpus", "`preferred_batch_size` is left out"),
        ("detector_on_gpus", "`default_timeout_microseconds` also counts the run"),
        ("priorities", "`default_priority_level` is left out"),
        ("rate_limited", "`rate_limiter` is left out"),
        ("warmed", "`model_warmup` is left out"),
        ("rate_limited", "`response_cache` is left out"),
    ],
)
def test_what_means_something_else_is_a_warning_with_its_place(tmp_path, name, field):
    write(tmp_path, Path(__file__).parent / "configurations" / f"{name}.pbtxt")
    (found,) = [one for one in read_repository(tmp_path)[name].warnings if field in one.message]
    line = Path(found.file).read_text(encoding="utf-8").splitlines()[found.line - 1]
    assert field.split("`" if "`" in field else "'")[1] in line
