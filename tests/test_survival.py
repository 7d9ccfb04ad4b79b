"""What a pipeline of real plugins survives: wrong configurations, wrong requests, bad backends."""

from __future__ import annotations

import threading

import cv2
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import headrace
from headrace import errors
from headrace._language.registry.registry import registry


def jpeg(shade: int, height: int = 32, width: int = 48) -> bytes:
    picture = np.full((height, width, 3), shade, np.uint8)
    done, data = cv2.imencode(".jpg", picture)
    assert done
    return data.tobytes()


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> str:
    """The mean of an image: ``float32 [N, 3, 8, 8]`` to ``float32 [N]``."""
    graph = helper.make_graph(
        [helper.make_node("ReduceMean", ["image", "axes"], ["mean"], keepdims=0)],
        "mean",
        [helper.make_tensor_value_info("image", TensorProto.FLOAT, ["n", 3, 8, 8])],
        [helper.make_tensor_value_info("mean", TensorProto.FLOAT, ["n"])],
        [helper.make_tensor("axes", TensorProto.INT64, [3], [1, 2, 3])],
    )
    path = tmp_path_factory.mktemp("model") / "mean.onnx"
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    path.write_bytes(made.SerializeToString())
    assert onnx.load(path)
    return str(path)


PIXELS = "S[DecodeMat,ResizeMat(8,8),Mat2Tensor,OnnxTensor]"


def problems_of(config: dict) -> list[errors.Problem]:
    with pytest.raises(errors.ConfigError) as caught:
        headrace.PipelineConfig.load(config)
    return list(caught.value.problems)


def test_an_image_goes_all_the_way_to_the_answer_of_the_network(model):
    with headrace.pipe({"backend": PIXELS, "model": model, "max": 4}) as pipe:
        assert pipe({"data": jpeg(200)})["result"] == pytest.approx(200, abs=2)


def test_an_unknown_backend_gets_the_nearest_name(model):
    (problem,) = problems_of({"backend": "S[DecodMat,ResizeMat(8,8)]"})
    assert problem.suggestion == "DecodeMat"
    assert problem.text is not None
    assert problem.span is not None
    assert problem.text[slice(*problem.span)] == "DecodMat"


def test_an_unknown_option_gets_the_nearest_name():
    (problem,) = problems_of({"backend": "S[DecodeMat,ResizeMat]", "resize_h": 8, "rezise_w": 8})
    assert problem.suggestion == "resize_w"


def test_a_missing_plugin_says_what_to_install(monkeypatch):
    others = [one for one in registry.plugins() if one.distribution != "headrace-observe"]
    monkeypatch.setattr(registry, "plugins", lambda **_: others)
    (problem,) = problems_of({"backend": "Benchmark"})
    assert "headrace-observe" in problem.render()
    assert "pip install" in problem.render()


def test_a_model_that_does_not_exist_is_a_problem_of_the_configuration():
    (problem,) = problems_of({"backend": "OnnxTensor", "model": "nowhere.onnx"})
    assert "nowhere.onnx" in problem.message


def test_a_file_that_is_no_model_says_so_with_its_path(tmp_path):
    path = tmp_path / "text.onnx"
    path.write_text("this is no model", encoding="utf-8")
    with pytest.raises(errors.SetupError) as caught:
        headrace.pipe({"backend": "OnnxTensor", "model": str(path)})
    assert str(path) in str(caught.value)
    assert caught.value.node == "main"


def test_a_wrong_shape_is_an_input_error_that_names_both(model):
    with headrace.pipe({"backend": "OnnxTensor", "model": model, "max": 4}) as pipe:
        with pytest.raises(errors.InputError) as caught:
            pipe({"data": np.zeros((3, 8, 9), np.float32)})
        assert caught.value.key == "data"
        assert caught.value.node == "main"
        assert "8" in (caught.value.expected or "")
        assert "9" in (caught.value.got or "")
        assert pipe({"data": np.ones((3, 8, 8), np.float32)})["result"] == pytest.approx(1)


def test_a_truncated_jpeg_fails_alone(model):
    good = jpeg(100)
    requests = [{"data": good}, {"data": good[: len(good) // 2]}, {"data": good}]
    config = {"backend": PIXELS, "model": model, "max": 3}
    with headrace.pipe(config) as pipe, pytest.raises(errors.RequestsFailed) as caught:
        pipe(requests)
    failed = caught.value.errors
    assert isinstance(failed[1], errors.InputError)
    assert [failed[0], failed[2]] == [None, None]
    assert "result" not in requests[1]
    for request in (requests[0], requests[2]):
        assert request["result"] == pytest.approx(100, abs=2)
        assert request["data"] is good


class Counted(headrace.Backend):
    """Identity that counts how often it has seen each datum."""

    seen: dict[int, int]

    def init(self, options, context):
        type(self).seen = {}

    def forward(self, batch):
        for request in batch:
            key = id(request["data"])
            self.seen[key] = self.seen.get(key, 0) + 1
            request["result"] = request["data"]


class FailsLate(headrace.Backend):
    """Identity that refuses a batch with a dark image, and may be tried again item by item."""

    rerun = True

    def forward(self, batch):
        if any(request["data"].mean() < 10 for request in batch):
            raise ValueError("too dark")
        for request in batch:
            request["result"] = request["data"]


def test_when_a_batch_fails_late_nobody_is_decoded_twice():
    headrace.register("Counted", Counted, replace=True)
    headrace.register("FailsLate", FailsLate, replace=True)
    pictures = [jpeg(200), jpeg(0), jpeg(90)]
    requests = [{"data": picture} for picture in pictures]
    config = {"backend": "S[Counted,DecodeMat,FailsLate,ResizeMat(4,4)]", "max": 3}
    with headrace.pipe(config) as pipe:
        with pytest.raises(errors.RequestsFailed) as caught:
            pipe(requests)
        assert pipe.stats()["nodes"]["main"]["batches"] == 1
    assert [type(e) for e in caught.value.errors] == [
        type(None),
        errors.BackendError,
        type(None),
    ]
    assert isinstance(caught.value.errors[1].__cause__, ValueError)
    assert sorted(Counted.seen.values()) == [1, 1, 1]


def register(name: str, forward) -> None:
    made = type(name, (headrace.Backend,), {"forward": forward})
    headrace.register(name, made, replace=True)


def test_a_backend_that_raises_gives_every_caller_an_error_of_its_own():
    def forward(self, batch):
        raise KeyError("inside")

    register("Raises", forward)
    config = {"backend": "Raises", "max": 2}
    with headrace.pipe(config) as pipe, pytest.raises(errors.RequestsFailed) as caught:
        pipe([{"data": 1}, {"data": 2}])
    first, second = caught.value.errors
    assert type(first) is errors.BackendError
    assert first is not second
    assert isinstance(first.__cause__, KeyError)
    assert first.backend == "Raises"


def test_a_backend_that_writes_nothing_is_named():
    register("Nothing", lambda self, batch: None)
    with (
        headrace.pipe({"backend": "S[Identity,Nothing]"}) as pipe,
        pytest.raises(errors.NoResultError) as caught,
    ):
        pipe({"data": 1})
    assert "Nothing" in str(caught.value) or caught.value.backend in ("Nothing", "S")


@pytest.mark.parametrize("outcome", [[], [None, None, None], "text", [1], 5, (None,)])
def test_a_backend_that_returns_something_else_broke_the_contract(outcome):
    def forward(self, batch):
        for request in batch:
            request["result"] = 1
        return outcome

    register("Returns", forward)
    with headrace.pipe({"backend": "Returns"}) as pipe, pytest.raises(errors.ContractError):
        pipe({"data": 1})


def test_close_returns_although_a_backend_never_does():
    entered, leave = threading.Event(), threading.Event()

    def forward(self, batch):
        entered.set()
        leave.wait()

    register("Hangs", forward)
    pipe = headrace.pipe({"backend": "Hangs"})
    try:
        running = pipe.submit({"data": 1})
        assert entered.wait(30)
        waiting = pipe.submit({"data": 2})
        pipe.close(drain=False, timeout=0)
        with pytest.raises(errors.ClosedError) as caught:
            running.result(30)
        assert caught.value.abandoned
        with pytest.raises(errors.ClosedError) as caught:
            waiting.result(30)
        assert not caught.value.abandoned
        with pytest.raises(errors.ClosedError):
            pipe({"data": 3})
    finally:
        leave.set()


def test_a_full_queue_refuses_with_both_numbers():
    entered, leave = threading.Event(), threading.Event()

    def forward(self, batch):
        entered.set()
        leave.wait()
        for request in batch:
            request["result"] = request["data"]

    register("Holds", forward)
    config = {"backend": "Holds", "queue_size": 1, "queue_full": "reject"}
    with headrace.pipe(config) as pipe:
        first = pipe.submit({"data": 1})
        assert entered.wait(30)
        second = pipe.submit({"data": 2})
        with pytest.raises(errors.OverloadedError) as caught:
            pipe({"data": 3})
        assert (caught.value.queue_size, caught.value.waiting) == (1, 1)
        leave.set()
        assert [first.result(30)["result"], second.result(30)["result"]] == [1, 2]
