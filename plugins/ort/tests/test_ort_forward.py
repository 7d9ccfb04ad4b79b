import importlib.util
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

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
from headrace_tensors import joined, rows_apart

OCR_MODELS = Path(importlib.util.find_spec("rapidocr").origin).parent / "models"

ENDLESS = []
ENDLESS.append(ENDLESS)  # a list that contains itself


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


@pytest.fixture
def pooled(save):
    """A convolution along the width, then the sum of all of it: zeros at the end add nothing."""
    return save(
        [
            ("Conv", ["x", "w"], ["c"], {}),
            ("ReduceSum", ["c", "axes"], ["y"], {"keepdims": 0}),
        ],
        [("x", T.FLOAT, ["n", 1, "width"])],
        [("y", T.FLOAT, ["n", 1])],
        [("w", np.float32([[[2.0]]])), ("axes", np.int64([2]))],
    )


@pytest.fixture
def concat(save):
    """Two inputs side by side, and their sum."""
    return save(
        [("Concat", ["a", "b"], ["both"], {"axis": 1}), ("Add", ["a", "b"], ["sum"], {})],
        [("a", T.FLOAT, ["n", 2]), ("b", T.FLOAT, ["n", 2])],
        [("both", T.FLOAT, ["n", 4]), ("sum", T.FLOAT, ["n", 2])],
    )


def bare(path, feeds):
    """Run ONNX Runtime itself on inputs without a row."""
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    return session.run(None, feeds)


def test_no_rows_give_what_onnx_runtime_gives_alone_and_among_others(start, matmul):
    path, weights = matmul
    none = {"data": np.zeros((0, 4), np.float32), "request_size": 0}
    (wanted,) = bare(path, {"x": none["data"]})
    some = np.arange(8, dtype=np.float32).reshape(2, 4)
    more = {"data": some, "request_size": 2}
    backend = start(path)
    for batch in (
        [none],
        [none, none],
        [none, more, {"data": some[0]}],
        [more, none],
        [more, none, more],
    ):
        for request, result in zip(
            batch, results(backend, [dict(one) for one in batch]), strict=True
        ):
            if request is none:
                assert (
                    (result.shape, result.dtype)
                    == (wanted.shape, wanted.dtype)
                    == ((0, 3), np.float32)
                )
            else:
                np.testing.assert_allclose(result, request["data"] @ weights)


def test_no_rows_of_several_inputs_and_outputs(start, concat):
    none = {"a": np.zeros((0, 2), np.float32), "b": np.zeros((0, 2), np.float32)}
    wanted = bare(concat, none)
    (result,) = results(start(concat), [{**none, "request_size": 0}])
    assert [result[name].shape for name in ("both", "sum")] == [one.shape for one in wanted]
    row = np.ones((1, 2), np.float32)
    (error,) = start(concat)([{**none, "b": row, "request_size": 0}])
    assert "the number of rows is not `request_size`" in str(error)


@pytest.mark.parametrize("ragged", [{}, {"ragged": "pad"}])
def test_no_rows_share_a_batch_of_unequal_widths(start, pooled, ragged):
    none = {"data": np.zeros((0, 1, 5), np.float32), "request_size": 0}
    rows = [{"data": np.ones((1, 1, width), np.float32), "request_size": 1} for width in (2, 7)]
    got = results(start(pooled, **ragged), [rows[0], none, rows[1]])
    assert [one.tolist() for one in got] == [[[4.0]], [], [[14.0]]]
    assert got[1].shape == bare(pooled, {"x": none["data"]})[0].shape


def test_no_rows_of_texts_and_of_another_batch_axis(start, one_to_one, save):
    texts = one_to_one(["n", 2], dtype=T.STRING)
    none = np.zeros((0, 2), object)
    assert results(start(texts), [{"data": none, "request_size": 0}])[0].shape == (0, 2)
    across = save(
        [("Identity", ["x"], ["y"], {})],
        [("x", T.FLOAT, [3, "n"])],
        [("y", T.FLOAT, [3, "n"])],
        name="across.onnx",
    )
    backend = start(across, batch_axis={"x": 1, "y": 1})
    some = np.ones((3, 2), np.float32)
    batch = [{"data": some, "request_size": 2}, {"data": some[:, :0], "request_size": 0}]
    assert [one.shape for one in results(backend, batch)] == [(3, 2), (3, 0)]


def test_no_rows_of_a_model_of_a_fixed_batch(one_to_one):
    path = one_to_one([4, 3], op="Neg")
    none = {"data": np.zeros((0, 3), np.float32), "request_size": 0}
    some = {"data": np.ones((2, 3), np.float32), "request_size": 2}
    with headrace.pipe({"backend": "OnnxTensor", "model": str(path), "pad": True}) as pipe:
        assert pipe(dict(none))["result"].shape == (0, 3)
        first, second = pipe([dict(none), dict(some)])
    assert first["result"].shape == (0, 3)
    np.testing.assert_array_equal(second["result"], -some["data"])


@pytest.mark.parametrize(
    "wrong",
    [
        {"data": np.zeros((0, 4), np.float32)},  # `request_size` is 1
        {"data": np.zeros((1, 4), np.float32), "request_size": 0},
        {"data": np.zeros((0, 5), np.float32), "request_size": 0},
        {"data": np.zeros((0, 4), np.float32), "request_size": -1},
        {"data": [], "request_size": 0},
    ],
)
def test_rows_that_are_not_what_the_request_says_are_refused(matmul, wrong):
    config = {"backend": "OnnxTensor", "model": str(matmul[0])}
    with headrace.pipe(config) as pipe, pytest.raises(InputError):
        pipe(wrong)


def test_no_rows_pass_through_a_graph(matmul):
    path, weights = matmul
    node = {"backend": "OnnxTensor", "model": str(path), "max": 4}
    config = {"first": {"backend": "Identity", "max": 4, "next": "second"}, "second": node}
    some = np.ones((2, 4), np.float32)
    with headrace.pipe(config) as pipe:
        found = pipe([
            {"data": some[:0], "request_size": 0}, {"data": some, "request_size": 2},
        ])  # fmt: skip
    assert found[0]["result"].shape == (0, 3)
    np.testing.assert_allclose(found[1]["result"], some @ weights)


@pytest.mark.parametrize("dtype", ["uint8", ">f4", "float64", "bool", object])
@pytest.mark.parametrize("sample", [(), (3,), (2, 0), (3, 100, 100), (1100, 1000)])
@pytest.mark.parametrize("library", [None, "cv2"])
def test_arrays_are_joined_as_numpy_joins_them_and_taken_apart_again(
    dtype, sample, library, monkeypatch
):
    monkeypatch.setitem(sys.modules, "cv2", library and pytest.importorskip(library))
    rng = np.random.default_rng(3)
    arrays = [rng.integers(0, 2, (rows, *sample)).astype(dtype) for rows in (1, 2, 1)]
    for mixed in (arrays, [arrays[0], np.asfortranarray(arrays[1]), arrays[1][::-1]]):
        wanted = np.concatenate(mixed)
        for out in (None, np.empty_like(wanted)):
            found = joined(mixed, out)
            assert found is out or out is None
            assert found.dtype == wanted.dtype
            np.testing.assert_array_equal(found, wanted)
        for row, expected in zip(rows_apart(wanted), wanted, strict=True):
            assert row.dtype == wanted.dtype
            assert not np.shares_memory(row, wanted)
            np.testing.assert_array_equal(row, expected)
            assert row.shape == sample


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


def test_results_own_their_memory(start, one_to_one):
    backend = start(one_to_one(["n", 2]))
    batch = [{"data": np.float32([k, k])} for k in range(4)]
    got = results(backend, batch)
    for array in got:
        owner = array if array.base is None else array.base
        assert getattr(owner, "nbytes", array.nbytes) == array.nbytes
        array += 100
    assert got[3].tolist() == [103, 103]
    assert batch[3]["data"].tolist() == [3, 3]
    alone = np.float32([1, 2])
    (result,) = results(backend, [{"data": alone}])
    assert not np.shares_memory(result, alone)


def test_a_request_for_several_inputs_needs_no_data_and_what_is_missing_is_named(concat):
    one = np.float32([1, 2])
    with headrace.pipe({"backend": "OnnxTensor", "model": str(concat), "max": 4}) as pipe:
        assert pipe({"a": one, "b": one})["result"]["sum"].tolist() == [2, 4]
        for send in (pipe, lambda request: pipe.submit(request).result(60)):
            with pytest.raises(InputError) as caught:
                send({"a": one})
            assert caught.value.key == "b"
    renamed = {"inputs": {"a": "data", "b": "mask"}, "outputs": ["sum"]}
    with headrace.pipe({"backend": "OnnxTensor", "model": str(concat), **renamed}) as pipe:
        with pytest.raises(InputError) as caught:
            pipe({"mask": one})
        assert caught.value.key == "data"


@pytest.mark.parametrize(
    ("shape", "size"), [((3, 4), 2), ((3, 4), 1), ((4,), 2), ((0, 4), 1)], ids=str
)
def test_the_number_of_rows_must_be_request_size(start, matmul, shape, size):
    (error,) = start(matmul[0])([{"data": np.ones(shape, np.float32), "request_size": size}])
    assert isinstance(error, InputError)
    assert "request_size" in error.what


def test_inputs_of_one_request_have_the_axis_all_or_none(start, concat):
    request = {"data": 0, "a": np.ones(2, np.float32), "b": np.ones((1, 2), np.float32)}
    (error,) = start(concat)([request])
    assert error.key == "b"


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
    bad = [{"data": b"x"}, {"data": np.array([b"x"], object)}, {"data": 3}]
    assert all(isinstance(error, InputError) for error in backend(bad))


@pytest.mark.parametrize("wrong", [1, None, b"x"])
def test_strings_are_looked_at_in_a_request_that_runs_alone_too(start, one_to_one, wrong):
    backend = start(one_to_one(["n", 2], dtype=T.STRING))
    (error,) = backend([{"data": np.array(["a", wrong], object)}])
    assert isinstance(error, InputError)
    assert error.key == "data"


@pytest.mark.parametrize(
    ("kind", "value", "expected"),
    [
        (T.FLOAT, [1, 2], [1.0, 2.0]),
        (T.FLOAT, (0.5, 2), [0.5, 2.0]),
        (T.FLOAT, [0.5, 1 << 64], [0.5, 2.0**64]),
        (T.DOUBLE, [1, 1 << 1024], None),
        (T.UINT8, [1, 255], [1, 255]),
        (T.UINT8, [1, 256], None),
        (T.UINT64, [1, (1 << 64) - 1], [1, (1 << 64) - 1]),
        (T.UINT64, [1, 1 << 64], None),
        (T.UINT64, [1, 2.0], None),
        (T.STRING, ["1", "b"], ["1", "b"]),
        (T.STRING, ["1", 2], None),
        (T.INT64, [0.5, 1], None),
        (T.INT64, [True, False], None),
        (T.FLOAT16, [1e6, 0.0], None),
        (T.FLOAT, [np.float64(1), np.float64(2)], None),
        (T.FLOAT, [[1], [1, 2]], None),
        (T.FLOAT, ENDLESS, None),
        (T.STRING, ENDLESS, None),
        (T.FLOAT, {"a": 1}, None),
        (T.FLOAT, None, None),
    ],
    ids=str,
)
def test_lists_get_the_dtype_only_where_nothing_is_lost(start, one_to_one, kind, value, expected):
    request = {"data": value}
    outcome = start(one_to_one(["n", 2], dtype=kind))([request])
    if expected is None:
        assert isinstance(outcome[0], InputError)
        assert outcome[0].key == "data"
    else:
        assert request["result"].tolist() == expected


def test_arrays_come_in_through_dlpack_and_array_protocols(start, one_to_one):
    class OnlyDlpack:
        def __init__(self, array):
            self.__dlpack__ = array.__dlpack__
            self.__dlpack_device__ = array.__dlpack_device__

    class Broken:
        def __array__(self, dtype=None, copy=None):
            raise RuntimeError("this one lies on another device")

    class OnlyArray:
        def __array__(self, dtype=None, copy=None):
            return np.float32([3, 4])

    class BrokenDlpack:
        def __dlpack_device__(self):
            raise RuntimeError("this one lies on another device")

        __dlpack__ = __dlpack_device__

    backend = start(one_to_one(["n", 2]))
    arrays = (OnlyDlpack(np.float32([1, 2])), Broken(), OnlyArray(), BrokenDlpack())
    batch = [{"data": array} for array in arrays]
    outcomes = backend(batch)
    for broken in (1, 3):
        assert isinstance(outcomes[broken], InputError)
        assert "another device" in outcomes[broken].what
    assert batch[0]["result"].tolist() == [1, 2]
    assert batch[2]["result"].tolist() == [3, 4]


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


def test_requests_with_different_scalars_run_apart(start, save):
    path = save(
        [("Mul", ["x", "by"], ["y"], {})],
        [("x", T.FLOAT, ["n", 2]), ("by", T.FLOAT, [])],
        [("y", T.FLOAT, ["n", 2])],
    )
    batch = [{"data": 0, "x": np.float32([k, 1]), "by": float(k % 2)} for k in range(5)]
    batch[2]["by"] = np.float32([1])
    outcomes = start(path)(batch)
    assert outcomes[2].key == "by"
    expected = [[0, 0], [1, 1], None, [3, 1], [0, 0]]
    for request, value in zip(batch, expected, strict=True):
        assert value is None or request["result"].tolist() == value


def test_scalars_of_equal_value_are_different_where_their_bytes_are(start, save):
    path = save(
        [("Div", ["x", "by"], ["y"], {})],
        [("x", T.FLOAT, ["n", 1]), ("by", T.FLOAT, [])],
        [("y", T.FLOAT, ["n", 1])],
    )
    batch = [{"x": np.float32([1]), "by": np.float32(by)} for by in (0.0, -0.0, 0.0)]
    assert [one.tolist() for one in results(start(path), batch)] == [[np.inf], [-np.inf], [np.inf]]


def test_an_output_without_the_rows_of_the_batch_is_an_error_for_plain_samples_too(start, save):
    """A negative number in a row removes the row, which random numbers from 0 to 1 do not show."""
    path = save(
        [
            ("ReduceMin", ["x"], ["least"], {"axes": [1], "keepdims": 0}),
            ("GreaterOrEqual", ["least", "zero"], ["kept"], {}),
            ("Compress", ["x", "kept"], ["y"], {"axis": 0}),
        ],
        [("x", T.FLOAT, [None, 2])],
        [("y", T.FLOAT, [None, 2])],
        [("zero", np.float32(0))],
    )
    batch = [{"data": np.float32([k, -k])} for k in range(2)]
    good, bad = start(path)(batch)
    assert good is None
    assert isinstance(bad, BackendError)
    assert bad.what == "output 'y' is [0, 2] for a batch of 1 row"
    assert "result" not in batch[1]


def test_a_whole_output_of_a_fixed_batch_is_computed_of_the_rows_of_one_request(start, save):
    path = save(
        [("ReduceSum", ["x"], ["sum"], {"keepdims": 0}), ("Neg", ["x"], ["y"], {})],
        [("x", T.FLOAT, [3, 2])],
        [("sum", T.FLOAT, []), ("y", T.FLOAT, [3, 2])],
    )
    backend = start(path, unbatched=["sum"])
    assert (backend.min, backend.max) == (3, 3)
    rows = np.arange(6, dtype=np.float32).reshape(3, 2)
    (result,) = results(backend, [{"data": rows, "request_size": 3}])
    assert result["sum"] == 15
    np.testing.assert_array_equal(result["y"], -rows)
    for error in backend([{"data": row} for row in rows]):
        assert isinstance(error, InputError)
        assert error.what == "the model takes 3 rows at once"
    alone = start(path, unbatched=["sum"], outputs=["y"])
    found = results(alone, [{"data": row} for row in rows])
    np.testing.assert_array_equal(found, -rows)


@pytest.mark.parametrize("others", [[], [("y", T.FLOAT, ["n", 2])]], ids=len)
def test_an_output_that_is_an_input_is_copied(start, save, others):
    """ONNX Runtime 1.32 copies it by itself, 1.23 gives the array of the caller."""
    port = ("x", T.FLOAT, ["n", 2])
    backend = start(save([("Neg", ["x"], ["y"], {})], [port], [port, *others]))
    backend._session = SimpleNamespace(run=lambda names, feeds, _: [feeds["x"] for _ in names])
    data = np.float32([[1, 2]])
    (result,) = results(backend, [{"data": data}])
    result = result["x"] if others else result
    np.testing.assert_array_equal(result, data)
    assert not np.shares_memory(result, data)


def test_inputs_that_differ_in_an_axis_of_one_name_are_not_padded_to_one_length(start, save):
    path = save(
        [("Add", ["a", "b"], ["y"], {})],
        [("a", T.FLOAT, ["n", "w"]), ("b", T.FLOAT, ["n", "w"])],
        [("y", T.FLOAT, ["n", "w"])],
    )
    for multiple in (1, 4):
        backend = start(path, ragged="pad", pad_multiple=multiple)
        sizes = [(3, 3), (3, 2), (2, 2)]
        batch = [
            {key: np.ones(n, np.float32) for key, n in zip("ab", ab, strict=True)} for ab in sizes
        ]
        for requests, bad in ((batch, 1), ([dict(batch[1])], 0)):
            outcomes = backend(requests)
            assert [place for place, error in enumerate(outcomes) if error] == [bad]
            assert (outcomes[bad].key, outcomes[bad].expected) == ("b", "3, as in 'a'")


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
def test_two_instances_in_two_threads_agree_with_one(start, matmul, share):
    path, weights = matmul
    node = headrace.InitContext().store.node
    backends = [
        start(
            path,
            {
                "store": headrace.InitContext.Stores(node=node),
                "instance_num": 2,
                "instance_index": i,
            },
            share_weights=share,
        )
        for i in range(2)
    ]
    assert (backends[0]._session is backends[1]._session) is share
    alone = start(path)
    samples = np.random.default_rng(1).normal(size=(200, 4)).astype(np.float32)
    expected = [results(alone, [{"data": sample}])[0] for sample in samples]
    np.testing.assert_allclose(expected, samples @ weights, atol=1e-5)
    barrier, got = threading.Barrier(2), [[], []]

    def work(i):
        barrier.wait()
        for sample in samples:
            request = {"data": sample}
            backends[i]([request])
            got[i].append(request.get("result"))

    threads = [threading.Thread(target=work, args=(i,)) for i in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for result in got:
        np.testing.assert_array_equal(result, expected)


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


def test_rows_keep_their_axis_where_the_model_has_it(start, recurrent):
    rows = {
        "x": np.arange(6, dtype=np.float32).reshape(2, 3),
        "state": np.arange(12, dtype=np.float32).reshape(2, 2, 3),
        "request_size": 2,
    }
    alone = {"x": rows["x"][0], "state": rows["state"][:, 0]}
    first, second = results(start(recurrent, **STATES), [alone, rows])
    assert second["next"].shape == (2, 2, 3)
    np.testing.assert_allclose(second["next"], rows["state"] + rows["x"][None])
    np.testing.assert_allclose(first["next"], second["next"][:, 0])
    (only,) = results(start(recurrent, **STATES), [rows])
    np.testing.assert_array_equal(only["next"], second["next"])


def test_padding_goes_around_a_batch_axis_that_is_not_the_first(start, save):
    path = save(
        [("ReduceSum", ["x", "axes"], ["y"], {"keepdims": 0})],
        [("x", T.FLOAT, ["length", "n", 2])],
        [("y", T.FLOAT, ["n", 2])],
        [("axes", np.int64([0]))],
    )
    samples = [np.full((length, 2), length, np.float32) for length in (1, 3, 2)]
    batch = [{"data": sample} for sample in samples]
    got = results(start(path, batch_axis={"x": 1}, ragged="pad"), batch)
    assert [array.tolist() for array in got] == [[1, 1], [9, 9], [4, 4]]
    wrong = start(path, batch_axis={"x": 1}, ragged="refuse")([dict(one) for one in batch])
    assert [isinstance(error, InputError) for error in wrong] == [False, True, True]


def test_a_wrong_shape_is_told_with_the_axes_of_one_sample(start, recurrent):
    (error,) = start(recurrent, **STATES)(
        [{"x": np.zeros(3, np.float32), "state": np.zeros((3, 2), np.float32)}]
    )
    assert error.key == "state"
    assert "float32 [2, 3] (one sample) or float32 [2, *, 3]" in str(error)


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


@pytest.mark.parametrize(
    ("dtype", "numbers", "said"),
    [
        (T.UINT8, [-1, 300], "-1 to 300 in int64 [2] from list"),
        (T.FLOAT, [0, 1e39], "0.0 to 1e+39 in float64 [2] from list"),
        (T.FLOAT, [float("nan"), 1e39], "1e+39 to 1e+39 in float64 [2] from list"),
    ],
)
def test_numbers_that_do_not_fit_are_shown(start, one_to_one, dtype, numbers, said):
    (error,) = start(one_to_one(["n", 2], dtype=dtype))([{"data": numbers}])
    assert error.what.startswith("a number does not fit")
    assert error.got == said


def test_half_a_character_is_an_input_error_and_its_neighbours_run(start, one_to_one):
    backend = start(one_to_one(["n"], dtype=T.STRING))
    batch = [{"data": "a"}, {"data": "b\ud800"}, {"data": "ü"}]
    outcomes = backend(batch)
    assert [type(outcome) for outcome in outcomes] == [type(None), InputError, type(None)]
    assert outcomes[1].got == r"'\ud800'"
    assert [batch[0]["result"][()], batch[2]["result"][()]] == ["a", "ü"]


@pytest.mark.skipif(np.lib.NumpyVersion(np.__version__) < "2.0.0", reason="it has no such dtype")
def test_arrays_of_texts_of_any_length_are_read(start, one_to_one):
    texts = np.array(["a", "longer"], dtype=np.dtypes.StringDType())
    request = {"data": texts, "request_size": 2}
    assert start(one_to_one(["n"], dtype=T.STRING))([request]) is None
    assert request["result"].tolist() == ["a", "longer"]
