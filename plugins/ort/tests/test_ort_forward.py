import importlib.util
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from onnx import TensorProto as T

import headrace
from headrace.errors import BackendError, InputError, SetupError
from headrace_ort.session import bare_run
from headrace_ort.signature import read_signature

OCR_MODELS = Path(importlib.util.find_spec("rapidocr").origin).parent / "models"


def results(backend, batch):
    assert backend(batch) is None
    return [request["result"] for request in batch]


@pytest.fixture
def matmul(save):
    weights = np.arange(12, dtype=np.float32).reshape(4, 3)
    path = save(
        [("MatMul", ["x", "w"], ["y"], {})],
        [("x", T.FLOAT, ["n", 4])],
        [("y", T.FLOAT, ["n", 3])],
        [("w", weights)],
    )
    return path, weights


def test_no_rows_give_what_onnx_runtime_gives(start, matmul):
    path, weights = matmul
    none = {"data": np.zeros((0, 4), np.float32), "request_size": 0}
    more = {"data": np.arange(8, dtype=np.float32).reshape(2, 4), "request_size": 2}
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    (wanted,) = session.run(None, {"x": none["data"]})
    backend = start(path)
    (alone,) = results(backend, [dict(none)])
    first, second, _ = results(backend, [dict(none), more, {"data": more["data"][0]}])
    for result in (alone, first):
        assert (result.shape, result.dtype) == (wanted.shape, wanted.dtype) == ((0, 3), np.float32)
    np.testing.assert_allclose(second, more["data"] @ weights)


def test_a_session_without_an_inner_one_runs_by_itself(one_to_one):
    """ONNX Runtime may rename what its `InferenceSession` keeps inside: then its own ``run`` is called."""
    import onnxruntime as ort

    class Public:
        """What is documented of a session."""

        def __init__(self, session):
            self.run = session.run

    array = np.arange(6, dtype=np.float32).reshape(2, 3)
    model = one_to_one(["n", 3], "Neg")
    session = ort.InferenceSession(str(model), providers=["CPUExecutionProvider"])
    for one in (session, Public(session)):
        (found,) = bare_run(one)(["y"], {"x": array}, None)
        np.testing.assert_array_equal(found, -array)


@pytest.mark.parametrize(
    ("kind", "dtype"),
    [
        (T.FLOAT16, np.float16),
        (T.DOUBLE, np.float64),
        (T.INT64, np.int64),
        (T.UINT8, np.uint8),
        (T.BOOL, np.bool_),
    ],
)
def test_every_dtype_passes_unchanged_and_no_other_is_taken(start, one_to_one, kind, dtype):
    backend = start(one_to_one(["n", 2], dtype=kind))
    (result,) = results(backend, [{"data": np.array([0, 1], dtype)}])
    assert result.dtype == dtype
    (error,) = backend([{"data": np.array([0, 1], np.float32)}])
    assert (error.key, error.got) == ("data", "float32 [2]")


def test_strings(start, one_to_one):
    backend = start(one_to_one(["n"], dtype=T.STRING))
    got = results(
        backend,
        [{"data": "é"}, {"data": ["a", "b"], "request_size": 2}, {"data": np.array(["c"])}],
    )
    assert [array.tolist() for array in got] == ["é", ["a", "b"], ["c"]]
    bad = [{"data": b"x"}, {"data": np.array([b"x"], object)}, {"data": 3}, {"data": "b\ud800"}]
    for batch in (bad, *([one] for one in bad)):
        assert all(isinstance(error, InputError) for error in backend(batch))


def test_a_fixed_batch_sets_the_range_and_is_filled_up_when_items_fail(start, one_to_one):
    backend = start(one_to_one([4, 2]))
    assert (backend.min, backend.max) == (1, 4)
    batch = [{"data": np.float32([k, k])} for k in range(4)]
    batch[1] = {"data": np.float32([1])}
    outcomes = backend(batch)
    assert [outcome is None for outcome in outcomes] == [True, False, True, True]
    assert [batch[k]["result"].tolist() for k in (0, 2, 3)] == [[0, 0], [2, 2], [3, 3]]


def test_a_model_of_a_fixed_batch_answers_one_request_and_says_so(one_to_one, caplog):
    node = {"backend": "OnnxTensor", "model": str(one_to_one([4, 2], op="Neg"))}
    with headrace.pipe(node) as pipe:
        assert pipe({"data": np.float32([1, 2])})["result"].tolist() == [-1, -2]
    assert "the model is fixed to 4 rows" in caplog.text
    caplog.clear()
    headrace.pipe({**node, "pad": True}).close()
    assert not caplog.text


def test_a_model_fixed_to_one_row_takes_one_item_at_a_time(start, one_to_one):
    backend = start(one_to_one([1, 2]))
    assert (backend.min, backend.max) == (1, 1)
    assert results(backend, [{"data": np.float32([1, 2])}])[0].shape == (2,)
    (error,) = backend([{"data": np.ones((2, 2), np.float32), "request_size": 2}])
    assert isinstance(error, InputError)


@pytest.mark.parametrize("others", [[], [("y", T.FLOAT, ["n", 2])]], ids=len)
def test_an_output_that_is_an_input_is_copied(start, save, monkeypatch, others):
    """ONNX Runtime 1.32 copies it by itself, 1.23 gives the array of the caller."""
    port = ("x", T.FLOAT, ["n", 2])
    backend = start(save([("Neg", ["x"], ["y"], {})], [port], [port, *others]))
    run = lambda session, names, feeds, options=None: [feeds["x"] for _ in names]  # noqa: E731
    monkeypatch.setattr(onnxruntime.InferenceSession, "run", run)
    data = np.float32([[1, 2]])
    (result,) = results(backend, [{"data": data}])
    result = result["x"] if others else result
    np.testing.assert_array_equal(result, data)
    assert not np.shares_memory(result, data)


def test_what_onnx_runtime_refuses_is_a_backend_error_and_prints_nothing(start, save, capfd):
    path = save(
        [("Gather", ["table", "x"], ["y"], {})],
        [("x", T.INT64, ["n", 1])],
        [("y", T.FLOAT, ["n", 1])],
        [("table", np.float32([10, 20]))],
    )
    batch = [{"data": np.int64([k])} for k in (0, 7, 1)]
    outcomes = start(path)(batch)
    assert isinstance(outcomes[1], BackendError)
    assert "indices" in str(outcomes[1].__cause__)
    assert batch[2]["result"].tolist() == [20]
    assert capfd.readouterr() == ("", "")


@pytest.mark.first("run ONNX models: a batch gives each request its own rows")
@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.one_of(st.none(), st.integers(1, 4)), min_size=1, max_size=8), st.data())
def test_a_batch_equals_its_items_one_by_one(start, matmul, sizes, data):
    backend = start(matmul[0])
    numbers = st.floats(-8, 8, width=16)
    batch = []
    for size in sizes:
        values = data.draw(st.lists(numbers, min_size=4 * (size or 1), max_size=4 * (size or 1)))
        array = np.float32(values)
        batch.append(
            {"data": array}
            if size is None
            else {"data": array.reshape(size, 4), "request_size": size}
        )
    alone = [results(backend, [dict(request)])[0] for request in batch]
    for one, together in zip(alone, results(backend, batch), strict=True):
        np.testing.assert_array_equal(one, together)


@pytest.mark.first("run ONNX models: a batch gives each request its own rows")
@pytest.mark.parametrize(
    ("model", "shape"),
    [
        ("ch_ppocr_mobile_v2.0_cls_mobile.onnx", (3, 48, 192)),
        ("PP-OCRv6_rec_small.onnx", (3, 48, 96)),
    ],
)
def test_a_real_model_gives_the_same_in_a_batch(start, model, shape):
    backend = start(OCR_MODELS / model)
    rng = np.random.default_rng(7)
    samples = [rng.uniform(-1, 1, shape).astype(np.float32) for _ in range(4)]
    together = results(backend, [{"data": sample} for sample in samples])
    for sample, result in zip(samples, together, strict=True):
        (alone,) = results(backend, [{"data": sample}])
        np.testing.assert_allclose(alone, result, atol=1e-4)
        assert abs(float(result.sum(axis=-1).mean()) - 1) < 1e-3


@pytest.mark.first("run ONNX models: a batch gives each request its own rows")
@pytest.mark.parametrize("share", [True, False])
def test_two_instances_in_two_threads_agree_with_numpy(matmul, share):
    path, weights = matmul
    samples = np.random.default_rng(1).normal(size=(200, 4)).astype(np.float32)
    config = {
        "backend": "OnnxTensor",
        "model": str(path),
        "instance_num": 2,
        "share_weights": share,
    }
    with headrace.pipe(config) as pipe:
        built = pipe.describe()["nodes"]["main"]["tree"]["built"]
        assert built["shared_session"] is share
        futures = [pipe.submit({"data": sample}) for sample in samples]
        found = [future.result(60)["result"] for future in futures]
    np.testing.assert_allclose(found, samples @ weights, atol=1e-5)


# A batch axis that is not the first.


@pytest.fixture
def recurrent(save):
    """``state`` ``[2, n, 3]`` plus ``x`` ``[n, 3]`` in both layers, and what is left of it for next time."""
    return save(
        [
            ("Unsqueeze", ["x", "front"], ["layer"], {}),
            ("Add", ["state", "layer"], ["next"], {}),
            ("ReduceSum", ["next", "axes"], ["y"], {"keepdims": 0}),
        ],
        [("x", T.FLOAT, ["n", 3]), ("state", T.FLOAT, [2, "n", 3])],
        [("y", T.FLOAT, ["n"]), ("next", T.FLOAT, [2, "n", 3])],
        [("front", np.int64([0])), ("axes", np.int64([0, 2]))],
    )


STATES = {"batch_axis": {"state": 1, "next": 1}}


def test_a_state_with_its_batch_axis_elsewhere_is_stacked_and_given_back(start, recurrent):
    random = np.random.default_rng(0)
    xs, states = random.random((5, 3), np.float32), random.random((5, 2, 3), np.float32)
    batch = [{"x": x, "state": state} for x, state in zip(xs, states, strict=True)]
    for x, state, got in zip(xs, states, results(start(recurrent, **STATES), batch), strict=True):
        assert got["next"].shape == (2, 3)
        np.testing.assert_allclose(got["next"], state + x)
        np.testing.assert_allclose(got["y"], (state + x).sum(), rtol=1e-5)
        owner = got["next"] if got["next"].base is None else got["next"].base
        assert owner.nbytes == got["next"].nbytes


def test_describe_says_which_axis_is_the_batch(start, recurrent):
    built = start(recurrent, **STATES).describe()
    assert built["inputs"]["state"]["batch_axis"] == 1
    assert built["outputs"]["next"] == {
        "dtype": "float32",
        "shape": [2, None, 3],
        "batched": True,
        "batch_axis": 1,
    }


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch_axis": {"stat": 1}}, "`batch_axis` names 'stat'"),
        ({"batch_axis": {"state": 3}}, "state = 3, and its axes are"),
        ({"batch_axis": {"state": 2}}, "fixed there to another length"),
    ],
)
def test_a_batch_axis_that_cannot_be_is_told_at_setup(start, recurrent, options, message):
    with pytest.raises(SetupError) as caught:
        start(recurrent, **options)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("inside", "outside", "options", "said"),
    [
        (["t", "n", 2], ["t", "n", 2], {"batch_axis": {"x": 1}}, "batch_axis = {y = 1}"),
        (["n", "t", 2], ["t", "n", 2], {}, "batch_axis = {y = 1}"),
        (["n", "t", 2], [None, "n", 2], {}, "batch_axis = {y = 1}"),
        ([None, "t", 2], ["t", None, 2], {}, "batch_axis = {y = 1}"),
        (["n", "t", 2], ["t", "n", 2], {"batch_axis": {"y": 1}}, None),
        (["n", "t", 2], ["t", "n", 2], {"unbatched": ["y"]}, None),
        (["n", "t", 2], ["m", "t", 2], {}, "in `unbatched`"),
        (["n", "n", 2], ["n", "n", 2], {}, None),
        (["n", "t", 2], [3, "n", 2], {}, "batch_axis = {y = 1}"),
        ([1, 3, "width"], [3, 1, "width"], {}, None),
        ([1, "t", 2], ["t", 1, 2], {}, "batch_axis = {y = 1}"),
    ],
)
def test_an_output_whose_first_axis_has_the_name_of_another_is_refused(
    start, one_to_one, inside, outside, options, said
):
    """Where a batch is as long as that axis, each request would get a part of everybody's output."""
    path = one_to_one(inside, op="Transpose", out_shape=outside, perm=[1, 0, 2])
    if said is None:
        start(path, **options)
        return
    with pytest.raises(SetupError, match="by the names of its axes") as caught:
        start(path, **options)
    assert said in str(caught.value)


def test_a_name_with_and_without_batch_axis_is_told_by_the_function_too(recurrent):
    both = {"unbatched": ["state"], "batch_axis": {"state": 1}}
    with pytest.raises(SetupError, match="in `unbatched` and in"):
        read_signature(onnxruntime.InferenceSession(str(recurrent)), **both)


def test_an_output_with_the_batch_elsewhere_that_nobody_named_is_refused(start, recurrent):
    with pytest.raises(SetupError, match="output next") as caught:
        start(recurrent, batch_axis={"state": 1})
    assert "batch_axis = {next = 1}" in caught.value.hint
    backend = start(recurrent, batch_axis={"state": 1}, unbatched=["next"])
    request = {"x": np.zeros(3, np.float32), "state": np.zeros((2, 3), np.float32)}
    assert backend.max == 1, "the output is given whole, so requests run one at a time"
    assert results(backend, [request])[0]["next"].shape == (2, 1, 3)
