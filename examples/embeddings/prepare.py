"""Build a sentence encoder as a folder of sentence-transformers: a transformer with random weights, and its tokenizer.

python prepare.py FOLDER [LAYERS WIDTH]

It has the shape of all-MiniLM-L6-v2: 6 layers, width 384. Its vectors mean nothing, and cost what those of that one cost.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

__all__ = ["build"]

LONGEST = 512
MODULES = ("Transformer", "Pooling", "Normalize")


class Graph:
    """Nodes and weights of a model that is being written."""

    def __init__(self, seed: int = 0) -> None:
        self.random = np.random.default_rng(seed)
        self.nodes: list[Any] = []
        self.weights: list[Any] = []

    def put(self, value: Any) -> str:
        """Add a constant."""
        name = f"w{len(self.weights)}"
        self.weights.append(numpy_helper.from_array(np.asarray(value), name))
        return name

    def drawn(self, *shape: int) -> str:
        """Add random weights."""
        return self.put((0.05 * self.random.standard_normal(shape)).astype(np.float32))

    def add(self, kind: str, *inputs: str, out: str | None = None, **more: Any) -> str:
        """Add a node, and return its output."""
        name = out or f"v{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, list(inputs), [name], **more))
        return name

    def linear(self, x: str, before: int, after: int) -> str:
        """Add a linear layer."""
        return self.add("Add", self.add("MatMul", x, self.drawn(before, after)), self.drawn(after))

    def norm(self, x: str, width: int) -> str:
        """Add a layer normalisation."""
        ones, zeros = np.ones(width, np.float32), np.zeros(width, np.float32)
        return self.add("LayerNormalization", x, self.put(ones), self.put(zeros), axis=-1)


def encoder(layers: int, width: int, words: int) -> onnx.ModelProto:
    """Return a transformer: ``input_ids``, ``attention_mask`` to ``last_hidden_state``."""
    graph, heads = Graph(), max(1, width // 32)
    length = graph.add("Slice", graph.add("Shape", "input_ids"), graph.put([1]), graph.put([2]))
    places = graph.add("Slice", graph.drawn(LONGEST, width), graph.put([0]), length, graph.put([0]))
    x = graph.add("Gather", graph.drawn(words, width), "input_ids")
    x = graph.norm(graph.add("Add", x, places), width)
    seen = graph.add("Cast", "attention_mask", to=TensorProto.FLOAT)
    seen = graph.add("Unsqueeze", seen, graph.put([1, 2]))
    hidden = graph.add("Sub", graph.put(np.float32(1)), seen)
    mask = graph.add("Mul", hidden, graph.put(np.float32(-1e9)))
    apart, together = graph.put([0, 0, heads, width // heads]), graph.put([0, 0, width])
    scale = graph.put(np.float32((width // heads) ** -0.5))
    for _ in range(layers):
        query, key, value = (
            graph.add(
                "Transpose",
                graph.add("Reshape", graph.linear(x, width, width), apart),
                perm=[0, 2, 1, 3],
            )
            for _ in range(3)
        )
        near = graph.add("MatMul", query, graph.add("Transpose", key, perm=[0, 1, 3, 2]))
        near = graph.add("Add", graph.add("Mul", near, scale), mask)
        mixed = graph.add("MatMul", graph.add("Softmax", near, axis=-1), value)
        mixed = graph.add("Reshape", graph.add("Transpose", mixed, perm=[0, 2, 1, 3]), together)
        x = graph.norm(graph.add("Add", x, graph.linear(mixed, width, width)), width)
        inner = graph.add("Gelu", graph.linear(x, width, 4 * width), approximate="tanh")
        x = graph.norm(graph.add("Add", x, graph.linear(inner, 4 * width, width)), width)
    graph.add("Identity", x, out="last_hidden_state")
    inputs = [
        helper.make_tensor_value_info(name, TensorProto.INT64, ["batch", "length"])
        for name in ("input_ids", "attention_mask")
    ]
    shape: list[Any] = ["batch", "length", width]
    output = helper.make_tensor_value_info("last_hidden_state", TensorProto.FLOAT, shape)
    made = helper.make_graph(graph.nodes, "encoder", inputs, [output], graph.weights)
    opset = [helper.make_opsetid("", 20)]
    return helper.make_model(made, opset_imports=opset, ir_version=10)


def tokenizer(words: int) -> Any:
    """Return a tokenizer of the words ``w0``, ``w1`` and so on."""
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

    names = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *(f"w{i}" for i in range(words - 4))]
    numbers = {name: i for i, name in enumerate(names)}
    made: Any = Tokenizer(models.WordLevel(numbers, unk_token=names[1]))
    made.normalizer = normalizers.Lowercase()
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    made.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", 2), ("[SEP]", 3)],
    )
    return made


def build(folder: str | Path, layers: int = 6, width: int = 384, words: int = 8192) -> Path:
    """Write the folder, and return it."""
    place = Path(folder)
    (place / "onnx").mkdir(parents=True, exist_ok=True)
    (place / "1_Pooling").mkdir(exist_ok=True)
    onnx.save(encoder(layers, width, words), place / "onnx" / "model.onnx")
    tokenizer(words).save(str(place / "tokenizer.json"))
    library = "sentence_transformers.models"
    paths = ("", "1_Pooling", "2_Normalize")
    files: dict[str, Any] = {
        "modules.json": [
            {"idx": i, "name": str(i), "path": path, "type": f"{library}.{name}"}
            for i, (path, name) in enumerate(zip(paths, MODULES, strict=True))
        ],
        "1_Pooling/config.json": {
            "word_embedding_dimension": width,
            "pooling_mode_cls_token": False,
            "pooling_mode_mean_tokens": True,
        },
        "sentence_bert_config.json": {"max_seq_length": 256, "do_lower_case": False},
        "config.json": {"hidden_size": width, "max_position_embeddings": LONGEST},
    }
    for name, value in files.items():
        (place / name).write_text(json.dumps(value), encoding="utf-8")
    return place


if __name__ == "__main__":
    print(build(sys.argv[1], *map(int, sys.argv[2:])))
