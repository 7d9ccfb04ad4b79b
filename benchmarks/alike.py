"""Batches of sentences of like length beside batches in order of arrival: a text model on the CPU.

    python -m benchmarks.alike [--clients 32 64] [--quick]

The sentences are those of Python's own reference (`pydoc_data.topics`, which comes with the interpreter), in words
and signs, cut at 128; the model is a small transformer encoder with a mask, made by this script, whose answers do not
depend on the padding. Threads send one sentence after the other, in a closed loop, to a node with an instance per core and
batches of up to 16, whose rows are padded to the longest (`ragged = "pad"`):

- greedy: in order of arrival;
- Alike: of like length, by headrace-flow;
- Budget: within a padded area, by headrace-flow;
- greedy with `ragged = "group"`, which runs rows of equal length together, without padding.

Per side the median of the requests per second, its ratio to greedy in each round, and the 50th and 99th percentile
of the latencies.
"""

from __future__ import annotations

import random
import re
import tempfile
import zlib
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from benchmarks.load import (
    Load,
    arguments,
    beside,
    drive,
    environment,
    in_turn,
    middle,
    print_environment,
    ratio,
    save,
    usable_cpus,
)

import headrace

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

WORDS = 4096
MOST = 128
"""The most words of a sentence that the model reads."""

PADDED: dict[str, Any] = {"ragged": "pad"}
SIDES: dict[str, dict[str, Any]] = {
    "greedy": PADDED,
    "Alike": {**PADDED, "batch_policy": "Alike(by=length, spread=0.2, patience_ms=20)"},
    "Budget": {**PADDED, "batch_policy": "Budget(cost=length, most=512, area=padded)"},
    "greedy, grouped": {"ragged": "group"},
}


def sentences() -> list[Any]:
    """Return the sentences of Python's reference as rows of numbers of words, shuffled: int64 ``[words]``, none 0."""
    from pydoc_data import topics

    text = re.sub(r"\s+", " ", " ".join(topics.topics.values()))
    found = [re.findall(r"\w+|[^\w\s]", one) for one in re.split(r"(?<=[.!?]) (?=[A-Z])", text)]
    rows = [
        np.array([1 + zlib.crc32(word.encode()) % (WORDS - 1) for word in one[:MOST]], np.int64)
        for one in found
        if len(one) > 1
    ]
    random.Random(1).shuffle(rows)
    return rows


def make_model(path: Path, width: int, layers: int, heads: int = 4) -> None:
    """Write a transformer encoder: ``int64 [n, words]``, 0 for none, to ``float32 [n, 4]``."""
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    drawn = np.random.default_rng(1)
    nodes: list[Any] = []
    weights: list[Any] = []

    def const(name: str, value: Any) -> str:
        weights.append(numpy_helper.from_array(np.asarray(value), name))
        return name

    def weight(name: str, *shape: int) -> str:
        return const(name, drawn.normal(0, shape[0] ** -0.5, shape).astype(np.float32))

    def node(kind: str, out: str, *inputs: str, **more: Any) -> str:
        nodes.append(helper.make_node(kind, list(inputs), [out], **more))
        return out

    ones, zeros = np.ones(width, np.float32), np.zeros(width, np.float32)
    there = node(
        "Cast", "there", node("Sign", "sign", "words"), to=TensorProto.FLOAT
    )  # 1 for a word, 0 for padding
    masked = node(
        "Mul",
        "far",
        node("Sub", "none", there, const("one", np.float32(1))),
        const("much", np.float32(1e4)),
    )
    mask = node("Unsqueeze", "mask", masked, const("mask_axes", np.array([1, 2])))
    split = const("split", np.array([0, 0, heads, width // heads]))
    joined = const("joined", np.array([0, 0, width]))
    root = const("root", np.float32((width // heads) ** -0.5))
    x = node("Gather", "x", weight("embedding", WORDS, width), "words")
    for layer in range(layers):
        own = partial("{1}_{0}".format, layer)
        parts = {}
        for part in "qkv":
            made = node("MatMul", own(part), x, weight(own(f"w{part}"), width, width))
            apart = node("Reshape", own(f"{part}_apart"), made, split)
            turned = [0, 2, 3, 1] if part == "k" else [0, 2, 1, 3]
            parts[part] = node("Transpose", own(f"{part}_turned"), apart, perm=turned)
        scores = node("MatMul", own("scores"), parts["q"], parts["k"])
        scores = node("Add", own("seen"), node("Mul", own("scaled"), scores, root), mask)
        looks = node("Softmax", own("looks"), scores, axis=-1)
        seen = node("MatMul", own("mixed"), looks, parts["v"])
        seen = node("Transpose", own("back"), seen, perm=[0, 2, 1, 3])
        seen = node("Reshape", own("together"), seen, joined)
        seen = node("MatMul", own("out"), seen, weight(own("wo"), width, width))
        scale, shift = const(own("s1"), ones), const(own("b1"), zeros)
        x = node("LayerNormalization", own("n1"), node("Add", own("a1"), x, seen), scale, shift)
        wide = node("MatMul", own("wide"), x, weight(own("wi"), width, 4 * width))
        wide = node("Relu", own("relu"), wide)
        wide = node("MatMul", own("narrow"), wide, weight(own("wn"), 4 * width, width))
        scale, shift = const(own("s2"), ones), const(own("b2"), zeros)
        x = node("LayerNormalization", own("n2"), node("Add", own("a2"), x, wide), scale, shift)
    only = node("Mul", "only", x, node("Unsqueeze", "rows", there, const("last", np.array([2]))))
    total = node("ReduceSum", "total", only, const("axis", np.array([1])), keepdims=0)
    count = node("ReduceSum", "count", there, "axis", keepdims=1)
    node("MatMul", "classes", node("Div", "mean", total, count), weight("wc", width, 4))
    graph = helper.make_graph(
        nodes,
        "encoder",
        [helper.make_tensor_value_info("words", TensorProto.INT64, ["n", "length"])],
        [helper.make_tensor_value_info("classes", TensorProto.FLOAT, ["n", 4])],
        weights,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    onnx.checker.check_model(model)
    onnx.save(model, str(path))


def node_of(path: Path, keys: dict[str, Any]) -> dict[str, Any]:
    """Return the configuration of a side."""
    common = {"model": str(path), "instance_num": usable_cpus(), "intra_op_threads": 1, "max": 16}
    return {"backend": "OnnxTensor", **common, **keys}


def side(
    path: Path, rows: Sequence[Any], keys: dict[str, Any], clients: int, seconds: float
) -> Load:
    """Let the clients send sentences to a pipeline."""
    with headrace.pipe(node_of(path, keys)) as pipe:
        return drive(
            lambda i: pipe({"data": rows[i % len(rows)]}), clients, seconds, warm_up=seconds / 2
        )


def check(path: Path, rows: Sequence[Any]) -> None:
    """Compare what each side answers in company with what a sentence gets alone."""
    with headrace.pipe({**node_of(path, {}), "max": 1}) as pipe:
        wanted = [one["result"] for one in pipe([{"data": row} for row in rows])]
    for name, keys in SIDES.items():
        with headrace.pipe(node_of(path, keys)) as pipe:
            for one, alone in zip(pipe([{"data": row} for row in rows]), wanted, strict=True):
                if not np.allclose(one["result"], alone, rtol=1e-3, atol=1e-4):
                    raise SystemExit(f"{name}: {one['result']} in company, {alone} alone")


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--clients", type=int, nargs="+", default=[32, 64], help="that send")
    parser.add_argument("--rounds", type=int, default=7, help="of all sides, in turn")
    chosen = parser.parse_args()
    rounds, seconds = (1, 0.1) if chosen.quick else (chosen.rounds, 4.0)
    about = environment(["headrace", "headrace-flow", "headrace-ort", "onnxruntime"])
    print_environment(about)
    rows = sentences()
    lengths = sorted(len(row) for row in rows)
    middle_one = lengths[len(lengths) // 2]
    print(f"{len(rows)} sentences, {np.mean(lengths):.1f} words on average, median {middle_one}\n")
    figures: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "encoder.onnx"
        make_model(path, *((32, 1) if chosen.quick else (128, 2)))
        check(path, rows[:64])
        for clients in chosen.clients:
            sides: dict[str, Callable[[], Load]] = {
                name: partial(side, path, rows, keys, clients, seconds)
                for name, keys in SIDES.items()
            }
            loads = in_turn(sides, rounds)
            base = loads["greedy"]
            ratios = {
                name: {"rps": ratio(found, base), "p99": ratio(found, base, "p99_us")}
                for name, found in loads.items()
            }
            figures[str(clients)] = {"loads": loads, "ratio": ratios}
            print(f"{clients} clients")
            for name, found in loads.items():
                load, over = middle(found), ratios[name]
                print(
                    f"  {name:16} {load.rps:8.0f} requests/s {over['rps']:6.2f}   p50 {load.p50_us / 1e3:7.1f} ms"
                    f"   p99 {load.p99_us / 1e3:7.1f} ms {over['p99']:6.2f}"
                )
    kept = [
        beside(
            f"{clients} clients, {name}",
            found,
            "greedy",
            cell["loads"]["greedy"],
            measured,
            own=True,
        )
        for clients, cell in figures.items()
        for name, found in cell["loads"].items()
        if name != "greedy"
        for measured in ("rps", "cpu_us", "p99_us")
    ]
    save(chosen.json, about, figures, kept)


if __name__ == "__main__":
    main()
