"""Train a GRU over characters with numpy, in ten seconds, and write it as ONNX: one step of one character."""

from __future__ import annotations

import argparse
import codecs
import contextlib
import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

with contextlib.redirect_stdout(io.StringIO()):
    import this

TEXT = codecs.decode(this.s, "rot13").partition("\n\n")[2] + "\n"  # the Zen of Python
WIDTH, PIECE, STREAMS = 96, 24, 16


def sigmoid(values: Any) -> Any:
    """Return the logistic function of an array."""
    return 1 / (1 + np.exp(-values))


def start(letters: int, width: int, random: np.random.Generator) -> dict[str, Any]:
    """Return the weights before training: input, recurrence, output, each with its bias."""
    scale = 1 / np.sqrt(width)
    shapes = {"wx": (letters, 3 * width), "bx": (3 * width,), "wh": (width, 3 * width)}
    shapes |= {"bh": (3 * width,), "wo": (width, letters), "bo": (letters,)}
    return {
        name: random.uniform(-scale, scale, shape).astype(np.float32)
        for name, shape in shapes.items()
    }


def step(weights: dict[str, Any], token: Any, state: Any) -> tuple[Any, tuple[Any, ...]]:
    """Return the next state, and what its gradient needs; token [n] int, state [n, width]."""
    from_x = weights["wx"][token] + weights["bx"]
    from_h = state @ weights["wh"] + weights["bh"]
    (xr, xz, xn), (hr, hz, hn) = np.split(from_x, 3, 1), np.split(from_h, 3, 1)
    reset, keep = sigmoid(xr + hr), sigmoid(xz + hz)
    new = np.tanh(xn + reset * hn)
    return (1 - keep) * new + keep * state, (token, state, reset, keep, new, hn)


def gradients(
    weights: dict[str, Any], tokens: Any, state: Any
) -> tuple[float, dict[str, Any], Any]:
    """Return loss, gradients and the last state; tokens [length + 1, n], state [n, width]."""
    kept, states = [], []
    for token in tokens[:-1]:
        state, needed = step(weights, token, state)
        kept.append(needed)
        states.append(state)
    hidden = np.stack(states)
    scores = hidden @ weights["wo"] + weights["bo"]
    scores -= scores.max(2, keepdims=True)
    shares = np.exp(scores)
    shares /= shares.sum(2, keepdims=True)
    count = tokens[1:].size
    right = np.take_along_axis(shares, tokens[1:, :, None], 2)
    loss = -np.log(right).mean()
    np.put_along_axis(shares, tokens[1:, :, None], right - 1, 2)
    shares /= count
    found = {name: np.zeros_like(one) for name, one in weights.items()}
    found["wo"] = np.einsum("tnw,tnl->wl", hidden, shares)
    found["bo"] = shares.sum((0, 1))
    later = np.zeros_like(state)
    for (token, before, reset, keep, new, hn), from_out in zip(
        reversed(kept), reversed(shares @ weights["wo"].T), strict=True
    ):
        d_state = from_out + later
        d_new = d_state * (1 - keep) * (1 - new**2)
        d_keep = d_state * (before - new) * keep * (1 - keep)
        d_reset = d_new * hn * reset * (1 - reset)
        d_x = np.concatenate([d_reset, d_keep, d_new], 1)
        d_h = np.concatenate([d_reset, d_keep, d_new * reset], 1)
        np.add.at(found["wx"], token, d_x)
        found["bx"] += d_x.sum(0)
        found["wh"] += before.T @ d_h
        found["bh"] += d_h.sum(0)
        later = d_state * keep + d_h @ weights["wh"].T
    return loss, found, state


def train(tokens: Any, letters: int, steps: int) -> tuple[dict[str, Any], float]:
    """Return weights and the last loss, after some steps of Adam over pieces of the text."""
    weights = start(letters, WIDTH, np.random.default_rng(0))
    mean = {name: np.zeros_like(one) for name, one in weights.items()}
    square = {name: np.zeros_like(one) for name, one in weights.items()}
    length, loss = len(tokens), np.inf
    places = np.arange(STREAMS) * (length // STREAMS)
    state = np.zeros((STREAMS, WIDTH), np.float32)
    for count in range(1, steps + 1):
        piece = tokens[(places + np.arange(PIECE + 1)[:, None]) % length]
        loss, found, state = gradients(weights, piece, state)
        places = (places + PIECE) % length
        rate = 0.006 * (1 - count / (steps + 1)) + 0.0003
        for name, one in found.items():
            one = np.clip(one, -1, 1)
            mean[name] += 0.1 * (one - mean[name])
            square[name] += 0.01 * (one**2 - square[name])
            scaled = (mean[name] / (1 - 0.9**count)) / (
                np.sqrt(square[name] / (1 - 0.99**count)) + 1e-8
            )
            weights[name] -= (rate * scaled).astype(np.float32)
    return weights, float(loss)


def as_onnx(weights: dict[str, Any]) -> onnx.ModelProto:
    """Return the model of one step: token int64 [N], state float32 [N, W] -> logits [N, L], stateN [N, W]."""
    width, letters = weights["wo"].shape
    node = helper.make_node
    nodes = [
        node("Gather", ["wx", "token"], ["row"]),
        node("Add", ["row", "bx"], ["from_x"]),
        node("MatMul", ["state", "wh"], ["product"]),
        node("Add", ["product", "bh"], ["from_h"]),
        node("Split", ["from_x"], ["xr", "xz", "xn"], axis=1),
        node("Split", ["from_h"], ["hr", "hz", "hn"], axis=1),
        node("Add", ["xr", "hr"], ["r"]),
        node("Sigmoid", ["r"], ["reset"]),
        node("Add", ["xz", "hz"], ["z"]),
        node("Sigmoid", ["z"], ["keep"]),
        node("Mul", ["reset", "hn"], ["part"]),
        node("Add", ["xn", "part"], ["n"]),
        node("Tanh", ["n"], ["new"]),
        node("Sub", ["state", "new"], ["difference"]),
        node("Mul", ["keep", "difference"], ["kept"]),
        node("Add", ["new", "kept"], ["stateN"]),
        node("MatMul", ["stateN", "wo"], ["scores"]),
        node("Add", ["scores", "bo"], ["logits"]),
    ]
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes,
        "decoder",
        [value("token", TensorProto.INT64, ["N"]), value("state", TensorProto.FLOAT, ["N", width])],
        [
            value("logits", TensorProto.FLOAT, ["N", letters]),
            value("stateN", TensorProto.FLOAT, ["N", width]),
        ],
        [numpy_helper.from_array(one, name) for name, one in weights.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
    onnx.checker.check_model(model, full_check=True)
    return model


def main() -> None:
    """Train, and write made/decoder.onnx and made/letters.json beside this file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=1500, help="steps of training")
    steps = parser.parse_args().steps
    folder = Path(__file__).resolve().parent / "made"
    folder.mkdir(exist_ok=True)
    letters = sorted(set(TEXT))
    tokens = np.array([letters.index(letter) for letter in TEXT])
    weights, loss = train(tokens, len(letters), steps)
    onnx.save(as_onnx(weights), folder / "decoder.onnx")
    (folder / "letters.json").write_text(json.dumps("".join(letters)), encoding="utf-8")
    print(f"{len(TEXT)} characters, {steps} steps, {loss:.2f} nats per character")


if __name__ == "__main__":
    main()
