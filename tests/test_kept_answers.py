"""`Cache` and `Once` around backends of other distributions: what these read is compared."""

from __future__ import annotations

import numpy as np
import pytest

import headrace
from headrace import errors, plugins
from headrace.plugins import resolve

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")
cv2 = pytest.importorskip("cv2")


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """The sum of two inputs, ``x`` and ``y``."""
    from onnx import TensorProto, helper

    ports = [helper.make_tensor_value_info(n, TensorProto.FLOAT, ["N", 2]) for n in "xyz"]
    graph = helper.make_graph(
        [helper.make_node("Add", ["x", "y"], ["z"])], "g", ports[:2], ports[2:]
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    path = tmp_path_factory.mktemp("sum") / "sum.onnx"
    onnx.save(made, path)
    return str(path)


def two(x, y, **more):
    return {"x": np.full(2, x, np.float32), "y": np.full(2, y, np.float32), **more}


def results(backend, requests, **keys):
    with headrace.pipe({"backend": backend, "max": 8, **keys}) as pipe:
        if backend.startswith("Once"):
            answers = pipe([dict(one) for one in requests])
            return [one["result"] for one in answers], pipe.stats()["once"]["main"]["shared"]
        answers = [pipe(dict(one)) for one in requests]
        return [one["result"] for one in answers], pipe.stats()["caches"]["main"]["hits"]


@pytest.mark.parametrize("word", ["Cache", "Once"])
@pytest.mark.parametrize("inside", ["OnnxTensor", "S[OnnxTensor]", "S[OnnxTensor,Identity]"])
def test_the_inputs_of_a_model_are_compared_and_no_data_is_needed(word, inside, model):
    requests = [two(1, 1), two(1, 50), two(9, 50), two(1, 1, data=None), two(1, 1, data=7)]
    found, same = results(f"{word}[{inside}]", requests, model=model)
    assert [one.tolist() for one in found] == [[n, n] for n in (2, 51, 59, 2, 2)]
    assert same == 2


@pytest.mark.parametrize("word", ["Cache", "Once"])
def test_inputs_that_have_keys_of_other_names_are_compared(word, model):
    requests = [{"data": np.ones(2, "f4"), "b": np.full(2, k, "f4")} for k in (1, 5, 1)]
    inputs = {"x": "data", "y": "b"}
    found, same = results(f"{word}[S[OnnxTensor]]", requests, model=model, inputs=inputs)
    assert ([one[0] for one in found], same) == ([2, 6, 2], 1)


@pytest.mark.parametrize("inside", ["Process[OnnxTensor]", "S[Process[S[OnnxTensor]]]"])
def test_the_inputs_of_a_model_in_another_process_are_compared(inside, model):
    requests = [two(1, 1), two(1, 50), two(1, 1)]
    found, same = results(f"Cache[{inside}]", requests, model=model)
    assert ([one[0] for one in found], same) == ([2, 51, 2], 1)


@pytest.mark.parametrize("word", ["Cache", "Once"])
@pytest.mark.parametrize(("inside", "key"), [("CropMat", "box"), ("CropMat(key=place)", "place")])
@pytest.mark.parametrize("around", ["{}", "S[{}]", "S[{},Identity]", "S[Identity,{}]"])
def test_the_key_that_an_option_names_is_compared(word, inside, key, around):
    image = np.arange(4800, dtype=np.uint8).reshape(40, 40, 3)
    boxes = ([0, 0, 20, 20], [0, 20, 20, 40], [0, 0, 20, 20])
    requests = [{"data": image, key: box} for box in boxes]
    found, same = results(f"{word}[{around.format(inside)}]", requests)
    for crop, (left, top, right, bottom) in zip(found, boxes, strict=True):
        assert np.array_equal(crop, image[top:bottom, left:right])
    assert same == 1


UNKNOWN = {"Script", "Send", "Observer", "Repost", "Benchmark", "Call"}
"""What reads as its options, its code or its queue say: `Cache` asks for the keys."""


def test_every_other_backend_of_the_project_says_what_it_reads():
    """Around each alone, `Cache` has no question, so that `keys` is needed for a user's own classes only."""
    asked, looked = set(), 0
    for plugin in [*plugins.installed(), plugins.core()]:
        for name in plugin.backends:
            try:
                element = resolve({"backend": f"Cache[{name}]"})
            except errors.ConfigError as error:
                asked |= {name for one in error.problems if "does not say" in one.message}
            else:
                looked += element is not None
    assert asked <= UNKNOWN
    assert looked > 10
