"""``OnnxTensor`` in a node with ``instance_num = "auto"``: two sessions for any number of instances, and the same answers."""

import threading

import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto

import headrace

THREADS = 3


@pytest.fixture
def model(save):
    weights = np.arange(12, dtype=np.float32).reshape(3, 4) / 7
    return save(
        [("MatMul", ["x", "w"], ["y"], {})],
        [("x", TensorProto.FLOAT, ["n", 3])],
        [("y", TensorProto.FLOAT, ["n", 4])],
        [("w", weights)],
    )


def config(model, **keys):
    main = {"backend": "OnnxTensor", "model": str(model), "instance_num": "auto", **keys}
    return {"global": {"threads": THREADS}, "main": main}


@pytest.mark.parametrize(
    ("keys", "number"),
    [
        ({}, THREADS + 1),
        ({"device": "cpu"}, THREADS + 1),
        ({"providers": ["cpu"]}, THREADS + 1),
        ({"intra_op_threads": 1}, THREADS + 1),
        ({"intra_op_threads": 2}, 1),
        ({"share_weights": False}, 1),
        ({"device": "cuda:0"}, 1),
        ({"providers": ["cuda", "cpu"]}, 1),
    ],
)
def test_there_are_as_many_instances_as_share_one_session(model, keys, number):
    told = headrace.explain(config(model, **keys))["nodes"]["main"]
    assert told["instance_num"] == number


def test_all_instances_together_open_two_sessions_and_answer_as_one(model, monkeypatch):
    opened, session = [], onnxruntime.InferenceSession

    def open_one(*args, **kwargs):
        opened.append(kwargs["sess_options"].intra_op_num_threads)
        return session(*args, **kwargs)

    monkeypatch.setattr(onnxruntime, "InferenceSession", open_one)
    samples = np.random.default_rng(1).normal(size=(40, 3)).astype(np.float32)
    expected = session(str(model), providers=["CPUExecutionProvider"]).run(None, {"x": samples})[0]
    answers = {}
    with headrace.pipe(config(model, max=4)) as pipe:
        assert sorted(opened) == [1, THREADS]
        built = pipe.describe()["nodes"]["main"]["tree"]["built"]
        assert (built["intra_op_threads"], built["shared_session"]) == (1, True)

        def ask(numbers):
            for number in numbers:
                answers[number] = pipe({"data": samples[number]})["result"]

        callers = [threading.Thread(target=ask, args=(range(k, 40, 4),)) for k in range(4)]
        for caller in callers:
            caller.start()
        for caller in callers:
            caller.join(60)
        ask([40 - 1])
    assert len(answers) == 40
    np.testing.assert_allclose([answers[n] for n in range(40)], expected, rtol=1e-5, atol=1e-6)
