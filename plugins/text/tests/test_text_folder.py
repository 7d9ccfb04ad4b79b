"""A folder of sentence-transformers, as a pipeline and behind OpenAI's routes, against ONNX Runtime and numpy alone."""

from __future__ import annotations

import base64
import json
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest

import headrace
from headrace import errors

pytest.importorskip("tokenizers")
ort = pytest.importorskip("onnxruntime")
EXAMPLE = Path(__file__).parents[3] / "examples" / "embeddings"
sys.path.insert(0, str(EXAMPLE))
try:
    prepare = pytest.importorskip("prepare")
finally:
    sys.path.remove(str(EXAMPLE))
    sys.modules.pop("prepare", None)

WIDTH = 64


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    return prepare.build(tmp_path_factory.mktemp("encoder") / "small", 2, WIDTH, 512)


@pytest.fixture
def folder(built, tmp_path):
    """A copy whose files a test may change."""
    return Path(shutil.copytree(built, tmp_path / "small"))


def change(path, **values):
    known = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps({**known, **values}))


def texts(count, seed=0):
    random = np.random.default_rng(seed)
    return [
        " ".join(f"w{word}" for word in random.integers(0, 500, length))
        for length in np.exp(random.uniform(np.log(2), np.log(100), count)).astype(int)
    ]


def alone(folder, text):
    """Return the vector of a text and its tokens, by the libraries alone."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.enable_truncation(256)
    ids = np.array([tokenizer.encode(text).ids], np.int64)
    session = ort.InferenceSession(str(folder / "onnx" / "model.onnx"))
    (rows,) = session.run(None, {"input_ids": ids, "attention_mask": np.ones_like(ids)})
    mean = rows[0].astype(np.float64).mean(axis=0)
    return mean / np.linalg.norm(mean), ids.shape[1]


def test_vectors_are_those_of_onnx_runtime_alone_whatever_the_batch_is(folder):
    given = texts(24)
    with headrace.pipe(folder) as pipe:
        single = [pipe({"data": one})["result"] for one in given]
        together = [{"data": one} for one in given]
        pipe(together)
    for text, one, request in zip(given, single, together, strict=True):
        wanted, tokens = alone(folder, text)
        assert one.dtype == np.float32
        assert np.allclose(one, wanted, atol=1e-5)
        assert request["tokens"] == tokens
        assert np.abs(one - request["result"]).max() <= 1e-6


def test_the_files_say_length_prompt_padding_and_pooling(folder):
    change(folder / "sentence_bert_config.json", max_seq_length=16)
    change(folder / "config.json", pad_token_id=3)
    prompts = {"query": "find $ {x}: ", "document": ""}
    change(
        folder / "config_sentence_transformers.json", prompts=prompts, default_prompt_name="query"
    )
    pooling = {"pooling_mode_mean_tokens": False, "pooling_mode_cls_token": True}
    change(folder / "1_Pooling" / "config.json", **pooling)
    modules = json.loads((folder / "modules.json").read_text())
    (folder / "modules.json").write_text(json.dumps(modules[:2]))
    expression = headrace.PipelineConfig.load(folder).plan().nodes["encode"].expression
    assert f"Pool(cls,width={WIDTH})" in expression
    assert "Normalize" not in expression
    with headrace.pipe(folder) as pipe:
        requests = [{"data": "w1"}, {"data": "w1 " * 20}]
        pipe(requests)
    counts = [one["tokens"] for one in requests]
    assert counts == [alone(folder, "find $ {x}: w1")[1], 16]
    assert abs(np.linalg.norm(requests[0]["result"]) - 1) > 0.1


@pytest.mark.parametrize(
    ("file", "values", "words"),
    [
        ("1_Pooling/config.json", {"pooling_mode_weightedmean_tokens": True}, "weightedmean"),
        ("1_Pooling/config.json", {"pooling_mode_mean_tokens": False}, "nothing"),
        ("1_Pooling/config.json", {"pooling_mode_max_tokens": True}, "max_tokens"),
        ("sentence_bert_config.json", {"do_lower_case": True}, "do_lower_case"),
        ("config_sentence_transformers.json", {"default_prompt_name": "query"}, "'query'"),
    ],
)
def test_what_has_no_backend_is_refused_by_name(folder, file, values, words):
    change(folder / file, **values)
    with pytest.raises(errors.ConfigError, match=words) as caught:
        headrace.PipelineConfig.load(folder)
    assert caught.value.problems[0].file == str(folder / file)


def test_an_unknown_module_and_missing_files_are_refused_by_name(folder):
    modules = json.loads((folder / "modules.json").read_text())
    dense = {"type": "sentence_transformers.models.Dense", "path": "3_Dense"}
    (folder / "modules.json").write_text(json.dumps([*modules, dense]))
    with pytest.raises(errors.ConfigError, match=r"models\.Dense"):
        headrace.PipelineConfig.load(folder)
    (folder / "modules.json").write_text(json.dumps(modules[:1]))
    with pytest.raises(errors.ConfigError, match="no module Pooling"):
        headrace.PipelineConfig.load(folder)
    (folder / "modules.json").write_text("{")
    with pytest.raises(errors.ConfigError, match="cannot be read"):
        headrace.PipelineConfig.load(folder)
    (folder / "tokenizer.json").unlink()
    with pytest.raises(errors.ConfigError, match=r"no tokenizer\.json"):
        headrace.PipelineConfig.load(folder)
    (folder / "onnx" / "model.onnx").unlink()
    with pytest.raises(errors.ConfigError, match=r"no onnx/model\.onnx"):
        headrace.PipelineConfig.load(folder)


def test_the_folder_answers_embeddings_and_tells_the_width(folder):
    serve = pytest.importorskip("headrace_serve")
    httpx = pytest.importorskip("httpx")
    given = texts(6, seed=1)
    with serve.Server([str(folder)], port=0, apis=["openai"]) as server:
        body = {"model": "small", "input": given, "encoding_format": "base64"}
        made = httpx.post(f"{server.url}/v1/embeddings", json=body, timeout=60).json()
        tokens = {"model": "small", "input": [[2, 7, 3], [2, 600, 3]]}
        refused = httpx.post(f"{server.url}/v1/embeddings", json=tokens, timeout=60)
        told = httpx.get(f"{server.url}/v2/models/small", timeout=60).json()
    wanted = [alone(folder, one) for one in given]
    for row, (vector, _) in zip(made["data"], wanted, strict=True):
        found = np.frombuffer(base64.b64decode(row["embedding"]), np.float32)
        assert np.allclose(found, vector, atol=1e-5)
    assert made["usage"]["prompt_tokens"] == sum(count for _, count in wanted)
    assert told["outputs"] == [{"name": "result", "datatype": "FP32", "shape": [-1, WIDTH]}]
    assert refused.status_code == 400
    assert "from 0 to 511" in refused.json()["error"]["message"]
