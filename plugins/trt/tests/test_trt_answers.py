"""Outputs that belong to a whole run, inputs without batch axis, and what is cut: compared with bare ONNX Runtime."""

import numpy as np
import pytest
from onnx import TensorProto as T
from trt_expressions import PLAIN, SHORT

from headrace.errors import SetupError

onnxruntime = pytest.importorskip("onnxruntime")


def bare(path, **feeds):
    return onnxruntime.InferenceSession(str(path)).run(None, feeds)


def test_an_output_that_does_not_follow_the_rows_is_refused_and_given_whole_when_named(
    device, plan, pipe, save
):
    ports = [("x", T.FLOAT, ["n", 4])], [("y", T.FLOAT, ["m"])]
    model = save([("Reshape", ["x", "shape"], ["y"], {})], *ports, [("shape", np.int64([-1]))])
    made = plan(model, {"x": ((1, 4), (2, 4), (8, 4))})
    with pytest.raises(SetupError, match="output 'y'") as caught:
        pipe(backend=SHORT, model=str(made), max=8)
    assert "`unbatched`" in caught.value.hint
    p = pipe(backend=SHORT, model=str(made), max=8, unbatched=["y"])
    requests = [{"data": np.arange(4, dtype=np.float32) + k} for k in range(3)]
    for request in p(requests):
        expected = bare(model, x=request["data"][None])[0]
        np.testing.assert_array_equal(request["result"], expected)


def test_requests_with_equal_inputs_without_batch_axis_share_a_run(device, plan, pipe, save):
    ports = [("x", T.FLOAT, ["n", 3]), ("bias", T.FLOAT, [3])], [("y", T.FLOAT, ["n", 3])]
    model = save([("Add", ["x", "bias"], ["y"], {})], *ports)
    made = plan(model, {"x": ((1, 3), (4, 3), (8, 3)), "bias": ((3,), (3,), (3,))})
    p = pipe(backend=SHORT, model=str(made), max=8, unbatched=["bias"])
    assert p.describe()["nodes"]["main"]["range"] == [1, 8]
    ones = np.ones(3, np.float32)
    requests = [{"x": k * ones, "bias": (k % 2) * ones} for k in range(4)]
    requests.append({"x": np.zeros((2, 3), np.float32), "bias": ones, "request_size": 2})
    for found in p(requests):
        x = np.atleast_2d(found["x"])
        np.testing.assert_array_equal(
            np.atleast_2d(found["result"]), bare(model, x=x, bias=found["bias"])[0]
        )


def test_an_output_is_cut_to_what_the_request_brought(device, plan, pipe, image):
    model, expected = image
    made = plan(model, {"x": ((1, 3, 4, 4), (4, 3, 6, 6), (8, 3, 9, 9))})
    config = {"model": str(made), "max": 8, "ragged": "pad"}
    p = pipe(backend=SHORT, **config)
    small, large = (np.ones((3, n, n), np.float32) for n in (4, 7))
    padded = np.zeros((3, 7, 7), np.float32)
    padded[:, :4, :4] = small
    first, second = p([{"data": small}, {"data": large}])
    np.testing.assert_allclose(first["result"], expected(padded)[:, :4, :4], rtol=1e-5)
    np.testing.assert_allclose(second["result"], expected(large), rtol=1e-5)
    with pytest.raises(SetupError, match="`crop`"):
        pipe(backend=PLAIN, **config)
    with pytest.raises(SetupError, match="on the device"):
        pipe(backend=SHORT, output_device="device", **config)


@pytest.mark.parametrize(
    ("nodes", "says"),
    [
        (
            [("Gather", ["x", "from"], ["a"], {"axis": 0}), ("Expand", ["a", "like"], ["y"], {})],
            True,
        ),
        ([("CumSum", ["x", "axis"], ["y"], {})], True),
        ([("CumSum", ["x", "axis"], ["y"], {"reverse": 1})], True),
        ([("CumSum", ["x", "row"], ["y"], {})], False),
        ([("Softmax", ["x"], ["y"], {"axis": 1})], False),
    ],
    ids=["first", "before", "behind", "row", "softmax"],
)
def test_a_row_whose_answer_other_rows_change_is_a_warning(
    device, plan, pipe, save, caplog, nodes, says
):
    """Bare ONNX Runtime says which: what a row gives alone is not what it gives as the second of two."""
    weights = [("from", np.int64([0])), ("axis", np.int64(0)), ("row", np.int64(1))]
    shape = [("Shape", ["x"], ["like"], {})]
    ports = [("x", T.FLOAT, ["n", 4])], [("y", T.FLOAT, ["n", 4])]
    model = save([*shape, *nodes], *ports, weights)
    rows = np.random.default_rng(0).random((2, 4)).astype(np.float32)
    whole = bare(model, x=rows)[0]
    alone = np.concatenate([bare(model, x=row[None])[0] for row in rows])
    assert np.allclose(whole, alone, atol=1e-3) is not says
    made = plan(model, {"x": ((1, 4), (2, 4), (8, 4))})
    pipe(backend=SHORT, model=str(made), max=8)
    assert ("output 'y' of a row depends on its batch" in caplog.text) is says
    caplog.clear()
    pipe(backend=SHORT, model=str(made), max=1)
    assert not caplog.text


def test_a_padded_sample_gets_as_many_frames_as_alone(device, plan, pipe, save):
    """A convolution over time with steps of 4, as bare ONNX Runtime counts its frames."""
    model = save(
        [("Conv", ["x", "w"], ["y"], {"strides": [4]})],
        [("x", T.FLOAT, ["n", 1, "t"])],
        [("y", T.FLOAT, ["n", 1, "frames"])],
        [("w", np.ones((1, 1, 4), np.float32))],
    )
    made = plan(model, {"x": ((1, 1, 4), (2, 1, 20), (8, 1, 50))})
    p = pipe(backend=SHORT, model=str(made), max=8, ragged="pad")
    samples = [np.ones((1, n), np.float32) for n in (4, 7, 8, 19, 41, 50)]
    for found, sample in zip(p([{"data": x} for x in samples]), samples, strict=True):
        assert found["result"].shape == bare(model, x=sample[None])[0][0].shape


def test_an_output_of_all_rows_against_all_is_refused(device, plan, pipe, save):
    model = save(
        [("Transpose", ["x"], ["t"], {"perm": [1, 0]}), ("MatMul", ["x", "t"], ["y"], {})],
        [("x", T.FLOAT, ["n", 3])],
        [("y", T.FLOAT, ["n", "m"])],
    )
    made = plan(model, {"x": ((1, 3), (4, 3), (8, 3))})
    with pytest.raises(SetupError, match="two batch axes"):
        pipe(backend=SHORT, model=str(made), max=8)
    p = pipe(backend=SHORT, model=str(made), max=1)
    assert p({"data": np.ones(3, np.float32)})["result"].tolist() == [3]
