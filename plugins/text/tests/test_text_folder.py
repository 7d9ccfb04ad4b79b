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


def refused(folder):
    with pytest.raises(errors.ConfigError) as caught:
        headrace.PipelineConfig.load(folder)
    return caught.value.problems


@pytest.mark.parametrize(
    ("file", "key", "value", "words"),
    [
        ("1_Pooling/config.json", "pooling_mode", "attention", "attention"),
        ("1_Pooling/config.json", "pooling_mode", ["mean", "attention"], "attention"),
        ("1_Pooling/config.json", "pooling_mode_mean_token", True, "not known"),
        ("sentence_bert_config.json", "max_seq_length", 0, "a number of 1 or more, got 0"),
        ("sentence_bert_config.json", "max_seq_length", "long", "a number of 1 or more"),
        ("sentence_bert_config.json", "transformer_task", "fill-mask", "fill-mask"),
        ("sentence_bert_config.json", "modality_config", {"image": {}}, "texts alone"),
        ("sentence_bert_config.json", "processor_kwargs", {"model_max_length": 4}, "transformers"),
        ("config_sentence_transformers.json", "default_prompt_name", "query", "'query'"),
        ("config_sentence_transformers.json", "prompts", ["a"], "texts by name"),
        ("config_sentence_transformers.json", "prompts", {"a": 1}, "texts by name"),
        ("config_sentence_transformers.json", "truncate_dim", 8, "not cut"),
        ("config_sentence_transformers.json", "model_type", "SparseEncoder", "SparseEncoder"),
        ("tokenizer_config.json", "tokenizer_class", "BertJapaneseTokenizer", "other tokens"),
        ("tokenizer_config.json", "tokenizer_class", "BertTokenizer", "no BertNormalizer"),
        ("config.json", "model_type", "bert", "no BertNormalizer"),
        ("tokenizer_config.json", "do_lower_case", False, "tokenizer.json has true"),
        ("tokenizer_config.json", "add_eos_token", False, "tokenizer.json has true"),
        ("tokenizer_config.json", "truncation_side", "middle", "There are: left, right"),
        ("tokenizer_config.json", "auto_map", {"AutoTokenizer": "x.py"}, "is not run"),
        ("tokenizer_config.json", "split_special_tokens", True, "not split"),
        ("tokenizer_config.json", "truncation_sid", "left", "Did you mean 'truncation_side'"),
    ],
)
def test_what_has_no_backend_is_refused_by_file_and_key(folder, file, key, value, words):
    change(folder / file, **{key: value})
    (problem,) = refused(folder)
    file = "tokenizer_config.json" if file == "config.json" else file
    assert problem.file == str(folder / file)
    assert problem.path in {key, "pooling_mode", "tokenizer_class"}
    assert words in problem.render()
    assert f'ignore = ["{problem.path}"]' in problem.render()


def test_the_operator_calls_a_key_or_a_file_harmless(folder):
    change(folder / "sentence_bert_config.json", of_tomorrow=1)
    (folder / "of_tomorrow.json").write_text("{}")
    assert {one.path for one in refused(folder)} == {"of_tomorrow", None}
    mine = folder.parent / "mine.toml"
    ignored = ["of_tomorrow", "of_tomorrow.json"]
    mine.write_text(f'extends = "small"\nignore = {ignored}\n')
    with headrace.pipe(mine) as pipe:
        assert pipe({"data": "w1"})["result"].shape == (WIDTH,)


def test_all_that_is_wrong_is_told_at_once(folder):
    change(folder / "tokenizer_config.json", truncation_side="middle", auto_map={"a": "b"})
    change(folder / "config_sentence_transformers.json", truncate_dim=8)
    assert len(refused(folder)) == 3


def test_a_folder_that_bounds_no_text_is_refused(folder):
    (folder / "sentence_bert_config.json").unlink()
    config = json.loads((folder / "config.json").read_text())
    del config["max_position_embeddings"]
    (folder / "config.json").write_text(json.dumps(config))
    (problem,) = refused(folder)
    assert problem.path == "max_seq_length"


@pytest.mark.parametrize(
    ("types", "words"),
    [
        (["Transformer", "Pooling", "Dense"], r"models\.Dense' has no backend here: its weights"),
        (["Transformer", "Pooling", "Other"], r"models\.Other' has no backend here"),
        (["Pooling", "Transformer"], "first module is no Transformer"),
        (["Transformer", "Normalize"], "stands before Pooling"),
        (["Transformer", "Pooling", "Pooling"], "behind another"),
        (["Transformer"], "no module Pooling"),
    ],
)
def test_modules_without_a_backend_or_in_another_order_are_refused(folder, types, words):
    library, path = "sentence_transformers.models", "1_Pooling"
    modules = [
        {"type": f"{library}.{one}", "path": path if one == "Pooling" else ""} for one in types
    ]
    (folder / "modules.json").write_text(json.dumps(modules))
    with pytest.raises(errors.ConfigError, match=words):
        headrace.PipelineConfig.load(folder)


def test_a_module_of_the_folders_own_code_is_refused(folder):
    modules = json.loads((folder / "modules.json").read_text())
    modules[0]["type"] = "custom_st.Transformer"
    (folder / "modules.json").write_text(json.dumps(modules))
    with pytest.raises(errors.ConfigError, match=r"custom_st\.Transformer"):
        headrace.PipelineConfig.load(folder)


def test_missing_and_broken_files_are_refused_by_name(folder):
    modules = (folder / "modules.json").read_text()
    (folder / "modules.json").write_text("{")
    with pytest.raises(errors.ConfigError, match="cannot be read"):
        headrace.PipelineConfig.load(folder)
    (folder / "modules.json").write_text("{}")
    with pytest.raises(errors.ConfigError, match="holds a JSON dict"):
        headrace.PipelineConfig.load(folder)
    (folder / "modules.json").write_text(modules)
    model = (folder / "onnx" / "model.onnx").read_bytes()
    for broken in (b"version https://git-lfs.github.com/spec/v1", model[:100]):
        (folder / "onnx" / "model.onnx").write_bytes(broken)
        with pytest.raises(errors.ConfigError, match=r"model\.onnx: it cannot be read"):
            headrace.PipelineConfig.load(folder)
    (folder / "tokenizer.json").unlink()
    with pytest.raises(errors.ConfigError, match=r"no tokenizer\.json"):
        headrace.PipelineConfig.load(folder)
    (folder / "onnx" / "model.onnx").unlink()
    with pytest.raises(errors.ConfigError, match=r"no onnx/model\.onnx"):
        headrace.PipelineConfig.load(folder)


def write_network(folder, inputs, output):
    """Write a network that gives the sum of its inputs as floats: per token [?, ?, 1], or per text [?, 2]."""
    from onnx import TensorProto, helper

    names = [*inputs]
    nodes = [helper.make_node("Cast", [one], [f"{one}_"], to=TensorProto.FLOAT) for one in names]
    nodes.append(helper.make_node("Sum", [f"{one}_" for one in names], ["sum"]))
    axes = helper.make_tensor("axes", TensorProto.INT64, [1], [2 if output[1] == 3 else 1])
    kind = "Unsqueeze" if output[1] == 3 else "ReduceSum"
    more = {} if output[1] == 3 else {"keepdims": 1}
    made = "tokens" if output[1] == 3 else "text"
    nodes.append(helper.make_node(kind, ["sum", "axes"], [made], **more))
    nodes.append(helper.make_node("Concat", [made, made], [output[0]], axis=-1))
    info = helper.make_tensor_value_info
    given = [info(name, *about) for name, about in inputs.items()]
    shape = ["batch", "length", 2] if output[1] == 3 else ["batch", 2]
    graph = helper.make_graph(
        nodes, "net", given, [info(output[0], TensorProto.FLOAT, shape)], [axes]
    )
    opset = [helper.make_opsetid("", 17)]
    made = helper.make_model(graph, opset_imports=opset, ir_version=8)
    (folder / "onnx" / "model.onnx").write_bytes(made.SerializeToString())


FREE = (7, ["batch", "length"])  # INT64


def test_inputs_and_outputs_are_those_that_the_network_names(folder):
    change(folder / "1_Pooling" / "config.json", word_embedding_dimension=2)
    (folder / "modules.json").write_text(
        json.dumps(json.loads((folder / "modules.json").read_text())[:2])
    )
    four = dict.fromkeys(("input_ids", "attention_mask", "token_type_ids", "position_ids"), FREE)
    write_network(folder, four, ("token_embeddings", 3))
    with headrace.pipe(folder) as pipe:
        found = pipe({"data": "w1 w2"})["result"]
    ids = np.array([2, 5, 6, 3])
    assert np.allclose(found, (ids + 1 + np.arange(4)).mean())
    write_network(
        folder, dict.fromkeys(("input_ids", "attention_mask"), FREE), ("sentence_embedding", 2)
    )
    with headrace.pipe(folder) as pipe:
        found = pipe({"data": "w1 w2"})["result"]
    assert np.allclose(found, (ids + 1).sum())  # pooled already, by a sum


@pytest.mark.parametrize(
    ("inputs", "output", "words"),
    [
        ({"input_ids": FREE, "pixel_values": FREE}, ("last_hidden_state", 3), "'pixel_values'"),
        ({"input_ids": (6, ["b", "l"])}, ("last_hidden_state", 3), "INT32 [?, ?]"),
        ({"input_ids": (7, ["b", 128])}, ("last_hidden_state", 3), "INT64 [?, 128]"),
        ({"ids": FREE}, ("last_hidden_state", 3), "no input 'input_ids'"),
        ({"input_ids": FREE}, ("pooler_output", 3), None),
    ],
)
def test_a_network_that_takes_or_gives_something_else_is_refused(folder, inputs, output, words):
    write_network(folder, inputs, output)
    if words is None:  # it is the only output, and has a vector for each token
        headrace.PipelineConfig.load(folder)
        return
    assert any(words in one.message for one in refused(folder))


def classifier(folder, **config):
    (folder / "modules.json").unlink()
    change(folder / "tokenizer_config.json", model_max_length=64)
    write_network(folder, dict.fromkeys(("input_ids", "attention_mask"), FREE), ("logits", 2))
    change(folder / "config.json", **config)
    return folder


def test_a_folder_of_a_classifier_gives_scores_of_its_labels(folder):
    labels = {"0": "good ${x}", "1": "bad"}
    request = {"data": ("w1", "w2")}
    with headrace.pipe(classifier(folder, id2label=labels)) as pipe:
        pipe(request)
    assert request["labels"] == [*labels.values()]
    assert request["result"].tolist() == [0.5, 0.5]
    assert request["logits"].tolist() == [2 + 5 + 3 + 6 + 3 + 5] * 2


@pytest.mark.parametrize(
    ("config", "activation"),
    [
        ({"num_labels": 2}, "softmax"),
        ({"num_labels": 2, "problem_type": "multi_label_classification"}, "sigmoid"),
        ({"num_labels": 2, "problem_type": "regression"}, "identity"),
        ({"id2label": {"0": "LABEL_0"}}, "sigmoid"),
        ({"sentence_transformers": {"activation_fn": "torch.nn.modules.activation.Tanh"}}, "tanh"),
        ({"sbert_ce_default_activation_function": "torch.nn.Identity"}, "identity"),
    ],
)
def test_the_function_behind_a_classifier_is_that_of_its_library(folder, config, activation):
    told = headrace.PipelineConfig.load(classifier(folder, **config)).to_dict()
    assert told["encode"]["activation"] == activation


def test_a_folder_of_configurations_beside_a_tokenizer_is_no_classifier(folder):
    served = folder.parent / "served"
    served.mkdir()
    shutil.copy(folder / "tokenizer.json", served)
    (served / "ids.toml").write_text('backend = "Tokenize(tokenizer.json)"\n')
    assert not headrace.plugins.reads(served)


def test_a_cross_encoder_ranks_over_http(folder):
    serve = pytest.importorskip("headrace_serve")
    httpx = pytest.importorskip("httpx")
    place = classifier(folder, num_labels=2)
    with serve.Server([str(place)], port=0, apis=["openai", "tei"]) as server:
        body = {"model": "small", "input": ["w1 w2"]}
        made = httpx.post(f"{server.url}/v1/classify", json=body).json()
        pair = httpx.post(f"{server.url}/predict", json={"inputs": ["w1", "w2"]}).json()
        asked = {"query": "w1", "texts": ["w2"]}
        ranks = httpx.post(f"{server.url}/rerank", json=asked)
    assert made["data"] == [[{"score": 0.5, "label": f"LABEL_{one}"} for one in range(2)]]
    assert made["usage"]["prompt_tokens"] == 4
    assert pair == made["data"][0]
    assert ranks.status_code == 400
    assert "one score, got 2 classes" in ranks.json()["error"]


def test_a_function_that_is_not_known_is_refused(folder):
    said = {"activation_fn": "mine.Function"}
    (problem,) = refused(classifier(folder, sentence_transformers=said))
    assert "mine.Function" in problem.message
    assert problem.path == "activation_fn"


def test_the_folder_answers_embeddings_and_tells_the_width(folder):
    serve = pytest.importorskip("headrace_serve")
    httpx = pytest.importorskip("httpx")
    given = texts(6, seed=1)
    with serve.Server([str(folder)], port=0, apis=["openai"]) as server:
        body = {"model": "small", "input": given, "encoding_format": "base64"}
        made = httpx.post(f"{server.url}/v1/embeddings", json=body, timeout=60).json()
        tokens = {"model": "small", "input": [[2, 7, 3], [2, 600, 3]]}
        answer = httpx.post(f"{server.url}/v1/embeddings", json=tokens, timeout=60)
        told = httpx.get(f"{server.url}/v2/models/small", timeout=60).json()
    wanted = [alone(folder, one) for one in given]
    for row, (vector, _) in zip(made["data"], wanted, strict=True):
        found = np.frombuffer(base64.b64decode(row["embedding"]), np.float32)
        assert np.allclose(found, vector, atol=1e-5)
    assert made["usage"]["prompt_tokens"] == sum(count for _, count in wanted)
    assert told["outputs"] == [{"name": "result", "datatype": "FP32", "shape": [-1, WIDTH]}]
    assert answer.status_code == 400
    assert "check_embedding_ctx_length=False" in answer.json()["error"]["message"]
