"""The rules that all engines keep, over small ONNX graphs: compared with bare ONNX Runtime, and with sums counted by hand."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto as T
from onnx import helper

import headrace
from headrace.errors import ConfigError, InputError, RequestsFailed, SetupError

F32 = np.float32
ONES = np.ones(3, F32)
X, Y = [("x", T.FLOAT, ["n", 3])], [("y", T.FLOAT, ["n", 3])]
RAGGED = [("x", T.FLOAT, ["n", "t"])], [("y", T.FLOAT, ["n", "t"])]
AXIS = ("axis", np.int64([1]))
NEG = [("Neg", ["x"], ["y"], {})]
SUM = [("ReduceSum", ["x", "axis"], ["y"], {"keepdims": 0})], RAGGED[0], [("y", T.FLOAT, ["n"])]
BIASED = (
    [("Add", ["x", "bias"], ["y"], {})],
    [*X, ("bias", T.FLOAT, [3])],
    Y,
)
TWO = (
    [("Add", ["a", "b"], ["sum"], {}), ("Mul", ["a", "b"], ["product"], {})],
    [(name, T.FLOAT, ["n", 3]) for name in "ab"],
    [(name, T.FLOAT, ["n", 3]) for name in ("sum", "product")],
)
MASKED = (
    [("Mul", ["ids", "mask"], ["kept"], {}), ("ReduceSum", ["kept", "axis"], ["sum"], {"keepdims": 0})],
    [(name, T.INT64, ["n", "t"]) for name in ("ids", "mask")],
    [("sum", T.INT64, ["n"]), ("kept", T.INT64, ["n", "t"])],
)  # fmt: skip
AGAINST_ALL = (
    [("Transpose", ["x"], ["across"], {"perm": [1, 0]}), ("MatMul", ["x", "across"], ["y"], {})],
    X,
    [("y", T.FLOAT, ["n", "m"])],
)
FLAT = [("Reshape", ["x", "all"], ["y"], {})], X, [("y", T.FLOAT, ["m"])], [("all", np.int64([-1]))]


def write(path, nodes, inputs, outputs, weights=(AXIS,), **saving):
    """Write a model of (op, inputs, outputs, attributes) nodes."""
    graph = helper.make_graph(
        [
            helper.make_node(op, list(a), list(b), name=f"{op}_{i}".lower(), **attrs)
            for i, (op, a, b, attrs) in enumerate(nodes)
        ],
        "graph",
        [helper.make_tensor_value_info(*port) for port in inputs],
        [helper.make_tensor_value_info(*port) for port in outputs],
        [onnx.numpy_helper.from_array(array, key) for key, array in weights],
    )
    opset = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opset, ir_version=8), str(path), **saving)


def answers(pipe, *requests):
    return [np.asarray(answer["result"]) for answer in pipe([dict(one) for one in requests])]


def errors(pipe, *requests):
    with pytest.raises(RequestsFailed) as caught:
        pipe(list(requests))
    return caught.value.errors


def ragged(*lengths, of=1):
    return [{"data": np.full(length, of, F32)} for length in lengths]


class EngineRules:
    """What is right for every engine. A subclass gives the node of a model, by `config`."""

    row_sizes = True

    def config(self, path, inputs):
        """Return the keys of the node that runs a model, whose axes of any length are ``n`` rows or 1 to 50 long."""
        raise NotImplementedError

    @pytest.fixture
    def start(self, tmp_path):
        """Build pipelines of a graph: ``start(nodes, inputs, outputs, weights, **options)``."""
        started = []

        def build(*graph, **options):
            path = tmp_path / f"model{len(started)}.onnx"
            write(path, *graph)
            started.append(headrace.pipe({"max": 8, **self.config(path, graph[1]), **options}))
            return started[-1]

        yield build
        for pipe in started:
            pipe.close()

    def test_samples_and_rows_share_a_batch_in_which_wrong_ones_fail_alone(self, start):
        pipe = start(NEG, X, Y)
        rows = np.arange(6, dtype=F32).reshape(2, 3)
        batch = [
            {"data": ONES},
            {"data": ONES[:2]},
            {"data": rows, "request_size": 2},
            {},
            {"data": rows[:1], "request_size": 1},
            {"data": rows, "request_size": 3},
            {"data": np.ones((1, 1, 3), F32)},
            {"data": 2 * ONES},
        ]
        outcomes = errors(pipe, *batch)
        right = [0, 2, 4, 7]
        assert [place for place, error in enumerate(outcomes) if error is None] == right
        assert {type(error) for error in filter(None, outcomes)} == {InputError}, outcomes
        assert {error.key for error in filter(None, outcomes)} == {"data"}
        assert "float32 [3] (one sample) or float32 [" in outcomes[1].expected
        assert outcomes[1].got.startswith("float32 [2]")
        for place in right:
            np.testing.assert_array_equal(np.asarray(batch[place]["result"]), -batch[place]["data"])
        assert not any("result" in batch[place] for place in (1, 3, 5, 6))
        with pytest.raises(InputError):
            pipe({"data": ONES[:2]})

    def test_results_own_their_memory(self, start):
        pipe, given = start([("Identity", ["x"], ["y"], {})], X, Y), [k * ONES for k in range(4)]
        found = [answer["result"] for answer in pipe([{"data": one} for one in given])]
        found.append(pipe({"data": given[3]})["result"])
        for result in found:
            base = getattr(result, "base", None)
            assert base is None or base.nbytes == result.nbytes, "it keeps the whole run"
            np.asarray(result)[...] += 100
        assert [np.asarray(one).tolist() for one in found] == [
            [100 + k] * 3 for k in (0, 1, 2, 3, 3)
        ]
        assert [one.tolist() for one in given] == [[k] * 3 for k in range(4)]

    def test_inputs_and_outputs_go_by_name(self, start):
        pipe = start(*TWO, inputs={"b": "other"})
        batch = [{"a": k * ONES, "other": 2 * ONES} for k in range(3)]
        for k, request in enumerate(pipe(batch)):
            assert list(request["result"]) == ["sum", "product"]
            assert np.asarray(request["result"]["sum"]).tolist() == [k + 2] * 3
        for send in (pipe, lambda request: pipe.submit(request).result(60)):
            with pytest.raises(InputError) as caught:
                send({"a": ONES})
            assert caught.value.key == "other"
        picked = start(*TWO, outputs=["product"])
        assert answers(picked, {"a": 2 * ONES, "b": 3 * ONES})[0].tolist() == [6] * 3
        with pytest.raises(SetupError, match="input 'b' would be read from the key 'result'"):
            start(*TWO, inputs={"b": "result"})

    def test_only_requests_with_equal_inputs_without_batch_axis_share_a_run(self, start):
        pipe = start(*BIASED, unbatched=["bias"])
        batch = [{"x": k * ONES, "bias": (k % 2) * ONES} for k in range(4)]
        batch.append({"x": np.zeros((2, 3), F32), "bias": ONES, "request_size": 2})
        for request, found in zip(batch, answers(pipe, *batch), strict=True):
            np.testing.assert_array_equal(found, request["x"] + request["bias"])

    def test_an_output_that_does_not_follow_the_rows_is_given_whole_where_it_is_named(self, start):
        with pytest.raises(SetupError, match=r"output .?y") as caught:
            start(*FLAT)
        assert "`unbatched`" in caught.value.hint
        whole = start(*FLAT, unbatched=["y"])
        assert [found.tolist() for found in answers(whole, *({"data": k * ONES} for k in (1, 2)))] == [
            [1] * 3,
            [2] * 3,
        ]  # fmt: skip

    def test_rows_against_all_rows_are_refused_unless_requests_run_alone(self, start):
        with pytest.raises(SetupError, match="two batch axes") as caught:
            start(*AGAINST_ALL)
        assert "max = 1" in caught.value.hint
        assert answers(start(*AGAINST_ALL, max=1), {"data": ONES})[0].tolist() == [3]

    def test_samples_of_several_shapes_are_refused_padded_or_grouped(self, start):
        refused = errors(start(*SUM, ragged="refuse"), *ragged(5, 7, 5))
        assert [error is None for error in refused] == [True, False, True]
        assert (refused[1].key, "ragged" in refused[1].hint) == ("data", True)
        for options in ({}, {"ragged": "group"}, {"ragged": "pad"}):
            assert [float(y) for y in answers(start(*SUM, **options), *ragged(5, 7, 5))] == [
                5,
                7,
                5,
            ]
        padded = start(*SUM, ragged="pad", pad_value=10, pad_multiple=4)
        assert [float(y) for y in answers(padded, *ragged(5, 7))] == [35, 17]
        assert [float(y) for y in answers(padded, *ragged(5))] == [35]

    def test_each_input_is_padded_with_its_value_and_outputs_are_cut_again(self, start, caplog):
        def text(length):
            return {"ids": np.full(length, 5), "mask": np.ones(length, np.int64)}

        pads = {"ragged": "pad", "pad_value": {"ids": 1}}
        for options, length in (({}, 4), ({"crop": {}}, 6)):
            first, second = start(*MASKED, **pads, **options)([text(4), text(6)])
            assert [int(found["result"]["sum"]) for found in (first, second)] == [20, 30]
            kept = [np.asarray(found["result"]["kept"]).tolist() for found in (first, second)]
            assert kept == [[5] * 4 + [0] * (length - 4), [5] * 6]
        assert not caplog.text
        start(*MASKED, ragged="pad", pad_value=1)
        assert "pad_value = {ids = 1.0}" in caplog.text
        with pytest.raises(SetupError, match="`pad_value` names 'idss'"):
            start(*MASKED, ragged="pad", pad_value={"idss": 1})

    def test_a_padded_sample_gets_as_many_frames_as_alone(self, start):
        """A convolution over time with steps of 4, whose frames are counted by hand."""
        nodes = [("Conv", ["x", "w"], ["y"], {"strides": [4]})]
        ports = [("x", T.FLOAT, ["n", 1, "t"])], [("y", T.FLOAT, ["n", 1, "frames"])]
        pipe = start(nodes, *ports, [("w", np.ones((1, 1, 4), F32))], ragged="pad")
        lengths = (4, 7, 8, 19, 41, 50)
        found = answers(pipe, *({"data": np.ones((1, n), F32)} for n in lengths))
        assert [y.shape for y in found] == [(1, n // 4) for n in lengths]

    def test_crop_names_the_input_that_an_output_is_cut_like(self, start):
        found = answers(start(NEG, *RAGGED, ragged="pad", crop={"y": "x"}), *ragged(4, 6))
        assert [y.tolist() for y in found] == [[-1] * 4, [-1] * 6]
        with pytest.raises(SetupError, match="`crop` names 'x_'"):
            start(NEG, *RAGGED, ragged="pad", crop={"y": "x_"})

    @pytest.mark.parametrize(
        ("kind", "value", "fits"),
        [(T.UINT8, 7, True), (T.UINT8, 0.5, False), (T.UINT8, 256, False), (T.INT64, -1, True),
         (T.FLOAT, float("-inf"), True), (T.FLOAT, 1e39, False)],
    )  # fmt: skip
    def test_the_padding_must_fit_the_dtype(self, start, kind, value, fits):
        ports = [("x", kind, ["n", "t"])], [("y", kind, ["n", "t"])]
        options = {"ragged": "pad", "crop": {}, "pad_value": value}
        nodes = [("Identity", ["x"], ["y"], {})]
        if not fits:
            with pytest.raises(SetupError, match=r"input 'x' is .* cannot be padded with"):
                start(nodes, *ports, **options)
            return
        dtype = helper.tensor_dtype_to_np_dtype(kind)
        short, _ = answers(
            start(nodes, *ports, **options), *({"data": np.ones(n, dtype)} for n in (4, 6))
        )
        assert short.tolist() == [1] * 4 + [value] * 2

    def test_a_masked_array_is_refused_by_name(self, start):
        value = np.ma.masked_array(ONES, mask=[True, False, False])
        for error in errors(start(NEG, X, Y), {"data": value}, {"data": value}):
            assert (error.got, error.key) == ("numpy.ma.MaskedArray", "data")
            assert "filled" in error.hint

    @pytest.mark.parametrize(("axis", "says"), [(0, True), (1, False)])
    def test_a_row_that_other_rows_change_is_a_warning(self, start, caplog, axis, says):
        nodes = [("CumSum", ["x", "over"], ["y"], {})]
        start(nodes, X, Y, [("over", np.int64(axis))])
        assert ("output 'y' of a row depends on its batch" in caplog.text) is says
        caplog.clear()
        start(nodes, X, Y, [("over", np.int64(axis))], max=1)
        assert not caplog.text

    def test_the_warm_up_runs_the_rows_of_a_file(self, start, tmp_path, caplog):
        """Sums of zeros depend on no other row."""
        np.save(tmp_path / "zeros.npy", np.zeros((2, 3), F32))
        over = [("over", np.int64(0))]
        nodes = [("CumSum", ["x", "over"], ["y"], {})]
        start(nodes, X, Y, over, warm_up_input=str(tmp_path / "zeros.npy"))
        assert not caplog.text
        with pytest.raises(SetupError, match="cannot be read"):
            start(nodes, X, Y, over, warm_up_input=str(tmp_path / "model0.onnx"))

    def test_row_sizes_fill_a_run_up_and_drop_the_results(self, start):
        """The graph multiplies by the number of its rows, so the answers tell it."""
        if not self.row_sizes:
            pytest.skip("this engine has no row_sizes")
        nodes = [
            ("Shape", ["x"], ["shape"], {"start": 0, "end": 1}),
            ("Cast", ["shape"], ["rows"], {"to": int(T.FLOAT)}),
            ("Mul", ["x", "rows"], ["y"], {}),
        ]
        pipe = start(nodes, X, Y, row_sizes=[4, 1])
        x = np.arange(24, dtype=F32).reshape(8, 3)
        for count, ran in ((1, 1), (2, 4), (4, 4), (5, 5), (8, 8)):
            (found,) = answers(pipe, {"data": x[:count], "request_size": count})
            np.testing.assert_array_equal(found, x[:count] * ran)
        with pytest.raises(SetupError, match="`row_sizes` fills up runs"):
            start(*FLAT, row_sizes=[4], unbatched=["y"])
        with pytest.raises(SetupError, match=r"row_sizes = \(4,\) and batch_sizes") as caught:
            start(NEG, X, Y, row_sizes=[4], batch_sizes=[1, 8])
        assert "Leave batch_sizes out" in caught.value.hint

    @pytest.mark.parametrize(
        "options",
        [{"pad_value": 1}, {"pad_value": {"nobody": 1}}, {"pad_multiple": 8}, {"crop": {}}],
        ids=str,
    )
    def test_an_option_of_padding_without_padding_is_refused(self, start, options):
        (name,) = options
        for more in ({}, {"ragged": "refuse"}):
            with pytest.raises(ConfigError, match=f"`{name}` is for ragged = 'pad', and ragged is"):
                start(*SUM, **options, **more)
