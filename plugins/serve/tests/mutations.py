"""Requests of an inference, and what becomes of them when bytes, values or lengths are changed.

Everything comes from one `random.Random`, so that a seed and a number name a body.
"""

from __future__ import annotations

import copy
import json
import struct

import numpy as np

ODD = (
    None, True, False, -1, 0, 1, 2, 3, 2**31, 2**63, 2**64, 10**30, -(2**63), 1.5, 1e308, -0.0, "", "x",
    "FP32", "BYTES", "BF16", "é\x00", "a" * 300, [], {}, [[]], [[[[1]]]], [1, [2]], [None], ["x"], [1e400],
    [-1], [0], [2**40], [1 << 62, 1 << 62], [0, 10**9], {"binary_data_size": 4}, {"binary_data": True},
    {"binary_data_size": -1}, {"x": 1}, {"data": [1]}, {"name": "x"},
)  # fmt: skip
"""What takes the place of a value of JSON."""

KEYS = (
    "inputs", "outputs", "parameters", "id", "name", "shape", "datatype", "data", "binary_data_size",
    "binary_data", "timeout", "priority", "partial", "model_name", "traceparent", "x", "",
)  # fmt: skip


def json_requests():
    """Return bodies that are right: the model, the document, and the binary data behind it."""
    row = {"name": "x", "shape": [2, 4], "datatype": "FP32"}
    values = [1.5, 2, 3, 4, 5, 6, 7, 8]
    raw = np.array(values, "<f4").tobytes()
    text = struct.pack("<I", 2) + b"ab" + struct.pack("<I", 0)
    items = {"name": "data", "shape": [2], "datatype": "BYTES"}
    binary = {**row, "parameters": {"binary_data_size": len(raw)}}
    asked = [{"name": "y", "parameters": {"binary_data": True}}]
    return [
        ("rows", {"id": "i", "inputs": [{**row, "data": values}]}, b""),
        ("rows", {"inputs": [binary], "outputs": asked, "parameters": {"timeout": 9**8}}, raw),
        ("items", {"inputs": [{**items, "data": ["ab", ""]}], "parameters": {"partial": True}}, b""),
        ("items", {"inputs": [{**items, "parameters": {"binary_data_size": len(text)}}],
                   "parameters": {"binary_data_output": True, "priority": 1}}, text),
    ]  # fmt: skip


def places(value, found=()):
    """Return the paths to all values inside of a document."""
    pairs = (
        value.items()
        if isinstance(value, dict)
        else enumerate(value)
        if isinstance(value, list)
        else ()
    )
    for key, inner in pairs:
        yield (*found, key)
        yield from places(inner, (*found, key))


def changed_document(random, document):
    """Give a document in which one to three values are another, gone, or under another key."""
    made = copy.deepcopy(document)
    for _ in range(random.randint(1, 3)):
        paths = list(places(made))
        if not paths:
            break
        path = random.choice(paths)
        at = made
        for key in path[:-1]:
            at = at[key]
        what = random.randrange(4)
        if what == 0:
            del at[path[-1]]
        elif what == 1 and isinstance(at, dict):
            at[random.choice(KEYS)] = at.pop(path[-1])
        elif what == 2 and isinstance(at, list):
            at.append(copy.deepcopy(random.choice(at)) if at else 1)
        else:
            at[path[-1]] = copy.deepcopy(random.choice(ODD))
    return made


def changed_bytes(random, data):
    """Return bytes of which a few are others, gone, there twice, or new."""
    made = bytearray(data)
    for _ in range(random.randint(1, 4)):
        place = random.randrange(len(made) + 1)
        end = min(len(made), place + random.choice((1, 1, 2, 4, 40)))
        what = random.randrange(5)
        if what == 0 and place < len(made):
            made[place] ^= 1 << random.randrange(8)
        elif what == 1:
            del made[place:end]
        elif what == 2:
            made[place:place] = made[place:end]
        elif what == 3:
            made[place:place] = random.randbytes(random.choice((1, 2, 5)))
        else:
            made[place:end] = random.choice(
                (b"[" * 50, b"{", b"]", b'"', b"NaN", b"1e999", b"\xff")
            )
    return bytes(made)


def rest_body(random):
    """Return the model, the body and the header of its length (None: without) of one wrong request."""
    model, document, raw = random.choice(json_requests())
    if random.random() < 0.6:
        document = changed_document(random, document)
    head = json.dumps(document).encode()
    if random.random() < 0.4:
        head = changed_bytes(random, head)
    if raw and random.random() < 0.3:
        raw = changed_bytes(random, raw)
    length = str(len(head)) if raw else None
    if random.random() < 0.1:
        odd = (str(len(head) - 1), str(len(head) + 1), "0", "-1", "x", "9" * 30, "1.5", "\xb2")
        length = random.choice(odd)
    return model, head + raw, length


def grpc_requests(message):
    """Return messages that are right, as bytes."""
    made = message(model_name="rows", id="i")
    made.inputs.add(name="x", datatype="FP32", shape=[2, 4])
    made.parameters["timeout"].int64_param = 9**8
    made.outputs.add(name="y")
    typed = message()
    typed.CopyFrom(made)
    made.raw_input_contents.append(np.arange(8, dtype="<f4").tobytes())
    typed.inputs[0].contents.fp32_contents.extend(range(8))
    items = message(model_name="items")
    items.inputs.add(name="data", datatype="BYTES", shape=[2])
    items.parameters["partial"].bool_param = True
    items.raw_input_contents.append(struct.pack("<I", 2) + b"ab" + struct.pack("<I", 0))
    return [one.SerializeToString() for one in (made, typed, items)]


def models():
    """Return the models that take these requests."""
    row = {"datatype": "FP32", "shape": [-1, 4]}
    return {
        "rows": {
            "config": {"backend": "Identity", "max": 8},
            "inputs": {"x": {**row, "batched": True}},
            "outputs": {"y": row},
        },
        "items": {"backend": "Identity", "max": 8},
    }
