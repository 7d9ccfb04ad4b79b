"""Sequences: their state between requests, and the inputs that tell a model where in one it is."""

from __future__ import annotations

import engine_rules
import numpy as np
import pytest
import tritonclient.http as triton_http
from onnx import TensorProto
from tritonclient.utils import InferenceServerException

from headrace.errors import ConfigError, SetupError
from headrace_models import Models
from headrace_serve import Server
from headrace_triton.repository import tables_of

CONFIG = """
backend: "onnxruntime"
max_batch_size: 4
input { name: "x" data_type: TYPE_FP32 dims: [1] }
output { name: "y" data_type: TYPE_FP32 dims: [1] }
sequence_batching {
  control_input [
    { name: "start" control { kind: CONTROL_SEQUENCE_START fp32_false_true: [0, 1] } },
    { name: "ready" control { kind: CONTROL_SEQUENCE_READY fp32_false_true: [0, 1] } },
    { name: "end" control { kind: CONTROL_SEQUENCE_END fp32_false_true: [0, 10000] } },
    { name: "id" control { kind: CONTROL_SEQUENCE_CORRID data_type: TYPE_INT64 } }
  ]
  state { input_name: "before" output_name: "after" data_type: TYPE_FP32 dims: [1]
    FIRST }
}
"""


@pytest.fixture
def sums(repository):
    """Write a model that adds: after = before + x; y = after + 100 start + 1000 ready + end + 100000 id."""

    nodes = [
        ("Add", ["before", "x"], ["after"], {}),
        ("Mul", ["start", "c1"], ["s"], {}),
        ("Mul", ["ready", "c2"], ["r"], {}),
        ("Cast", ["id"], ["f"], {"to": TensorProto.FLOAT}),
        ("Mul", ["f", "c3"], ["i"], {}),
        ("Sum", ["after", "s", "r", "end", "i"], ["y"], {}),
    ]
    floats = ("x", "start", "ready", "end", "before", "y", "after")
    *inputs, y, after = ((name, TensorProto.FLOAT, ["rows", 1]) for name in floats)
    inputs.append(("id", TensorProto.INT64, ["rows", 1]))
    weights = [("c1", np.float32(100)), ("c2", np.float32(1000)), ("c3", np.float32(100000))]
    path = repository.folder / "sums" / "1" / "model.onnx"
    path.parent.mkdir(parents=True)
    engine_rules.write(path, nodes, inputs, [y, after], weights)

    def write(first=""):
        repository.configure("sums", CONFIG.replace("FIRST", first))
        return repository

    return write


def ask(client, value, sequence, **more):
    sent = triton_http.InferInput("x", [1, 1], "FP32")
    sent.set_data_from_numpy(np.array([[value]], np.float32))
    return client.infer("sums", [sent], sequence_id=sequence, **more).as_numpy("y").item()


def test_a_sequence_keeps_its_state_and_the_model_is_told_where_it_is(sums):
    with Server(str(sums().folder), port=0) as server:
        client = triton_http.InferenceServerClient(f"127.0.0.1:{server.port}")
        assert ask(client, 1, 1, sequence_start=True) == 101101
        assert ask(client, 7, 2, sequence_start=True) == 201107
        assert ask(client, 2, 1) == 101003
        assert ask(client, 3, 1, sequence_end=True) == 111006
        with pytest.raises(InferenceServerException):
            ask(client, 1, 1)  # it has ended
        assert ask(client, 1, 2) == 201008
        client.close()


def test_a_sequence_begins_with_the_state_of_the_configuration(sums):
    first = 'initial_state { name: "five" data_type: TYPE_FP32 dims: [1] data_file: "five" }'
    repository = sums(first)
    folder = repository.folder / "sums" / "initial_state"
    with pytest.raises(ConfigError, match="there is no file 'five' in initial_state"):
        tables_of(repository.folder)
    folder.mkdir()
    (folder / "five").write_bytes(np.float32(5).tobytes())
    with Models(str(repository.folder)) as models:
        request = {"x": np.ones((1, 1), np.float32), "request_size": 1, "sequence_id": 1}
        assert models("sums", {**request, "sequence_start": True})["result"]["y"].item() == 101106
    (folder / "five").write_bytes(b"12345")
    with pytest.raises(SetupError, match=r"has 5 bytes, and the state \[1, 1\] 4"):
        Models(str(repository.folder))


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (("direct { }", "oldest { }"), "`oldest` has no counterpart here"),
        (("dims: [1]\n", "dims: [-1]\n"), "needs one `initial_state` with lengths"),
        (
            ("data_type: TYPE_FP32 dims: [1]\n", "data_type: TYPE_STRING dims: [1]\n"),
            "`data_type` of numbers",
        ),
        (
            ("control { kind: CONTROL_SEQUENCE_START fp32_false_true: [0, 1] }", ""),
            "needs one `control`",
        ),
    ],
)
def test_what_sequences_cannot_be_is_refused(sums, wrong, said):
    repository = sums()
    text = CONFIG.replace("sequence_batching {", "sequence_batching { direct { }").replace(
        "FIRST", ""
    )
    assert wrong[0] in text
    repository.configure("sums", text.replace(*wrong))
    with pytest.raises(ConfigError) as caught:
        tables_of(repository.folder)
    assert said in caught.value.problems[0].message
